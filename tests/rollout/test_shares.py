"""Shares: whoever plays them, how many of them there are and how often they die, what is played is the same."""

from __future__ import annotations

import copy
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from lit_agentrl.distributed import StrategyHooks
from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.models.policy import get_named_weights
from lit_agentrl.rollout.scheduler import EpisodeSpec, Scheduler, Wave
from lit_agentrl.rollout.sync import WeightSync
from lit_agentrl.rollout.workers.base import Played, play_wave
from lit_agentrl.rollout.workers.inline import LocalPlayer
from lit_agentrl.rollout.workers.opener import LostWorker, PlayingError
from lit_agentrl.rollout.workers.pool import Pool
from lit_agentrl.rollout.workers.shares import Share, cut_wave, join_shares, play_share
from lit_agentrl.rollout.workers.weights import SharedWeights
from tests.conftest import load_task_yaml, tiny_network
from tests.rollout.test_process import rules

pytestmark = pytest.mark.usefixtures("one_thread")

TASK = replace(load_task_yaml("frozen_lake"), max_turns=2)
RULES = replace(rules(), tasks=[TASK], max_context_tokens=120)
PARAMS = SamplingParams(max_reply_tokens=4, max_context_tokens=120)


def wave(groups: int = 5, members: int = 2, *, iteration: int = 0, number: int = 0) -> Wave:
    """Prompts of several members; each second one has a greedy sibling, at the end as structures have it."""
    specs = [EpisodeSpec(iteration, g, m, 0, 11 + g, number) for g in range(groups) for m in range(members)]
    greedy = [EpisodeSpec(iteration, g, 0, 0, 11 + g, number, greedy=True) for g in range(0, groups, 2)]
    return Wave("train", iteration, PARAMS, (*specs, *greedy), number)


