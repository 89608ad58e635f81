"""Hints: what of a solution is told, to which groups, and which episodes are trained on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch

from lit_agentrl.batch import StepBatch
from lit_agentrl.build.structure import check_trained
from lit_agentrl.envs.base import Task
from lit_agentrl.episode import Source
from lit_agentrl.experimental.hint import Hint, HintHook, cut_solution
from lit_agentrl.rl.policy import filters
from lit_agentrl.rollout.collector import Collector
from lit_agentrl.rollout.hooks import NO_HOOK, Moment, write_opening
from lit_agentrl.rollout.scheduler import EpisodeSpec
from lit_agentrl.rollout.settings import RolloutSettings
from lit_agentrl.rollout.structures.base import Structure
from lit_agentrl.rollout.structures.refill import Refill
from lit_agentrl.text.prompts import Prompt
from tests.build.test_structure import built
from tests.experimental.test_replay import assert_equal
from tests.rollout.conftest import Count
from tests.rollout.test_collector import LOSE, WIN, Player


def share(spec: EpisodeSpec) -> float:
    return getattr(spec.extra, "share", 0.0)


class Solved(Count):
    """Knows that Up solves it."""

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        return ["Up"] * min(horizon, self.goal - self.count)


def play(
    structure: Structure, script: Any, *, game: type[Count] = Solved, select: Any = filters.keep_all
) -> tuple[StepBatch, dict[str, float], Player]:
    player = Player(script)
    object.__setattr__(
        player.rules, "tasks", [Task("count", game, max_turns=4, max_actions=8, max_actions_per_turn=3)]
    )
    settings = RolloutSettings(prompts=2, members=2, max_context_tokens=300, max_failed_share=1.0)

    def further(iteration: int, wave: int) -> StepBatch:
        return StepBatch(iteration, [50 + wave], [0], [100 * wave], wave=wave)

    made = Collector(
        player.rules, settings, structure=structure, select_groups=select, further_prompts=further
    )
    batch = StepBatch(3, seed_P=[30, 31], task_P=[0, 0], group_P=[30, 31])
    return batch, made.collect(batch, player, device=torch.device("cpu")), player


@pytest.mark.parametrize(
    ("share", "kind", "found", "told"),
    [
        (0.25, "names", '["Up", "Left", "Down", "Down", "Up", "Up"]', "Up || Left"),  # round(1.5) = 2
        (0.75, "names", '["Up", "Left", "Down", "Down"]', "Up || Left || Down"),
        (0.25, "names", '["Up"]', "Up"),  # at least one
        (0.5, "text", '["the answer is 42"]', "the answ"),
        (0.5, "tools", '["{1}", "{2}"]', "{1}"),
    ],
)
def test_the_beginning_of_a_solution(share: float, kind: Any, found: str, told: str) -> None:
    assert cut_solution(found, share, kind=kind) == told


def test_a_hint_stands_at_the_end_of_the_opening() -> None:
    given: dict[str, Any] = {
        "name": "g", "rules": "r", "actions": Solved().actions(), "observation": "P 0", "max_turns": 4,
        "max_actions": 8, "max_actions_per_turn": 3,
    }  # fmt: skip
    for style in ("compact", "full"):
        moment = Moment(Prompt(style), given["actions"], "P 0", answer='["Up", "Up"]')  # type: ignore[arg-type]
        plain, told = (write_opening(hook, moment, **given) for hook in (NO_HOOK, HintHook(1.0)))
        assert told[:-1] == plain[:-1] and told[-1]["content"].startswith(plain[-1]["content"] + "\n")
        assert told[-1]["content"].endswith("Up || Up")


def test_a_group_that_fails_is_told_more_until_it_is_solved() -> None:
    """Group 30 is solved with two thirds of the solution, group 31 without any."""

    def script(spec: Any, turn: int) -> str:
        return WIN if spec.group == 31 or (share(spec) >= 0.5 and spec.member % 2) else LOSE

    batch, row, player = play(Hint(), script)
    assert [[share(spec) for spec in wave.specs] for wave in player.waves] == [
        [0.0] * 4,
        [0.25] * 2,
        [0.5] * 2,
    ]
    assert [spec.member for wave in player.waves[1:] for spec in wave.specs] == [2, 3, 4, 5]
    hinted = [episode for episode in batch.episodes if episode.hint]
    assert [e.opening[0]["content"].rpartition("go ")[2] for e in hinted] == ["Up"] * 2 + ["Up || Up"] * 2
    found = batch.trajectories
    assert found is not None and found.member_B.tolist() == [0, 1, 4, 5]
    assert sorted(zip(found.group_B.tolist(), found.source_B.tolist(), strict=True)) == [
        (30, Source.HINT), (30, Source.HINT), (31, Source.ROLLOUT), (31, Source.ROLLOUT),
    ]  # fmt: skip
    measured = [row[f"structure/{name}"] for name in ("hinted_share", "hint_solved_share", "hint")]
    assert measured == [0.5, 1.0, 0.5]
    assert (row["rollout/success"], row["rollout/episodes"], row["rollout/waves"]) == (0.5, 4.0, 3.0)


def test_the_last_try_is_trained_on_also_where_nobody_solves_it() -> None:
    batch, row, player = play(Hint(shares=[0.5, 1.0]), lambda spec, turn: LOSE)
    assert batch.trajectories is not None and set(batch.trajectories.member_B.tolist()) == {4, 5}
    assert len(player.waves) == 3 and row["structure/hint_solved_share"] == 0.0


def test_further_prompts_come_once_all_hints_are_given() -> None:
    def script(spec: Any, turn: int) -> str:
        return WIN if spec.member % 2 and (share(spec) or spec.wave) else LOSE

    select = partial(filters.dynamic_sampling, target=3)
    _, _, player = play(Hint(), script, select=select)
    assert [(share(wave.specs[0]), len(wave.specs)) for wave in player.waves] == [
        (0.0, 4),
        (0.25, 4),
        (0.0, 2),
    ]


@pytest.mark.parametrize(
    ("structure", "script"),
    [(Hint(), lambda spec, turn: WIN if spec.member else LOSE), (Hint(start=4), lambda spec, turn: LOSE)],
)
def test_where_no_hint_is_given_nothing_changes(structure: Hint, script: Any) -> None:
    one, other = (play(each, script)[0].trajectories for each in (Refill(), structure))
    assert_equal(one, other)


def test_an_instance_without_a_solution_fails_by_itself() -> None:
    batch, row, _ = play(Hint(shares=[0.5]), lambda spec, turn: LOSE if spec.group == 30 else WIN, game=Count)
    failed = [episode for episode in batch.episodes if episode.failed]
    assert len(failed) == 2 and failed[0].error == "the game knows no solution of this task for a hint"


@pytest.mark.parametrize("shares", [[], [0.5, 0.25], [0.0], [1.5], "half", [True, None]])
def test_shares_that_do_not_grow(shares: Any) -> None:
    with pytest.raises(ValueError, match="shares=.* must be growing numbers above 0"):
        Hint(shares=shares)


@pytest.mark.slow
def test_a_game_that_knows_no_solution_is_refused() -> None:
    games = built().games
    check_trained(Hint(), games)  # the bandit knows its better arm
    tasks: Sequence[Task] = [Task("count", Count)]
    games = type(games)(**{**vars(games), "tasks": tasks})
    with pytest.raises(
        ValueError, match=r"^algo\.structure=Hint.*: it knows no solution|^game count: it knows no sol"
    ):
        check_trained(Hint(), games)
