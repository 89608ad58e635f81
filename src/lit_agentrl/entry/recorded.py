"""``data``: what is trained on where nothing is played in training, and what then makes no sense."""

from __future__ import annotations

from omegaconf import DictConfig

from lit_agentrl.checks import named
from lit_agentrl.data.kinds import Kind
from lit_agentrl.data.reading import Student, find_paths, read
from lit_agentrl.data.recordings import Recordings
from lit_agentrl.entry.making import made
from lit_agentrl.models.lora import fingerprint
from lit_agentrl.models.policy import Policy
from lit_agentrl.rl.objective import Objective
from lit_agentrl.rollout.settings import RolloutSettings
from lit_agentrl.rollout.structures.base import BASELINE, BRANCHES, Structure
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.token_bytes import tokenizer_fingerprint
from lit_agentrl.update.minibatches import plural
from lit_agentrl.update.settings import UpdateSettings

_PLAY = "or data=rollouts"


def build_kind(
    cfg: DictConfig, algorithm: Objective, structure: Structure, update: UpdateSettings
) -> Kind | None:
    """The kind of data set that ``data`` names, whose files are there; None: training plays.

    Raises:
        ValueError: an option that makes no sense, a file that is not there, or what only rollouts have.
    """
    if not cfg.get("data"):
        return None
    with named("data"):
        kind = made(cfg, "data", Kind)
        find_paths(kind)
    _check_rollouts(cfg, kind, structure)
    _check_groups(kind, algorithm, update)
    return kind


def _check_rollouts(cfg: DictConfig, kind: Kind, structure: Structure) -> None:
    """Refuse what only rollouts have."""
    name = type(kind).__name__.lower()
    if cfg.rollout.overlap or (cfg.worker and not str(cfg.worker.get("_target_")).endswith(".Here")):
        raise ValueError(
            f"data={name} plays nothing in training, and a worker plays ahead: set worker=none rollout.overlap=false, "
            f"{_PLAY}"
        )
    if cfg.reward:
        raise ValueError(
            f"reward=[{','.join(map(str, cfg.reward))}] shapes what is played, and data={name} plays nothing in "
            f"training: set reward=none, {_PLAY}"
        )
    if (
        structure.needs
        or structure.gives & {BASELINE, BRANCHES}
        or structure.wants_repeats
        or (structure.is_off_policy or structure.takes_trials)
    ):
        raise ValueError(
            f"algo.structure={type(structure).__name__} plays groups of its own, and data={name} has those of "
            f"its files: set algo/structure=refill, {_PLAY}"
        )


def _check_groups(kind: Kind, algorithm: Objective, update: UpdateSettings) -> None:
    """Refuse groups that the objective cannot learn from, or too few of them."""
    name, least = type(kind).__name__.lower(), algorithm.requirements.min_members
    if least > kind.smallest:
        raise ValueError(
            f"data={name} has groups of one, and algo={algorithm.name} compares the members of a group; set data=pairs "
            f"or data=ranked, {_PLAY}"
        )
    units = algorithm.unit or "trajectory_B"
    most = kind.batch * (kind.smallest if units == "trajectory_B" else 1)
    if update.minibatches > most:
        raise ValueError(
            f"update.minibatches={update.minibatches} exceeds the {most} {plural(units)} of an iteration with "
            f"data.batch={kind.batch}; lower it, or raise data.batch"
        )


def recordings(
    kind: Kind | None, policy: Policy, chat: ChatRenderer, settings: RolloutSettings, *, seed: int
) -> Recordings | None:
    """What the data set holds, as this policy reads it.

    Raises:
        ValueError: too many bad rows, or what cannot be read.
    """
    if kind is None:
        return None
    student = Student(
        chat, fingerprint(policy.network), tokenizer_fingerprint(policy.tokenizer),
        vocabulary=policy.network.config.get_text_config().vocab_size, temperature=settings.temperature,
        max_context_tokens=settings.max_context_tokens,
    )  # fmt: skip
    with named("data"):
        return read(kind, student, seed=seed)
