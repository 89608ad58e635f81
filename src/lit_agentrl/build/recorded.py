"""Build the data set that ``data`` names, and the pairs held out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from omegaconf import DictConfig

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.build.games import has_world
from lit_agentrl.build.instantiation import instantiate_as
from lit_agentrl.checks import name_errors
from lit_agentrl.config.overrides import parse
from lit_agentrl.data.beside import Beside
from lit_agentrl.data.demonstrations import Demonstrations
from lit_agentrl.data.kinds import Kind
from lit_agentrl.data.reading import Student, describe_equal_openings, read
from lit_agentrl.data.recordings import Recordings
from lit_agentrl.data.row_folder import find_paths
from lit_agentrl.envs.levels import Levels
from lit_agentrl.models.lora import hash_parameters
from lit_agentrl.models.policy import Policy
from lit_agentrl.paths import list_options
from lit_agentrl.report.verdicts import NEAR, PAIRS, name_head_game
from lit_agentrl.rl.imitation import Imitating
from lit_agentrl.rl.objective import SCORES, Objective
from lit_agentrl.rl.preference.judging import Verdicts, judge
from lit_agentrl.rl.preference.several_heads import SeveralHeads, of_head
from lit_agentrl.rollout.settings import RolloutSettings
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.token_bytes import hash_tokenizer

# default shares of prompts held out to judge a reward model, and a policy that plays no world
_HELD_OUT, _HELD_OUT_WITHOUT_WORLD = 0.2, 0.1


def build_kind(cfg: DictConfig, algorithm: Objective) -> tuple[Objective, Kind | None]:
    """Return the objective to train, and the data set of ``data`` or None for rollouts.

    The objective is ``algorithm``.  A mixed data set adds imitation to it, and scores of several heads give it several
    heads.

    Raises:
        ValueError: an invalid option, or a missing file.
    """
    if not cfg.get("data"):
        return algorithm, None
    if "_target_" not in cfg.data:  # data=rollouts, and an experiment sets options of another data set
        raise ValueError(
            f"data=rollouts has no option {next(iter(cfg.data))}, which the experiment sets; leave out data=rollouts, "
            "or the experiment"
        )
    with name_errors("data"):
        kind = instantiate_as(cfg, "data", Kind)
        find_paths(kind.paths)  # raises if a file is missing
    is_scored = algorithm.reads == SCORES
    if isinstance(kind, Beside):
        if algorithm.trains and not is_scored:  # the requirements of `Beside` refuse others
            algorithm = Imitating(played_objective=algorithm, coef=kind.coef)
        return algorithm, kind
    if kind.held_out is None:
        without_world = 0.0 if has_world(cfg) else _HELD_OUT_WITHOUT_WORLD
        kind = replace(kind, held_out=_HELD_OUT if is_scored else without_world)
    if kind.heads and is_scored:
        algorithm = SeveralHeads(objective=algorithm, names=kind.heads)
    return algorithm, kind


def describe_default_world(overrides: Sequence[str], *, name: str) -> str:
    """Return a warning if the default world judges a data set of the user's own.

    A shipped data set chooses no world unless the user names one; the YAML file of a user's data set must say so
    itself.

    Args:
        overrides: the overrides as typed.
        name: name of the world that is played.

    Returns:
        The line; empty if the data set is shipped, or the command or an experiment may have named the world.
    """
    values_by_key = {override.key_or_group: override.value() for override in parse(overrides)}
    data = values_by_key.get("data")
    if (
        data is None
        or data in [file.stem for file in list_options("data")]
        or {"env", "experiment"} & {*values_by_key}
    ):
        return ""
    return (
        f"data={data} is judged by the default world, env={name}, as its YAML file chooses none; to be judged by "
        "held-out data, write `- override /env@_global_.env: _none` into its defaults, or name a world with env="
    )


class HeldOut:
    """The held-out pairs on which a reward model is judged.

    Args:
        recorded: the data set, including its held-out part.
        heads: the names of the model's heads, if it has several.

    Raises:
        ValueError: no pair of unequal returns to validate on, overall or for one of the heads.
    """

    def __init__(self, recorded: Recordings, heads: Sequence[str] = ()) -> None:
        judged = {split: _judge_pairs(recorded, split, len(heads)) for split in ("val", "test")}
        self._verdicts = {
            split: Verdicts(torch.cat([v.table_PC for v in verdicts])) for split, verdicts in judged.items()
        }
        self._verdicts_by_head = {
            split: dict(zip(heads, verdicts, strict=False)) for split, verdicts in judged.items()
        }
        empty = [name for name, verdicts in self._verdicts_by_head["val"].items() if not len(verdicts)]
        if empty or not len(self._verdicts["val"]):
            score = f"{empty[0]} of data.score" if empty else "reward"
            raise ValueError(
                f"data.held_out leaves no two answers to one prompt with unequal {score} for validation; raise it, or "
                "add data"
            )

    def get_levels(self, split: str) -> dict[str, Levels]:
        """Return the levels of each set of pairs, as if it were a game."""
        verdicts = self._verdicts[split]
        counts = {PAIRS: len(verdicts), NEAR: int(verdicts.is_near_P.sum())}
        counts |= {
            name_head_game(name): len(head_verdicts)
            for name, head_verdicts in self._verdicts_by_head[split].items()
        }
        return {
            name: Levels(
                chance_success=0.5, chance_return=None, oracle_success=1.0, oracle_return=None, episodes=n
            )
            for name, n in counts.items()
            if n
        }

    def describe_pairs(self, split: str) -> str:
        """Return the number of pairs of a split, as text."""
        return f"{len(self._verdicts[split])} pairs held out"

    @property
    def note(self) -> str:
        """A line about the accuracy of the rule "the shorter one wins"."""
        metrics = self._verdicts["val"].metrics()
        near = metrics.get("equal_length_shorter_wins")
        near_text = (
            ""
            if near is None
            else f", and in {near:.3f} of the {metrics['equal_length_pairs']:.0f} of nearly equal length"
        )
        return (
            f"held out for validation: {len(self._verdicts['val'])} pairs; the shorter one wins in "
            f"{metrics['shorter_wins']:.3f} of them{near_text}"
        )


def _judge_pairs(recorded: Recordings, split: str, heads: int) -> list[Verdicts]:
    """Return the pairs of each head; one entry if ``heads`` is 0."""
    batch = recorded.make_held_out(split, iteration=0)
    trajectories = batch.trajectories or TrajectoryBatch.make_empty()
    rows = trajectories.to_dict() | batch.columns
    views = [of_head(rows, head) for head in range(heads)] or [rows]
    return [judge(view, trajectories.reward_BT) for view in views]


def read_recordings(
    kind: Kind | None,
    policy: Policy,
    chat: ChatRenderer,
    settings: RolloutSettings,
    *,
    seed: int,
    is_judged: bool,
    is_share_given: bool = True,
) -> Recordings | None:
    """Read the data set with the tokenizer and template of this policy.

    Args:
        kind: the data set; None for rollouts.
        policy: the network and tokenizer that are trained.
        chat: renders messages for the policy.
        settings: temperature and limits.
        seed: run seed.
        is_judged: whether a reward model is trained, which is judged on all held-out pairs.
        is_share_given: whether the user gave ``data.held_out``.  If not, and a file has too few prompts for the default
            share, nothing is held out, and a note says so.

    Raises:
        ValueError: too many invalid rows, an unreadable file, or nothing held out although ``data.held_out`` is set.
    """
    if kind is None:
        return None
    student = Student(
        chat, hash_parameters(policy.network), hash_tokenizer(policy.tokenizer),
        vocabulary=policy.network.config.get_text_config().vocab_size, temperature=settings.temperature,
        max_context_tokens=settings.max_context_tokens,
    )  # fmt: skip
    with name_errors("data"):
        if kind.held_out and not is_judged and not is_share_given:
            return _read_by_default_share(kind, student, seed)
        recordings = read(kind, student, seed=seed, compares_held_out=is_judged)
        if kind.held_out and not is_judged and not recordings.held_out["val"]:
            cause = describe_equal_openings(recordings.openings, kind.held_out)
            raise ValueError(
                f"held_out={kind.held_out:g} leaves none of {len(recordings.groups)} groups to validate on; "
                f"{cause or 'raise it, or name more data'}"
            )
        return replace(recordings, measures_nll=isinstance(kind, Demonstrations))


def _read_by_default_share(kind: Kind, student: Student, seed: int) -> Recordings:
    """Read a data set, and hold out the default share if it has enough prompts."""
    share = kind.held_out
    try:
        recordings = read(kind, student, seed=seed, compares_held_out=False)
        is_enough = bool(recordings.held_out["val"])
    except ValueError:  # also raised if the share leaves less than a batch
        is_enough = False
    if not is_enough:
        recordings = read(replace(kind, held_out=0.0), student, seed=seed, compares_held_out=False)
        cause = describe_equal_openings(recordings.openings, share or 0.0)
        remedy = cause or "give more data or another data.held_out, such as 0.3, or name env=WORLD to play"
        note = (
            f"data.held_out={share:g} of {len(recordings.groups)} groups leaves too few to validate on or to train on: "
            f"nothing is held out or validated, and hf/ will hold the last weights; {remedy}"
        )
        recordings = replace(recordings, notes=(*recordings.notes, note))
    return replace(recordings, measures_nll=isinstance(kind, Demonstrations))
