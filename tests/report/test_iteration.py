"""What stops all ranks alike."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from lit_agentrl.checks import NotFinite
from lit_agentrl.episode import EndReason, Episode, Turn
from lit_agentrl.report import iteration
from lit_agentrl.report.iteration import stop_if_failing

TURN = Turn(
    observation="", prefix_tokens=[1], prefix_segments=[0], reply_tokens=[2, 3], reply_segments=[4, 4],
    reply_logps=[-0.1, -0.2], reply_entropies=[0.0, 0.0], policy_version=3,
)  # fmt: skip
GOOD = Episode(0, 0, 0, 0, "bandit", 7, turns=[TURN], end=EndReason.SUCCESS)


def test_a_failure_without_a_text_is_no_game_played() -> None:
    lost = replace(GOOD, end=EndReason.ERROR, turns=[])
    won = replace(GOOD, success=True)
    episodes = [won, lost, replace(won, task=1), replace(lost, task=2)]
    success = iteration._compute_success_by_game(episodes, ["a", "b", "c"])
    assert success == {"rollout/a/success": 1.0, "rollout/b/success": 1.0}


def broken(value: float, version: int) -> Episode:
    return replace(GOOD, turns=[TURN, replace(TURN, reply_logps=[-0.1, value], policy_version=version)])


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_log_probs_that_are_not_finite_stop_the_run(value: float) -> None:
    stop_if_failing([GOOD], 0.0)
    with pytest.raises(
        NotFinite, match=r"logits that are not finite, with its weights after 4 optimizer"
    ) as stop:
        stop_if_failing([GOOD, broken(value, 5), broken(value, 4)], 0.0)
    assert stop.value.version == 4


def test_a_rank_whose_log_probs_are_finite_stops_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    other = iteration._RankReport(1, 0, 1, "", iteration._find_broken_version([broken(math.nan, 6)]))
    monkeypatch.setattr(iteration, "gather_objects", lambda own: [*own, other])
    with pytest.raises(NotFinite, match="after 6 optimizer steps"):
        stop_if_failing([GOOD], 0.0)
