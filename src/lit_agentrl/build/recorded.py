"""``data``: what is trained on where nothing is played in training, and what then makes no sense."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from omegaconf import DictConfig

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.build.making import made
from lit_agentrl.checks import name_errors
from lit_agentrl.data.beside import Beside
from lit_agentrl.data.kinds import Kind
from lit_agentrl.data.reading import Student, find_paths, read
from lit_agentrl.data.recordings import Recordings
from lit_agentrl.envs.levels import Levels
from lit_agentrl.models.lora import fingerprint
from lit_agentrl.models.policy import Policy
from lit_agentrl.report.verdicts import NEAR, PAIRS, of_head_named
from lit_agentrl.rl.imitation import Imitating
from lit_agentrl.rl.objective import SCORES, Objective
from lit_agentrl.rl.preference.judging import Verdicts, judge
from lit_agentrl.rl.preference.several_heads import SeveralHeads, of_head
from lit_agentrl.rollout.settings import RolloutSettings
from lit_agentrl.rollout.structures.base import BASELINE, BRANCHES, WHOLE_CONTEXT, Structure
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.token_bytes import hash_tokenizer
from lit_agentrl.update.minibatches import name_units
from lit_agentrl.update.settings import UpdateSettings

_HELD_OUT = 0.2  # of the prompts, where a reward model is to be judged
_PLAY = "or data=rollouts"


def build_kind(
    cfg: DictConfig, algorithm: Objective, structure: Structure, update: UpdateSettings
) -> tuple[Objective, Kind | None]:
    """What is trained, and the kind of data set that ``data`` names, whose files are there; None: training plays.

    The objective is the one given, or one of several heads where the data set has a score for each.

    Raises:
        ValueError: an option that makes no sense, a file that is not there, or what only rollouts have.
    """
    if not cfg.get("data"):
        _check_judged(algorithm, None, update)
        return algorithm, None
    if "_target_" not in cfg.data:  # an experiment of another data set has set it
        raise ValueError(
            f"data=rollouts has no option {next(iter(cfg.data))}, which the experiment sets; leave out data=rollouts, "
            "or the experiment"
        )
    with name_errors("data"):
        kind = made(cfg, "data", Kind)
        find_paths(kind)
    if isinstance(kind, Beside):
        _check_beside(algorithm, update)
        return Imitating(of_played=algorithm, coef=kind.coef), kind
    if kind.held_out is None:
        kind = replace(kind, held_out=_HELD_OUT if algorithm.reads == SCORES else 0.0)
    _check_rollouts(cfg, kind, structure)
    _check_groups(kind, algorithm, update)
    _check_judged(algorithm, kind, update)
    return (SeveralHeads(one=algorithm, names=kind.heads) if kind.heads else algorithm), kind


def _check_beside(algorithm: Objective, update: UpdateSettings) -> None:
    """Refuse what imitates nothing, and what would measure the rows that are imitated."""
    if algorithm.reads == SCORES or not algorithm.trains:
        raise ValueError(
            f"data=beside imitates beside what is played, and algo={algorithm.name} trains no policy by it: set "
            "data=pairs, or algo=grpo"
        )
    if update.gradients is not None:
        raise ValueError(
            "update.gradients measures what advantages teach, and data=beside teaches without; set "
            f"update/gradients=none, {_PLAY}"
        )


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
        structure.needs - {WHOLE_CONTEXT}
        or structure.gives & {BASELINE, BRANCHES}
        or structure.wants_repeats
        or (structure.is_off_policy or structure.takes_trials or structure.opponent is not None)
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
    if kind.needed is not None and not (algorithm.reads == SCORES and algorithm.needs(kind.needed)):
        raise ValueError(
            f"data={name} has a label for every turn, and algo={algorithm.name} as it stands reads none: set "
            "algo=process_reward algo/label=so_far, or data=demonstrations"
        )
    is_of_costs = algorithm.reads == SCORES and algorithm.score_kind == "cost"
    if kind.heads and algorithm.reads != SCORES:
        raise ValueError(
            f"data.score=[{','.join(kind.heads)}] makes the heads of a reward model, and algo={algorithm.name} trains "
            "a policy; name one score"
        )
    if is_of_costs and kind.score != "cost" and not kind.heads:
        raise ValueError(
            f"data.score={kind.score} ranks by what is good, and algo={algorithm.name} learns what costs; set "
            "data.score=cost"
        )
    if kind.score == "cost" and not is_of_costs:
        raise ValueError(
            f"data.score=cost ranks the worst first, and algo={algorithm.name} would learn it; set algo=cost_model, or "
            "data.score=return"
        )
    is_of_references = algorithm.reads == SCORES and algorithm.score_kind == "referred"
    if is_of_references != kind.is_referred:
        raise ValueError(
            f"algo={algorithm.name} scores an answer beside a reference, and data={name} names none: set data=referred"
            if is_of_references
            else f"data={name} puts the best answer before the others, and algo={algorithm.name} reads no reference: "
            "set algo=polar, or data=ranked"
        )
    units = algorithm.unit or "trajectory_B"
    most = kind.batch * (kind.smallest if units == "trajectory_B" else 1)
    if update.minibatches > most:
        raise ValueError(
            f"update.minibatches={update.minibatches} exceeds the {most} {name_units(units)} of an iteration with "
            f"data.batch={kind.batch}; lower it, or raise data.batch"
        )


def _check_judged(algorithm: Objective, kind: Kind | None, update: UpdateSettings) -> None:
    """Refuse a reward model without recorded episodes, or without some that it is judged on, and what it has not.

    Raises:
        ValueError: naming the option and the remedy.
    """
    if algorithm.reads != SCORES:
        if kind is not None and kind.held_out:
            raise ValueError(
                f"data.held_out={kind.held_out:g} is for reward models, and algo={algorithm.name} is judged by "
                "playing; leave it out"
            )
        return
    if kind is None:
        fitting = "referred" if algorithm.score_kind == "referred" else "pairs"
        raise ValueError(
            f"algo={algorithm.name} trains a reward model, which learns from recorded episodes: set data={fitting} "
            "data.path=FOLDER, of lit-agentrl collect"
        )
    if not kind.held_out:
        raise ValueError(
            f"data.held_out=0 leaves nothing that the reward model of algo={algorithm.name} is judged on; set it to 0.2"
        )
    if update.stop is not None:
        raise ValueError(
            f"update.stop goes by log-probs, and algo={algorithm.name} trains a score; set update/stop=none"
        )


class HeldOut:
    """The pairs that a reward model is judged on, counted.

    Args:
        recorded: with what is held out of it.
        heads: of the model, where it has several.

    Raises:
        ValueError: there is no pair of unequal returns to validate on, or none for one of the heads.
    """

    def __init__(self, recorded: Recordings, heads: Sequence[str] = ()) -> None:
        found = {split: _pairs_of(recorded, split, len(heads)) for split in ("val", "test")}
        self._verdicts = {
            split: Verdicts(torch.cat([v.table_PC for v in each])) for split, each in found.items()
        }
        self._of_heads = {split: dict(zip(heads, each, strict=False)) for split, each in found.items()}
        empty = [name for name, verdicts in self._of_heads["val"].items() if not len(verdicts)]
        if empty or not len(self._verdicts["val"]):
            worth = f"{empty[0]} of data.score" if empty else "worth"
            raise ValueError(
                f"data.held_out leaves no two answers to one prompt of unequal {worth} to validate on; raise it, or "
                "name more data"
            )

    def levels(self, split: str) -> dict[str, Levels]:
        """Chance and oracle, as of games."""
        found = self._verdicts[split]
        numbers = {PAIRS: len(found), NEAR: int(found.is_near_P.sum())}
        numbers |= {of_head_named(name): len(each) for name, each in self._of_heads[split].items()}
        return {name: Levels(0.5, None, 1.0, None, n) for name, n in numbers.items() if n}

    def told(self, split: str) -> str:
        """How many there are."""
        return f"{len(self._verdicts[split])} pairs held out"

    @property
    def note(self) -> str:
        """What is right without any model, in a line."""
        found = self._verdicts["val"].metrics()
        near = found.get("equal_length_shorter_wins")
        beside = (
            "" if near is None else f"; of {found['equal_length_pairs']:.0f} of equal length in {near:.3f}"
        )
        return (
            f"held out for validation: {len(self._verdicts['val'])} pairs; the shorter one wins in "
            f"{found['shorter_wins']:.3f} of them{beside}"
        )


def _pairs_of(recorded: Recordings, split: str, heads: int) -> list[Verdicts]:
    """The pairs of each head, or of the only one."""
    batch = recorded.make_held_out(split, 0)
    trajectories = batch.trajectories or TrajectoryBatch.make_empty()
    rows = trajectories.to_dict() | batch.columns
    views = [of_head(rows, number) for number in range(heads)] or [rows]
    return [judge(view, trajectories.reward_BT) for view in views]


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
        chat, fingerprint(policy.network), hash_tokenizer(policy.tokenizer),
        vocabulary=policy.network.config.get_text_config().vocab_size, temperature=settings.temperature,
        max_context_tokens=settings.max_context_tokens,
    )  # fmt: skip
    with name_errors("data"):
        return read(kind, student, seed=seed)
