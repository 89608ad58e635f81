"""Episode statistics on hand-made episodes."""

from __future__ import annotations

import pytest

from lit_agentrl.episode import EndReason, Episode, FinishReason, Turn
from lit_agentrl.report.episodes import EpisodeMetrics, compute_evaluation_row
from lit_agentrl.report.iteration import gather_outcomes


def episode(group, rewards, *, end=EndReason.TURN_LIMIT, tokens=(1, 2, 3), valid=True, entropy=0.5):
    turns = [
        Turn(
            observation="", prefix_tokens=[9], prefix_segments=[0], reply_tokens=list(tokens),
            reply_entropies=[entropy] * len(tokens), reward=reward, is_valid=valid, actions=["Up"],
        )
        for reward in rewards
    ]  # fmt: skip
    return Episode(0, group, 0, 0, "g", 0, turns=turns, end=end, success=end is EndReason.SUCCESS)


def test_by_hand():
    metrics = EpisodeMetrics()
    episodes = [
        episode(0, [1.0, 2.0], end=EndReason.SUCCESS),
        episode(0, [1.0], tokens=(1, 2, 3, 1, 2), valid=False, entropy=1.0),
        episode(1, [4.0], end=EndReason.CONTEXT_LIMIT),
        episode(1, [4.0]),
        episode(2, [99.0], end=EndReason.ERROR),
    ]
    episodes[1].num_broken, episodes[4].num_broken = 2, 1
    episodes[0].turns[0].finish = FinishReason.LENGTH
    metrics.update([each.outcome for each in episodes])
    metrics.update_texts(episodes)
    result = metrics.compute()
    assert result["episodes"] == 4 and result["failed"] == 1 and result["broken_markers"] == 3
    assert result["success"] == 0.25 and result["truncated_share"] == 0.25
    assert result["return"] == pytest.approx((3 + 1 + 4 + 4) / 4)
    assert result["turns"] == 1.25 and result["actions"] == 1.25
    assert result["invalid_share"] == result["cut_share"] == pytest.approx(1 / 5)
    assert result["reply_tokens"] == pytest.approx((4 * 3 + 5) / 5)
    assert result["entropy"] == pytest.approx((12 * 0.5 + 5 * 1.0) / 17)
    assert result["return_std_within_group"] == pytest.approx((2**0.5 + 0) / 2)
    assert result["dead_group_share"] == 0.5
    assert result["distinct_2"] == pytest.approx(3 / 12)  # (1,2) (2,3) (3,1) of 4*2 + 4


def test_distinct_answers_and_counts_by_hand():
    episodes = [episode(0, [0.0] * 3), episode(0, [0.0] * 2), episode(1, [0.0]), episode(1, [0.0] * 2)]
    for turn, answer in zip(episodes[0].turns, ["a", "b", "a"], strict=True):
        turn.actions = [answer]
    for turn in episodes[3].turns:  # no valid replies, so no answers
        turn.is_valid = False
    episodes[0].turns[0].counts, episodes[0].turns[2].counts = {"faults": 1.0}, {"faults": 2.0, "asked": 0.0}
    episodes[1].turns[0].counts = {"faults": 0.0}
    metrics = EpisodeMetrics()
    metrics.update([each.outcome for each in episodes])
    result = metrics.compute()
    assert result["distinct_answers"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert result["count_faults"] == 1.5 and result["count_asked"] == 0.0
    row = compute_evaluation_row("val", {"g": metrics}, {})
    assert row["val/count_faults"] == 1.5 and row["val/distinct_answers"] == result["distinct_answers"]
    assert gather_outcomes(episodes)[0].counts == {"faults": 3.0, "asked": 0.0}


def test_outcomes_travel_as_numbers_and_come_back_in_the_order_of_one_process():
    episodes = [
        episode(2, [99.0, 0.1], end=EndReason.ERROR), episode(1, [0.1, 1 / 3], entropy=1 / 7), episode(0, []),
    ]  # fmt: skip
    episodes[0].error = "fell\nover \udcff"
    assert gather_outcomes(episodes) == [each.outcome for each in reversed(episodes)]
    assert type(gather_outcomes(episodes)[0].end) is EndReason and gather_outcomes([]) == []


def test_nothing_seen_leaves_keys_out():
    metrics = EpisodeMetrics()
    metrics.update([])
    assert metrics.compute() == {"episodes": 0.0, "failed": 0.0, "broken_markers": 0.0}


def test_markers_that_were_broken_up_stand_in_the_row_of_an_evaluation() -> None:
    class Counted:
        def __init__(self, broken: float) -> None:
            self.broken = broken

        def compute(self) -> dict[str, float]:
            return {"success": 1.0, "episodes": 4.0, "broken_markers": self.broken}

    metrics = {"a": Counted(2.0), "b": Counted(1.0)}
    row = compute_evaluation_row("val", metrics, {})  # type: ignore[arg-type]
    assert row["val/broken_markers"] == 3.0 and row["val/episodes"] == 8.0
    assert "val/broken_markers" not in compute_evaluation_row("val", {"a": Counted(0.0)}, {})  # type: ignore[dict-item]
