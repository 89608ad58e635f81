"""The folder of a reward model: a causal language model, its head, and a record of both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from lit_agentrl.checks import format_value
from lit_agentrl.models.heads import ScoreHead
from lit_agentrl.models.lora import fingerprint
from lit_agentrl.models.policy import Policy, load_pretrained

USES = {  # what a model of each kind is used as
    "score": "reward=model",
    "logit": "reward=model",
    "cost": "reward=cost",
    "referred": "reward=polar",
}
FORMAT, VERSION = "lit_agentrl reward model", 1
ABOUT, WEIGHTS = "reward_model.json", "score_head.safetensors"


@dataclass(frozen=True)
class About:
    """What is recorded of a reward model.

    Attributes:
        kind: ``score``: of a whole episode, on no scale of its own; ``logit``: of a chance, after every turn;
            ``cost``: of a whole episode, above 0 where it costs too much; ``referred``: as ``score``, of an episode
            that is read behind a reference.
        fingerprint: of the weights of network and head.
        tokenizer: fingerprint of what maps texts to ids.
        mean, std: of the scores of held-out episodes.
        algo: what it was trained by.
        heads: of several heads each name, in order, with mean and std of its scores; empty: one head, without a name.
    """

    kind: str
    fingerprint: str
    tokenizer: str
    mean: float = 0.0
    std: float = 1.0
    algo: str = ""
    heads: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def weights(self, given: Mapping[str, float] | None, path: str) -> list[float] | None:
        """What each head counts, in order; None: it has one.

        Args:
            given: weights by name, or None.
            path: for messages.

        Raises:
            ValueError: a head without a weight, or a weight without a head.
        """
        names = ", ".join(self.heads)
        if not self.heads:
            if given is not None:
                raise ValueError(
                    f"heads={format_value(given)}: path={path} has one head, without a name; set heads=null"
                )
            return None
        if given is None:
            told = ",".join(f"{name}:1" for name in self.heads)
            raise ValueError(
                f"path={path} has several heads ({names}), and nothing says what each of them counts: set "
                f"'reward.model.heads={{{told}}}'"
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
    """A network with its head, and what is recorded of it."""

    policy: Policy
    head: ScoreHead
    about: About


def of_weights(network: nn.Module, head: nn.Module) -> str:
    """A fingerprint of both."""
    return hashlib.sha256(f"{fingerprint(network)} {fingerprint(head)}".encode()).hexdigest()


def save_head(folder: str | Path, head: ScoreHead, about: About) -> None:
    """Write the head beside the network, whose folder this is.

    Raises:
        OSError: it cannot be written.
    """
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in head.state_dict().items()}
    save_file(state, Path(folder) / WEIGHTS)
    told = {"format": FORMAT, "version": VERSION, **asdict(about)}
    del told["heads"]  # a record of one head is as it was before there were several
    if about.heads:
        told["heads"] = [[name, *numbers] for name, numbers in about.heads.items()]  # in order
    (Path(folder) / ABOUT).write_text(json.dumps(told, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def find_model(path: str) -> Path:
    """The folder of the reward model that a run wrote, or that this is itself.

    Raises:
        ValueError: there is none, naming the path.
    """
    given = Path(path).expanduser()
    for folder in (given / "hf", given):
        if (folder / ABOUT).is_file():
            return folder
    if not given.exists():
        raise ValueError(f"path={path} is not there; looked for {given.absolute()}")
    raise ValueError(
        f"path={path} holds no reward model: no {ABOUT} in it, nor in its hf/; give the folder of a run that trained "
        "one, such as algo=bradley_terry"
    )


def read_about(path: str, *, use: str = "reward=model") -> About:
    """What is recorded of the reward model of a folder; of its weights, whether the files are whole.

    Args:
        path: of a run, or of the folder itself.
        use: one of `USES` that it must be fit for.

    Raises:
        ValueError: there is none of the kind, its record cannot be read, or a file of weights was cut off.
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
        told: Any = json.loads(file.read_text(encoding="utf-8"))
        if told.pop("format") != FORMAT or told.pop("version") != VERSION:
            raise ValueError("it is of another format")
        heads = {name: (float(mean), float(std)) for name, mean, std in told.pop("heads", ())}
        about = About(**told, heads=heads)
        texts = (about.kind, about.fingerprint, about.tokenizer, about.algo)
        if not all(isinstance(each, str) for each in texts) or about.kind not in USES:
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


def load_model(path: str, tokenizer: str | None, *, use: str = "reward=model") -> RewardModel:
    """The reward model of a folder, frozen.

    Args:
        path: of a run, or of the folder itself.
        tokenizer: fingerprint of that of the policy whose ids it is to read; None: it reads those of its own.
        use: see `read_about`.

    Raises:
        ValueError: it cannot be loaded, speaks other ids, or its weights are not those that are recorded.
    """
    folder, about = find_model(path), read_about(path, use=use)
    if tokenizer is not None and about.tokenizer != tokenizer:
        raise ValueError(
            f"path={path} reads token ids of another tokenizer than the policy's; train a reward model of the same one"
        )
    policy = load_pretrained(str(folder))
    head = ScoreHead(policy.network.config.get_text_config().hidden_size, heads=len(about.heads) or None)
    try:
        head.load_state_dict(load_file(folder / WEIGHTS))
    except (OSError, SafetensorError, RuntimeError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"path={path}: {WEIGHTS} cannot be loaded ({reason}); train the model again"
        ) from error
    if (found := of_weights(policy.network, head)) != about.fingerprint:
        raise ValueError(
            f"path={path} holds weights {found[:12]}, and its record says {about.fingerprint[:12]}: a file was "
            "exchanged; train the model again"
        )
    policy.network.requires_grad_(False)
    head.requires_grad_(False)
    return RewardModel(policy, head, about)
