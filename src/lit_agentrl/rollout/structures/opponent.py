"""Some members of each group by a second player: the reference, or a mixture of policy and reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lit_agentrl.batch import StepBatch
from lit_agentrl.checks import require, require_number, require_whole
from lit_agentrl.episode import Episode, Source
from lit_agentrl.facts import OPPONENT, PLAYED, PLAYED_HERE, PLAYS_REFERENCE, READS_OPPONENT, READS_REFERENCE
from lit_agentrl.requirements import Requirement
from lit_agentrl.rollout.branching import Branching
from lit_agentrl.rollout.scheduler import EpisodeSpec
from lit_agentrl.rollout.structures.base import SoFar, by_group
from lit_agentrl.rollout.structures.refill import Refill


class Opponent(Refill):
    """The last members of each group are played by ``policy^(1 - mix) reference^mix``, token by token.

    With 1 it is the reference, as in XPO (arXiv 2405.21046); between 0 and 1 a geometric mixture, as in Nash-MD (arXiv
    2312.00886).  Episodes meet the same instance as those of the policy, and keep the log-probs of who sampled them.
    Evaluations are played by the policy alone.  Groups are refilled as by `Refill`.

    Args:
        mix: share of the reference, from 0 to 1.
        opponents: members of a group that the opponent plays; None: half of them, the smaller half.
        max_waves: see `Refill`.

    Raises:
        ValueError: a value out of range.
    """

    requires = frozenset(
        {
            Requirement(READS_OPPONENT, reason="others would take them for the policy's"),
            READS_REFERENCE,
            PLAYS_REFERENCE,
            PLAYED_HERE,
            PLAYED,
        }
    )
    provides = Refill.provides | {OPPONENT}
    curves = ("opponent_return", "opponent_success", "win_rate")

    def __init__(
        self, *, mix: float = 1.0, opponents: int | None = None, max_waves: int | None = None
    ) -> None:
        require_number("mix", mix, "from 0, the policy, to 1, the reference", lambda value: 0 <= value <= 1)
        if opponents is not None:
            require_whole("opponents", opponents, 1, beside=", or null for half of rollout.members")
        self.opponent, self._opponents = float(mix), opponents
        super().__init__(max_waves)

    def branching(self, members: int) -> Branching | None:
        """None; it is checked here that both have an episode.

        Raises:
            ValueError: one of them has none.
        """
        require(
            1 <= self._number(members) < members, "opponents", self._opponents,
            f"at least 1 and fewer than rollout.members={members}, since both play; set rollout.members=2 or more",
        )  # fmt: skip
        return None

    def plan(self, prompts: StepBatch, members: int) -> list[EpisodeSpec]:
        first = members - self._number(members)
        return [replace(spec, opponent=spec.member >= first) for spec in super().plan(prompts, members)]

    def learn(self, so_far: SoFar) -> Mapping[str, tuple[float, float]]:
        """Points and success of opponents, and how often the policy earns more than an opponent of its group."""
        wins, duels = 0.0, 0
        for group in by_group(so_far.sampled).values():
            own, others = (
                [e.training_return for e in group if _is_opponent(e) == side] for side in (False, True)
            )
            wins += sum(float(a > b) + 0.5 * float(a == b) for a in own for b in others)
            duels += len(own) * len(others)
        played = [e for e in so_far.sampled if _is_opponent(e) and not e.failed]
        return {
            "opponent_return": (sum(e.total_reward for e in played), len(played)),
            "opponent_success": (sum(e.success for e in played), len(played)),
            "win_rate": (wins, duels),
        }

    def _number(self, members: int) -> int:
        return members // 2 if self._opponents is None else self._opponents


def _is_opponent(episode: Episode) -> bool:
    return episode.source is Source.OPPONENT