class WorkerOpener:
    """Workers of this process, which take their time; each second share is lost ``deaths`` times."""

    name = "fake"

    def __init__(self, generator: random.Random, *, deaths: int = 0) -> None:
        self.generator, self.deaths = generator, deaths
        self.network = tiny_network(seed=99)
        self.weights = SharedWeights(self.network)
        self.one_at_a_time = threading.Lock()  # torch's generator belongs to the process
        self.opened = 0
        self.lost: Counter[int] = Counter()

    def open(self, number: int) -> WorkerHandle:
        self.opened += 1
        return WorkerHandle(self, number)

    def write(self, weights: Mapping[str, torch.Tensor]) -> None:
        self.weights.write(weights)

    def differing(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return self.weights.differing(weights)

    def close(self) -> None:
        self.lost.clear()


class WorkerHandle:
    def __init__(self, opener: WorkerOpener, number: int) -> None:
        self.opener, self.number, self.is_alive, self.progress = opener, number, True, 0
        self.engine = RULES.open_engine(copy.deepcopy(opener.network))
        self.scheduler = Scheduler(RULES, self.engine)
        self.sync = WeightSync(self.engine, opener.network, RULES, torch.no_grad)
        self.loaded: int | None = None
        self.why = ""

    def play(self, share: Share, load: int, version: int) -> Played:
        opener = self.opener
        time.sleep(opener.generator.uniform(0, 0.004))
        with opener.one_at_a_time:
            if self.loaded != load:
                self.sync.load(opener.weights.get_views(), version)
                self.loaded = load
            played = play_share(share, self.sync, self.scheduler, version)
        if self.why or (
            share.number % 2 == 0 and opener.lost[share.key] < opener.deaths
        ):  # with its work done
            opener.lost[share.key] += 1
            raise LostWorker(self.why or "died")
        return replace(played, seconds=0.1)

    def is_ready(self, seconds: float) -> bool:
        return True

    def end(self) -> None:
        self.why = "was ended"

    def kill(self, why: str) -> None:
        self.why = why

    def close(self) -> None:
        self.scheduler.close()


def pool(opener: Any, *, count: int, share: int | None = 2, **options: Any) -> Pool:
    opener.num_workers = count
    given = {
        "patience": 60.0, "start_patience": 60.0, "attempts": 1000, "threads": 1, "seed": RULES.seed, **options
    }  # fmt: skip
    return Pool(opener, share=share, **given)


def here(*waves: Wave, share: int = 2) -> list[Played]:
    player = LocalPlayer(RULES, tiny_network(), torch.no_grad, StrategyHooks())
    return [player.play_shares(each, 7, share, 1) for each in waves]


def test_cut_by_number_alone() -> None:
    whole = wave()
    shares = cut_wave(whole, 2, seed=3)
    assert [[spec.group for spec in share.wave.specs] for share in shares] == [
        [0, 0, 1, 1, 0], [2, 2, 3, 3, 2], [4, 4, 4]
    ]  # fmt: skip
    assert [share.number for share in shares] == [0, 1, 2] and len({share.key for share in shares}) == 3
    # the share of a group is the same wherever it stands among the groups of a rank
    of_a_rank = replace(whole, specs=tuple(spec for spec in whole.specs if spec.group >= 2))
    moved = cut_wave(of_a_rank, 2, seed=3)
    assert [(each.wave, each.key) for each in moved] == [(each.wave, each.key) for each in shares[1:]]
    backwards = {share.number: Played(list(share.wave.specs)) for share in reversed(shares)}  # type: ignore[arg-type]
    assert join_shares(whole, shares, backwards).episodes == list(whole.specs)
    assert cut_wave(replace(whole, specs=()), 2, seed=3) == []
    (all_of_it,) = cut_wave(whole, None, seed=3)
    assert all_of_it.wave is whole


@pytest.mark.slow
@pytest.mark.sweep
def test_any_number_of_workers_dealt_and_lost_at_random_play_the_same() -> None:
    first, second = wave(4, 1), wave(2, 1, iteration=1, number=1)
    expected = [played.episodes for played in here(first, second, share=1)]
    weights = get_named_weights(tiny_network())
    for count, deaths, seed in ((1, 0, 0), (2, 1, 1), (5, 2, 2)):
        opener = WorkerOpener(random.Random(seed), deaths=deaths)
        made = pool(opener, count=count, share=1)
        made.load(weights, 7)
        played = [play_wave(made, first), play_wave(made, second)]
        assert [each.episodes for each in played] == expected
        lost = sum(each.counts["attempts"] - each.counts["shares"] for each in played)
        assert sum(each.counts["restarts"] for each in played) == lost == 3 * deaths
        assert [each.counts["shares"] for each in played] == [4, 2]
        made.stop()
        assert not any(talk.is_alive() for talk in threading.enumerate() if talk.name.startswith("worker-"))
    assert {turn.policy_version for each in expected[0] for turn in each.turns} == {7}


def test_shares_leave_no_trace_in_torchs_generator_and_whole_waves_have_the_same_tokens() -> None:
    player = LocalPlayer(RULES, tiny_network(), torch.no_grad, StrategyHooks())
    torch.manual_seed(5)
    before = torch.get_rng_state()
    cut_up = player.play_shares(wave(), 7, 2, 1)
    assert torch.equal(torch.get_rng_state(), before)
    for one, other in zip(cut_up.episodes, player.play(wave(), 7).episodes, strict=True):
        assert [turn.reply_tokens.tolist() for turn in one.turns] == [
            t.reply_tokens.tolist() for t in other.turns
        ]


def test_the_same_episodes_are_not_lost_for_ever() -> None:
    made = pool(WorkerOpener(random.Random(0), deaths=9), count=2, attempts=3)
    made.load({}, 0)
    with pytest.raises(PlayingError, match=r"worker=fake\) died; these episodes were lost 3 times$"):
        play_wave(made, wave())
    made.stop()


class Stuck(WorkerHandle):
    """The first worker never answers until it is killed."""

    def play(self, share: Share, load: int, version: int) -> Played:
        if self.opener.opened == 1:
            while not self.why:
                time.sleep(0.01)
            raise LostWorker(self.why)
        return super().play(share, load, version)


def test_a_worker_that_hangs_is_replaced() -> None:
    opener, weights = WorkerOpener(random.Random(0)), get_named_weights(tiny_network())
    opener.open = lambda number: (setattr(opener, "opened", opener.opened + 1), Stuck(opener, number))[1]  # type: ignore[assignment,func-returns-value]
    made = pool(opener, count=1, patience=1.0)
    made.load(weights, 7)
    (expected,) = here(wave(2))
    found = play_wave(made, wave(2))
    assert found.episodes == expected.episodes and found.counts["restarts"] == 1
    made.stop()


class Slow(WorkerHandle):
    """Takes its time to start."""

    takes = 3600.0
    waited = 0.0

    def is_ready(self, seconds: float) -> bool:
        time.sleep(0.01)
        self.waited += 0.01
        return self.waited > self.takes or bool(self.why)


def test_a_busy_machine_on_which_all_start_slowly_is_waited_for() -> None:
    """Each further worker at a place is given twice as long."""
    opener = WorkerOpener(random.Random(0))
    opener.open = lambda number: (slow := Slow(opener, number), setattr(slow, "takes", 0.1))[0]  # type: ignore[method-assign]
    made = pool(opener, count=1, start_patience=0.02)
    made.load(get_named_weights(tiny_network()), 7)
    assert play_wave(made, wave(2)).counts["restarts"] >= 1
    made.stop()


def test_workers_that_do_not_start_are_replaced_and_counted() -> None:
    """Also where all of them hang, and more often than shares may be lost: they may have waited for room."""
    opener = WorkerOpener(random.Random(0))

    def opened(number: int) -> WorkerHandle:
        opener.opened += 1
        return (Slow if opener.opened <= 4 else WorkerHandle)(opener, number)

    opener.open = opened  # type: ignore[method-assign]
    made = pool(opener, count=2, start_patience=0.03, attempts=1)
    made.load(get_named_weights(tiny_network()), 7)
    (expected,) = here(wave(2))
    found = play_wave(made, wave(2))
    assert found.episodes == expected.episodes and 2 <= found.counts["restarts"] <= 4
    made.stop()


def test_what_a_worker_raises_ends_the_run() -> None:
    opener = WorkerOpener(random.Random(0))

    def broken(number: int) -> WorkerHandle:
        raise ValueError("no room")

    opener.open = broken  # type: ignore[method-assign]
    made = pool(opener, count=2)
    made.load({}, 0)
    with pytest.raises(ValueError, match="no room"):
        play_wave(made, wave())
    made.stop()
