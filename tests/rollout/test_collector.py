"""Collecting without Lightning: which episodes a structure plays, what is selected, what is packed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from lit_agentrl.batch import StepBatch
from lit_agentrl.engines.scripted import ScriptedEngine
from lit_agentrl.envs.base import Task
from lit_agentrl.rl.policy import filters
from lit_agentrl.rollout.collector import Collector
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import EpisodeSpec, Scheduler, Wave
from lit_agentrl.rollout.settings import RolloutSettings
from lit_agentrl.rollout.structures.base import Progress, Structure, make_specs
from lit_agentrl.rollout.structures.greedy import Greedy
from lit_agentrl.rollout.structures.independent import Independent
from lit_agentrl.rollout.structures.refill import Refill
from lit_agentrl.rollout.workers.base import Played
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.prompts import Prompt
from tests.conftest import nano_tokenizer
from tests.rollout.conftest import Count, reply

WIN, LOSE = reply("Up", "Up", "Up"), reply("Down")


def prompts(iteration: int, wave: int, count: int = 2) -> StepBatch:
    groups = [100 * wave + 10 * iteration + p for p in range(count)]
    return StepBatch(iteration, seed_P=groups, task_P=[0] * count, group_P=groups, wave=wave)


class Player:
    """Plays waves by script; remembers them."""

    def __init__(self, script: Any) -> None:
        tokenizer = nano_tokenizer()
        engine = ScriptedEngine(
            lambda e, k: script(self.waves[-1].specs[e], k),
            encode=lambda text: tokenizer(text, add_special_tokens=False)["input_ids"], capacity=2,
        )  # fmt: skip
        task = Task(name="count", game=Count, max_turns=4, max_actions=8, max_actions_per_turn=3)
        self.rules = Rules(
            tasks=[task], prompt=Prompt("compact"), chat=ChatRenderer(tokenizer), engine=lambda **_: engine
        )
        self.engine, self.waves = engine, list[Wave]()

    def __call__(self, wave: Wave) -> Played:
        self.waves.append(wave)
        self.engine.load(None, 0)
        return Played(Scheduler(self.rules, self.engine).play(wave))


def collect_group(player: Player, structure: Structure) -> tuple[StepBatch, dict[str, float]]:
    """Collect a group of two with a structure; no prompts follow."""
    made = Collector(
        player.rules, RolloutSettings(prompts=1, members=2, max_context_tokens=400), structure=structure,
        select_groups=filters.keep_all,
        further_prompts=lambda iteration, wave: StepBatch(iteration, [], [], [], wave=wave),
    )  # fmt: skip
    batch = StepBatch(0, seed_P=[7], task_P=[0], group_P=[0])
    return batch, made.collect(batch, player, device=torch.device("cpu"))


def collect(
    structure: Structure, select: Any = filters.keep_all, script: Any = lambda spec, k: WIN, members: int = 2
) -> tuple[StepBatch, dict[str, float], list[Wave]]:
    player = Player(script)
    settings = RolloutSettings(prompts=2, members=members, max_context_tokens=300, max_failed_share=1.0)
    made = Collector(
        player.rules, settings, structure=structure, select_groups=select, further_prompts=prompts
    )
    batch = prompts(3, 0)
    return batch, made.collect(batch, player, device=torch.device("cpu")), player.waves


def test_what_is_played_is_packed() -> None:
    batch, row, waves = collect(Independent())
    assert len(waves) == 1 and len(batch.episodes) == 4 and batch.trajectories is not None
    assert batch.trajectories.group_B.tolist() == [30, 30, 31, 31]
    assert torch.isnan(batch.trajectories.baseline_B).all()
    assert (row["rollout/waves"], row["rollout/success"], batch.num_kept_groups) == (1.0, 1.0, 2)
    assert "time/ahead" not in row


def test_only_the_groups_that_are_kept_are_packed() -> None:
    script = lambda spec, k: LOSE if spec.group == 31 and spec.member else WIN  # noqa: E731
    batch, _, _ = collect(Independent(), filters.reject_uniform, script)
    assert batch.trajectories is not None and set(batch.trajectories.group_B.tolist()) == {31}
    assert len(batch.episodes) == 4 and (batch.num_groups, batch.num_kept_groups) == (2, 1)


def test_the_greedy_sibling_is_a_baseline_and_is_not_trained_on() -> None:
    # greedy episodes are played last, as further turns of the script
    batch, row, waves = collect(Greedy(), script=lambda spec, k: LOSE if k else WIN)
    assert [spec.greedy for spec in waves[0].specs] == [False] * 4 + [True] * 2
    assert len(batch.episodes) == 4 and len(batch.greedy_episodes) == 2
    assert batch.trajectories is not None and batch.trajectories.baseline_B.tolist() == [-5.0] * 4
    assert row["rollout/greedy_return"] == -5.0 and row["rollout/success"] == 1.0


@pytest.mark.parametrize(("structure", "greedy"), [(Refill(3), 0), (Greedy(3), 2)])
def test_waves_follow_until_the_filter_has_enough(structure: Structure, greedy: int) -> None:
    """Groups are uniform in the first wave and mixed in the second."""
    script = lambda spec, k: LOSE if spec.wave and spec.member else WIN  # noqa: E731
    select = partial(filters.dynamic_sampling, target=2)
    batch, row, waves = collect(structure, select, script)
    assert [wave.number for wave in waves] == [0, 1] and row["rollout/waves"] == 2.0
    assert {spec.wave for spec in waves[1].specs} == {1}
    assert len(batch.greedy_episodes) == 2 * greedy and batch.num_groups == 4
    assert batch.trajectories is not None and set(batch.trajectories.group_B.tolist()) == {130, 131}
    # at most max_waves, and what there is by then is trained on
    script = lambda spec, k: LOSE if spec.group == 130 and spec.member else WIN  # noqa: E731
    batch, row, waves = collect(structure, select, script)
    assert row["rollout/waves"] == 3.0 and batch.num_kept_groups == 1


def test_more_prompts_are_drawn_for_rows_that_drop_a_part() -> None:
    assert [Refill().prompts(3, factor) for factor in (1.0, 2.0, 1 / (1 - 0.4), 1 / (1 - 2 / 3))] == [
        3,
        6,
        5,
        9,
    ]
    assert Independent().prompts(3, 1.0) == 3 and Greedy().prompts(3, 2.0) == 6


def test_a_filter_that_asks_in_vain_is_not_left_alone() -> None:
    with pytest.raises(ValueError, match=r"Independent plays none: set algo/structure=refill"):
        collect(Independent(), partial(filters.dynamic_sampling, target=2))


@pytest.mark.parametrize("value", [0, 129, True, "many"])
def test_max_waves_out_of_range(value: Any) -> None:
    with pytest.raises(ValueError, match=r"max_waves=.* must be a whole number from 1 to 128"):
        Refill(value)


class Endless(Structure):
    """Learns how many waves it has asked for."""

    seen = 0

    def after_wave(self, progress: Progress) -> Sequence[EpisodeSpec]:
        self.seen += 1
        return make_specs(progress.draw(progress.waves), 1)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: Any) -> None:
        self.seen = state["seen"]


def test_a_structure_that_never_ends_is_ended() -> None:
    with pytest.raises(ValueError, match=r"algo\.structure asks for more than 128 waves"):
        collect(Endless())


class Raising(Structure):
    """Fails after the first wave."""

    def after_wave(self, progress: Progress) -> Sequence[EpisodeSpec]:
        raise KeyError("colour")


def test_a_structure_that_raises_is_named() -> None:
    with pytest.raises(ValueError, match=r"^algo\.structure: KeyError: 'colour'"):
        collect(Raising())


class Elsewhere(Structure):
    """Names its episodes by another iteration, or another wave."""

    def __init__(self, **named: int) -> None:
        self._named = named

    def plan(self, prompts: StepBatch, members: int) -> list[EpisodeSpec]:
        return [replace(spec, **self._named) for spec in make_specs(prompts, members)]  # type: ignore[arg-type]


@pytest.mark.parametrize("named", [{"iteration": 2}, {"wave": 1}])
def test_an_episode_is_named_by_the_wave_it_is_played_in(named: dict[str, int]) -> None:
    with pytest.raises(
        ValueError, match=r"Elsewhere plays an episode of .*, in iteration 3, wave 0, and its draws"
    ):
        collect(Elsewhere(**named))


def test_what_a_structure_has_learnt_is_kept() -> None:
    rules, settings = Player(WIN).rules, RolloutSettings(prompts=1, members=1)

    def made(structure: Structure) -> Collector:
        return Collector(
            rules, settings, structure=structure, select_groups=filters.keep_all, further_prompts=prompts
        )

    first, second = Endless(), Endless()
    first.seen = 5
    made(second).load_state_dict(made(first).state_dict())
    assert second.seen == 5 and made(Independent()).state_dict() == {}
    with pytest.raises(ValueError, match="no episode of this iteration can be trained on"):
        collect(Independent(), script=lambda spec, k: OSError("away"))
