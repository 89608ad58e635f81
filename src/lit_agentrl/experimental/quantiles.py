"""Quantiles of rewards among the rewards of reference samples, for QRPO.

The data set `Quantiles` joins each episode with the rewards of reference samples of its prompt; the advantage
`reference_quantile` turns them into the quantile that ``algo=qrpo`` regresses on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from lit_agentrl.checks import require, require_local
from lit_agentrl.data.conversations import Reader
from lit_agentrl.data.kinds import set_return
from lit_agentrl.data.labels import add_reference_rewards
from lit_agentrl.data.recordings import Group
from lit_agentrl.data.references import Instance, identify_instance, open_answers
from lit_agentrl.data.unpaired import Unpaired
from lit_agentrl.envs.tasks.messages import BadRow, read_dialogue, read_number
from lit_agentrl.episode import Episode
from lit_agentrl.facts import READS_REFERENCE_REWARDS, REFERENCE_REWARDS
from lit_agentrl.requirements import Fact, Offer, Requirement
from lit_agentrl.rl.credit.advantages import Advantage, broadcast_to_actions
from lit_agentrl.rl.masked import check_shapes


@dataclass(frozen=True, kw_only=True)
class Quantiles(Unpaired):
    """Rows with a ``score`` and with ``ref_rewards``, the reference's rewards for the same prompt.

    The text is in ``prompt`` and ``completion``, or in ``messages``.  For recorded episodes, ``references`` is a folder
    that `collect` wrote while the reference played the same tasks; its episodes may be the recorded ones themselves.

    Attributes:
        references: the folder with episodes of the reference; None: files have the column ``ref_rewards``.
    """

    score: str = "return"
    references: str | None = None
    scores: ClassVar[tuple[str, ...]] = ("return", "success")
    several: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        given = self.references
        is_text = given is None or (isinstance(given, str) and bool(given.strip()))
        require(is_text, "references", given, "a folder of lit-agentrl collect, or null")
        require_local("references", given)
        if given is not None and all(Path(path).expanduser().is_file() for path in self.paths):
            raise ValueError(
                f"references={given} has no effect: the rows of path={self.paths[0]} have a column ref_rewards; leave "
                "it out"
            )

    @property
    def requires(self) -> list[Fact | Requirement]:
        """An algorithm that reads the rewards of the reference."""
        reason = "it has the rewards of the reference for every prompt"
        remedy = f"data=unpaired data.score={self.score}"
        return [Requirement(READS_REFERENCE_REWARDS, reason=reason, remedy=remedy), *super().requires]

    @property
    def provides(self) -> list[Fact | Offer]:
        """The rewards of the reference, and what all data sets provide."""
        return [REFERENCE_REWARDS, *super().provides]

    def make_groups(self, episodes: Sequence[Episode]) -> Iterator[Group]:
        for episode in episodes:
            if not (rewards := self._rewards.get(identify_instance(episode))):
                raise ValueError(
                    f"references={self.references} has no episode of {episode.task_name}, instance seed "
                    f"{episode.instance_seed}; collect it with the env, first and episodes of path={self.paths[0]}"
                )
            yield [add_reference_rewards(episode, rewards)]

    def read_group(self, row: Mapping[str, Any], reader: Reader) -> Group:
        opening, replies = read_dialogue(row, "completion")
        given = row.get("ref_rewards")
        if not isinstance(given, list) or not given:
            raise BadRow("no_references", "column ref_rewards must be a list of rewards of the reference")
        rewards = [read_number({"ref_rewards": reward}, "ref_rewards") for reward in given]
        episode = set_return(reader.make_episode(opening, replies), read_number(row, "score"))
        return [add_reference_rewards(episode, rewards)]

    @cached_property
    def _rewards(self) -> Mapping[Instance, Sequence[float]]:
        """The rewards of the reference by prompt."""
        if self.references is None:
            raise ValueError(
                f"references=null: path={self.paths[0]} holds episodes; name a folder of lit-agentrl collect in which "
                "the reference played the same tasks"
            )
        folder = open_answers("references", self.references)
        if "continuations" in folder.described:
            raise ValueError(
                f"references={self.references} has labels of turns and no rewards; collect it without continuations"
            )
        rewards: dict[Instance, list[float]] = {}
        for episode in folder.read():
            if not episode.failed and episode.turns:
                is_success = self.score == "success"
                reward = float(episode.success) if is_success else episode.training_return
                rewards.setdefault(identify_instance(episode), []).append(reward)
        return rewards


def reference_quantile(
    *,
    return_B: Tensor,
    ref_quantile_B: Tensor,
    ref_count_B: Tensor,
    is_action_BT: Tensor,
    floored: bool = False,
) -> Advantage:
    """Return the quantile of a reward among the reference's rewards: QRPO, arXiv 2507.08068.

    ``q_i = 1/n sum_j 1[S_j <= R_i]`` over the rewards ``S_1, ..., S_n`` of reference samples of the prompt.  For
    samples of the reference, q is uniformly distributed if no two rewards are equal; ``Z = E_ref exp(q / beta)`` of
    `qrpo_loss` is then known.

    Example: for S = (0.1, 0.5, 0.9, 0.2), R = 0.5 gives q = 0.75, and R = 0 gives q = 0, or 0.25 with ``floored``.

    Args:
        return_B: ``R_i``, in reward units; a trajectory with a NaN return gets 0.
        ref_quantile_B: ``q_i``, in [0, 1], which the data set computes.
        ref_count_B: n, the number of reference samples of the prompt, >= 1.
        is_action_BT: sampled tokens.
        floored: whether to return at least ``1/n``, for ``transform=log``, which is infinite at 0.

    Returns:
        ``q_i`` at each sampled token, without gradient.

    Raises:
        ValueError: ``floored`` is not true or false, or shapes disagree.
    """
    require(isinstance(floored, bool), "floored", floored, "true or false")
    check_shapes(return_B=return_B, ref_quantile_B=ref_quantile_B, ref_count_B=ref_count_B)
    value_B = torch.maximum(ref_quantile_B, 1 / ref_count_B) if floored else ref_quantile_B
    value_B = torch.where(return_B.isnan(), torch.zeros_like(value_B), value_B)
    return Advantage(broadcast_to_actions(value_B.to(return_B.dtype), is_action_BT))
