"""Replay: which groups fail, what takes the place of their first episode, what is kept, and for how long."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from lit_agentrl.batch import StepBatch, TrajectoryBatch
from lit_agentrl.episode import EndReason, Episode, Source
from lit_agentrl.experimental import replay
from lit_agentrl.experimental.replay import Replay
from lit_agentrl.rl.policy import filters
from lit_agentrl.rollout.collector import Collector
from lit_agentrl.rollout.settings import RolloutSettings
from lit_agentrl.rollout.structures.base import Progress
from lit_agentrl.rollout.structures.refill import Refill
from tests.rollout.test_collector import LOSE, WIN, Player


def member(number: int, success: bool, *, group: int = 0, iteration: int = 0, seed: int = 7) -> Episode:
    end = EndReason.SUCCESS if success else EndReason.FAILURE
    return Episode(iteration, group, number, 0, "count", seed, end=end, success=success)


def progress(*episodes: Episode, iteration: int = 0) -> Progress:
    def never(wave: int) -> StepBatch:
        raise AssertionError

    return Progress(iteration, 1, len(episodes), 0, episodes, episodes, False, never)


def test_one_row_of_a_group_that_fails_is_a_success_of_its_instance() -> None:
    structure = Replay()
    first = progress(member(0, False), member(1, True))
    assert structure.train_on(first) == list(first.sampled)  # nothing is kept yet
    assert structure.learn(first) == {"replaced_share": (0, 1), "kept_instances": (1, 1)}
    fails = [member(m, False, group=5, iteration=1) for m in range(3)]
    other = [
        member(m, False, group=6, iteration=1, seed=8) for m in range(3)
    ]  # of which none was ever solved
    one = [member(m, m == 2, group=7, iteration=1) for m in range(3)]  # and here one member solves it
    second = progress(*fails, *other, *one, iteration=1)
    row, *rest = structure.train_on(second)
    assert rest == [*fails[1:], *other, *one]
    assert (row.source, row.success, row.group, row.member, row.iteration) == (Source.REPLAY, True, 5, 0, 1)
    assert structure.learn(second)["replaced_share"] == (1, 3)


def test_what_failed_by_itself_is_neither_counted_nor_replaced() -> None:
    structure = Replay()
    structure.learn(progress(member(0, True)))
    broken = replace(member(0, False, group=1), end=EndReason.ERROR)
    found = structure.train_on(progress(broken, member(1, False, group=1)))
    assert found[0] == broken and found[1].source is Source.REPLAY


def test_the_last_ones_are_kept_and_the_oldest_instance_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    structure = Replay(size=2, instances=2)
    for seed, groups in ((1, (0, 1, 2)), (2, (3,)), (1, (4,)), (3, (5,))):
        structure.learn(progress(*(member(0, True, group=group, seed=seed) for group in groups)))
    kept = structure.state_dict()
    assert {name: [e["group"] for e in of] for name, of in kept.items()} == {
        "count/1": [2, 4],
        "count/3": [5],
    }
    # whichever rank played them, each keeps the same, in the same order
    both = [member(0, True, group=group) for group in (9, 8)]
    states = []
    for own in ([both[0]], [both[1]]):
        monkeypatch.setattr(
            replay, "gather_objects", lambda items, own=own: [*own, *(e for e in both if e not in own)]
        )
        structure = Replay()
        structure.learn(progress(*own))
        states.append(structure.state_dict())
    assert states[0] == states[1] and [e["group"] for e in states[0]["count/7"]] == [8, 9]


def collector(structure: Any, script: Callable[..., Any]) -> tuple[Collector, Player]:
    player = Player(script)
    settings = RolloutSettings(prompts=1, members=2, max_context_tokens=300, max_failed_share=1.0)

    def none(iteration: int, wave: int) -> StepBatch:
        raise AssertionError("nothing asks for more")

    made = Collector(
        player.rules, settings, structure=structure, select_groups=filters.keep_all, further_prompts=none
    )
    return made, player


def step(made: Collector, player: Player, iteration: int) -> tuple[StepBatch, dict[str, float]]:
    batch = StepBatch(iteration, seed_P=[7], task_P=[0], group_P=[iteration])
    return batch, made.collect(batch, player, device=torch.device("cpu"))


def assert_equal(one: TrajectoryBatch | None, other: TrajectoryBatch | None) -> None:
    assert one is not None and other is not None
    for a, b in zip(one.to_dict().values(), other.to_dict().values(), strict=True):
        assert torch.equal(a.nan_to_num(), b.nan_to_num())  # there are no baselines


def later(spec: Any, turn: int) -> str:
    return WIN if spec.iteration == 0 and spec.member else LOSE


def test_a_replayed_row_is_the_row_that_was_played() -> None:
    made, player = collector(Replay(), later)
    played = step(made, player, 0)[0].trajectories
    file = io.BytesIO()
    torch.save(made.state_dict(), file)
    file.seek(0)
    again, fresh = collector(Replay(), later)
    again.load_state_dict(torch.load(file, weights_only=True))
    (batch, row), (resumed, resumed_row) = step(made, player, 1), step(again, fresh, 1)
    found, other = batch.trajectories, resumed.trajectories
    assert played is not None and found is not None
    assert found.source_B.tolist() == [1, 0] and found.group_B.tolist() == [1, 1]
    width = int(found.is_real_BT[0].sum())
    for name in ("tokens_BT", "is_action_BT", "sampler_logp_BT", "reward_BT", "policy_version_BT"):
        assert torch.equal(getattr(found, name)[0, :width], getattr(played, name)[1, :width])
    assert (row["structure/replaced_share"], row["structure/kept_instances"]) == (1.0, 1.0)
    assert row["rollout/success"] == 0.0  # what was played, not what is trained on
    assert_equal(found, other)
    assert made.state_dict() == again.state_dict() and row.keys() == resumed_row.keys()


def test_without_a_group_that_fails_nothing_changes() -> None:
    batches = []
    for structure in (Refill(), Replay()):
        made, player = collector(structure, lambda spec, turn: WIN if spec.member else LOSE)
        batches.append([step(made, player, iteration)[0].trajectories for iteration in range(2)])
    for one, other in zip(*batches, strict=True):
        assert_equal(one, other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size=0 must be"),
        ({"instances": 0}, "instances=0 must be"),
        ({"max_mean": 0}, "max_mean=0 must be"),
        ({"max_std": 0}, "max_std=0 must be"),
        ({"min_score": 1}, "min_score=1 must be"),
    ],
)
def test_values_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Replay(**options)


def test_a_state_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="this is not an episode: KeyError"):
        Replay().load_state_dict({"count/7": [{"turns": []}]})
