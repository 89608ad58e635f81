"""Reward models on disk: a causal language model, its head, and their record."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from lit_agentrl.checks import format_value
from lit_agentrl.models.heads import ScoreHead
from lit_agentrl.models.lora import hash_parameters
from lit_agentrl.models.policy import Policy, load_pretrained

USES = {  # the option that uses a model of each kind
    "score": "reward=model",
    "logit": "reward=model",
    "cost": "reward=cost",
    "referred": "reward=polar",
}
FORMAT, VERSION = "lit_agentrl reward model", 1
ABOUT, WEIGHTS = "reward_model.json", "score_head.safetensors"


@dataclass(frozen=True)
class RewardModelInfo:
    """The record of a reward model.

    Attributes:
        kind: ``score``: one score per episode, on an arbitrary scale; ``logit``: the logit of a probability, after
            every turn; ``cost``: one cost per episode, above 0 if it costs too much; ``referred``: like ``score``,
            for an episode read after a reference episode.
        fingerprint: Hash of the weights of network and head.
        tokenizer: Hash of the tokenizer's mapping from texts to ids.
        mean, std: Mean and std of the scores of held-out episodes; a std of 1 if there is one episode.
        algo: The algorithm that trained the model.
        heads: With several heads, each name in order with mean and std of its scores; empty for one unnamed head.
    """

    kind: str
    fingerprint: str
    tokenizer: str
    mean: float = 0.0
    std: float = 1.0
    algo: str = ""
    heads: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def get_head_weights(self, given: Mapping[str, float] | None, path: str) -> list[float] | None:
        """Return the weight of each head in order; None for a single head.

        Args:
            given: Weights by name, or None.
            path: Path of the model, for messages.

        Raises:
            ValueError: If a head has no weight, or a weight has no head.
        """
        names = ", ".join(self.heads)
        if not self.heads:
            if given is not None:
                raise ValueError(
                    f"heads={format_value(given)}: path={path} has one head, without a name; set heads=null"
                )
            return None
        if given is None:
            example = ",".join(f"{name}:1" for name in self.heads)
            raise ValueError(
                f"path={path} has several heads ({names}), and none of them has a weight: set "
                f"'reward.model.heads={{{example}}}'"
            )
        if unknown := [name for name in given if name not in self.heads]:
            raise ValueError(
                f"heads={format_value(given)}: path={path} has no head {unknown[0]}; its heads are {names}"
            )
        if lacking := [name for name in self.heads if name not in given]:
            raise ValueError(
                f"heads={format_value(given)} has no weight of {lacking[0]}, a head of path={path}; 0 leaves it out"
            )
        return [float(given[name]) for name in self.heads]


@dataclass
class RewardModel:
    """A network with its head and its record."""

    policy: Policy
    head: ScoreHead
    about: RewardModelInfo


def hash_weights(network: nn.Module, head: nn.Module) -> str:
    """Return one hash of the weights of network and head."""
    return hashlib.sha256(f"{hash_parameters(network)} {hash_parameters(head)}".encode()).hexdigest()


def save_head(folder: str | Path, head: ScoreHead, about: RewardModelInfo) -> None:
    """Write the head into the folder of its network.

    Raises:
        OSError: If it cannot be written.
    """
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in head.state_dict().items()}
    save_file(state, Path(folder) / WEIGHTS)
    record = {"format": FORMAT, "version": VERSION, **asdict(about)}
    del record["heads"]  # written only if there are several: a single head keeps the older format
    if about.heads:
        record["heads"] = [[name, *numbers] for name, numbers in about.heads.items()]  # in order
    (Path(folder) / ABOUT).write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def find_model(path: str) -> Path:
    """Return the folder of the reward model at ``path``, or of the run there.

    Raises:
        ValueError: If there is no reward model; the message names the path.
    """
    location = Path(path).expanduser()
    for folder in (location / "hf", location):
        if (folder / ABOUT).is_file():
            return folder
    if not location.exists():
        raise ValueError(f"path={path} is not there; looked for {location.absolute()}")
    raise ValueError(
        f"path={path} holds no reward model: no {ABOUT} in it, nor in its hf/; give the folder of a run that trained "
        "one, such as algo=bradley_terry"
    )


def read_about(path: str, *, use: str = "reward=model") -> RewardModelInfo:
    """Read the record of a reward model, and check that its weight files are complete.

    Args:
        path: Folder of a run, or the model's own folder.
        use: The use, one of the values of `USES`, that the model must fit.

    Raises:
        ValueError: If there is no model of this kind, its record cannot be read, or a file of weights is truncated.
    """
    file = find_model(path) / ABOUT
    for weights in sorted(file.parent.glob("*.safetensors")):
        try:
            with safe_open(weights, "pt"):
                pass
        except (OSError, SafetensorError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"path={path}: {weights.name} is damaged ({reason}); train the model again"
            ) from error
    try:
        record: Any = json.loads(file.read_text(encoding="utf-8"))
        if record.pop("format") != FORMAT or record.pop("version") != VERSION:
            raise ValueError("it is of another format")
        heads = {name: (float(mean), float(std)) for name, mean, std in record.pop("heads", ())}
        about = RewardModelInfo(**record, heads=heads)
        texts = (about.kind, about.fingerprint, about.tokenizer, about.algo)
        if not all(isinstance(text, str) for text in texts) or about.kind not in USES:
            raise ValueError("a field is of the wrong type")
        if not (isinstance(about.mean, float | int) and isinstance(about.std, float | int) and about.std > 0):
            raise ValueError("mean and std must be numbers, std > 0")
        if not all(std > 0 for _, std in about.heads.values()):
            raise ValueError("the std of a head must be > 0")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"path={path}: {file.name} cannot be read ({error}); train the model again"
        ) from error
    if use != USES[about.kind]:
        raise ValueError(
            f"path={path} holds a model of algo={about.algo or about.kind}, which is used as {USES[about.kind]}; set "
            f"that, or name a model for {use}"
        )
    return about


def load_head(folder: str, head: ScoreHead, *, kind: str, heads: Sequence[str] = ()) -> bool:
    """Load the head of a reward model, as PMP does (arXiv 2112.00861).

    Args:
        folder: The model's own folder, or a hub name, which names no folder.
        head: The head to change.
        kind: See `RewardModelInfo`.
        heads: Names of several heads, in order.

    Returns:
        False if the folder holds no such reward model; the head is then unchanged.

    Raises:
        ValueError: If the head cannot be read or has another width.
    """
    if not (Path(folder).expanduser() / ABOUT).is_file():
        return False
    location = find_model(folder)
    record = json.loads((location / ABOUT).read_text(encoding="utf-8"))
    if record.get("kind") != kind or [name for name, *_ in record.get("heads", ())] != list(heads):
        return False
    _load_head_weights(head, location, f"model.name={folder}")
    return True


def _load_head_weights(head: ScoreHead, folder: Path, option: str) -> None:
    try:
        head.load_state_dict(load_file(folder / WEIGHTS))
    except (OSError, SafetensorError, RuntimeError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{option}: {WEIGHTS} cannot be loaded ({reason}); train the model again") from error


def load_model(path: str, tokenizer: str | None, *, use: str = "reward=model") -> RewardModel:
    """Load the reward model of a folder, frozen.

    Args:
        path: Folder of a run, or the model's own folder.
        tokenizer: Hash of the policy's tokenizer, whose ids the model will read; None if it reads ids of its own
            tokenizer.
        use: See `read_about`.

    Raises:
        ValueError: If it cannot be loaded, has another tokenizer, or its weights differ from its record.
    """
    folder, about = find_model(path), read_about(path, use=use)
    if tokenizer is not None and about.tokenizer != tokenizer:
        raise ValueError(
            f"path={path} reads token ids of another tokenizer than the policy's; train a reward model of the same one"
        )
    policy = load_pretrained(str(folder))
    head = ScoreHead(policy.network.config.get_text_config().hidden_size, heads=len(about.heads) or None)
    _load_head_weights(head, folder, f"path={path}")
    if (digest := hash_weights(policy.network, head)) != about.fingerprint:
        raise ValueError(
            f"path={path} holds weights {digest[:12]}, and its record says {about.fingerprint[:12]}: a file was "
            "exchanged; train the model again"
        )
    policy.network.requires_grad_(False)
    head.requires_grad_(False)
    return RewardModel(policy, head, about)
