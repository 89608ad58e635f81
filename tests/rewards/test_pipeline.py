"""Parts together: stages, curves, normalisation, caps, the trip-wire, what reaches training."""

from __future__ import annotations

import random
import statistics

import pytest
import torch

from lit_agentrl.episode import EndReason
from lit_agentrl.rewards.base import Shaping
from lit_agentrl.rewards.learned.rnd import RandomNetworkDistillation
from lit_agentrl.rewards.pipeline import RewardPipeline
from lit_agentrl.rewards.shaping.caps import Caps
from lit_agentrl.rewards.shaping.count import Count
from lit_agentrl.rewards.shaping.delta import Delta
from lit_agentrl.rewards.shaping.format import Format
from lit_agentrl.rewards.shaping.length import Length
from lit_agentrl.rewards.shaping.normalise import Normalise
from lit_agentrl.rewards.shaping.top_lambda import TopLambda
from lit_agentrl.rewards.tripwire import TripWire
from lit_agentrl.rollout.pack import pack
from tests.rewards.conftest import context, episode, golden, sized, turn


class Constant(Shaping):
    """The same for every turn."""

    def __init__(self, value=1.0, weight=1.0):
        self.weight, self.value = weight, value
        super().__post_init__()

    def score(self, episodes, *, iteration):
        return [[self.value] * len(e.turns) for e in episodes]


def scored(parts, episodes, iteration=0):
    RewardPipeline(parts).score(episodes, iteration=iteration)
    return [[t.training_reward for t in e.turns] for e in episodes]


def test_training_sees_the_sum_and_reports_do_not():
    episodes = golden()
    before = [e.total_reward for e in episodes]
    pipeline = RewardPipeline({"constant": Constant(0.5, weight=2.0), "format": Format(weight=0.25)})
    pipeline.score(episodes, iteration=0)
    assert [e.total_reward for e in episodes] == before
    assert episodes[0].turns[1].shaping == {"constant": 1.0, "format": 0.25}
    assert [t.training_reward for t in episodes[0].turns] == [1.25, 2.25]
    batch = pack(episodes)
    assert batch.return_B[0] == 3.5 and batch.reward_BT[0, :6].tolist() == [0, 0, 1.25, 0, 0, 2.25]
    assert torch.allclose(batch.return_B, batch.reward_BT.sum(1))
    row = pipeline.learn(episodes, iteration=0)
    turns = statistics.mean(len(e.turns) for e in episodes)
    assert row["reward/constant"] == pytest.approx(turns) and row["reward/format"] == pytest.approx(turns / 4)
    assert row["reward/total"] == pytest.approx(statistics.mean(e.training_return for e in episodes))
    assert row.keys() == {"reward/constant", "reward/format", "reward/total", "reward/tripwire_share"}


def test_without_parts_nothing_is_touched():
    episodes, pipeline = golden(), RewardPipeline()
    pipeline.score(episodes, iteration=0)
    assert not pipeline and pipeline.learn(episodes, iteration=0) == {} == pipeline.state_dict()
    assert all(t.shaped_reward is None and not t.shaping for e in episodes for t in e.turns)
    assert all(t.training_reward == t.reward for e in episodes for t in e.turns)


def test_stages_decide_whatever_the_order_of_the_list():
    parts = {
        "caps": Caps(per_turn=1.0, per_episode=None),
        "constant": Constant(5.0),
        "delta": Delta(at_iteration=1),
        "normalise": Normalise(by="batch"),
    }
    expected = scored(parts, golden(), iteration=1)
    for seed in range(5):
        names = list(parts)
        random.Random(seed).shuffle(names)
        assert scored({name: parts[name] for name in names}, golden(), iteration=1) == expected
    assert list(RewardPipeline(parts).parts) == ["delta", "constant", "normalise", "caps", "tripwire"]
    assert max(abs(p) for row in expected for p in row) == 1.0


def test_scoring_again_starts_afresh():
    """As after a further wave of rollouts."""
    episodes = golden()
    pipeline = RewardPipeline({"constant": Constant(), "normalise": Normalise(by="running")})
    pipeline.score(episodes[:3], iteration=0)
    pipeline.score(episodes, iteration=0)
    once = RewardPipeline({"constant": Constant(), "normalise": Normalise(by="running")})
    fresh = golden()
    once.score(fresh, iteration=0)
    assert [e.training_return for e in episodes] == [e.training_return for e in fresh]
    pipeline.learn(episodes, iteration=0)
    once.learn(fresh, iteration=0)
    assert pipeline.state_dict() == once.state_dict() != {}


def test_failed_and_empty_episodes_are_left_out():
    failed, empty = sized(2, group=7), episode([turn(sampled=[])], group=8)
    failed.end = EndReason.ERROR
    scored({"constant": Constant()}, [failed, empty, *golden()])
    assert failed.turns[0].shaped_reward is None and empty.turns[0].shaped_reward is None
    pipeline = RewardPipeline({"constant": Constant()})
    pipeline.score([failed], iteration=0)
    assert pipeline.learn([failed], iteration=0) == {}


def test_normalise_by_hand():
    episodes = [sized(1, reward=r, group=g) for r, g in ((1.0, 0), (3.0, 0), (10.0, 1), (10.0, 1))]
    std = statistics.stdev([1, 3, 10, 10])
    assert scored({"n": Normalise(by="batch")}, episodes) == [
        [pytest.approx(r / std)] for r in (1, 3, 10, 10)
    ]
    centred = scored({"n": Normalise(by="batch", centre=True)}, episodes)
    assert [row[0] for row in centred] == pytest.approx([(r - 6) / std for r in (1, 3, 10, 10)])
    by_group = scored({"n": Normalise(by="group", centre=True)}, episodes)
    assert [row[0] for row in by_group] == pytest.approx([-(2**-0.5), 2**-0.5, 0, 0])  # std 0: only centred
    assert scored({"n": Normalise(by="none")}, episodes) == [[1.0], [3.0], [10.0], [10.0]]


def test_normalise_running_spans_iterations():
    pipeline = RewardPipeline({"n": Normalise(by="running")})
    first, second = [sized(1, reward=r) for r in (0.0, 4.0)], [sized(1, reward=r) for r in (2.0, 9.0)]
    for iteration, episodes in enumerate((first, second)):
        pipeline.score(episodes, iteration=iteration)
        pipeline.learn(episodes, iteration=iteration)
    assert second[1].training_return == pytest.approx(9 / statistics.stdev([0, 4, 2, 9]))


def test_caps_by_hand():
    def capped(points, **options):
        [row] = scored({"caps": Caps(**options)}, [episode([turn(reward=r) for r in points])])
        return row

    assert capped([3.0, -9.0, 1.0], per_turn=2.0, per_episode=None) == [2.0, -2.0, 1.0]
    assert capped([4.0, 4.0, -6.0], per_turn=None, per_episode=5.0) == [4.0, 1.0, -3.0]
    assert capped([-4.0, -4.0, 6.0], per_turn=None, per_episode=5.0) == [-4.0, -1.0, 3.0]
    assert capped([9.0, 9.0], per_turn=4.0, per_episode=5.0) == [4.0, 1.0]
    assert capped([0.1, 0.2], per_turn=None, per_episode=5.0) == [0.1, 0.2]  # bit for bit


def test_the_tripwire_counts_failures_that_earn_as_much_as_a_success():
    def share(wire, *episodes):
        return wire.share(episodes)

    won = [sized(1, reward=r, success=True) for r in (2.0, 6.0)]
    lost = [sized(1, reward=r) for r in (3.9, 4.0, 0.0)]
    assert share(TripWire(), *won, *lost) == 0.2  # mean 4
    assert share(TripWire(quantile=0.0), *won, *lost) == 0.4
    assert share(TripWire(quantile=1.0), *won, *lost) == 0.0
    assert share(TripWire(), *lost) == 0.0  # nothing to compare with yet
    wire = TripWire()
    wire.learn([*won, *lost], iteration=0)
    resumed = TripWire()
    resumed.load_state_dict(wire.state_dict())
    assert share(resumed, *lost) == pytest.approx(1 / 3)  # as high as the last successes
    assert share(resumed, sized(1, reward=99.0, task="other game")) == 0.0


def test_the_tripwire_can_stop_the_run():
    episodes = [sized(1, reward=1.0, success=True), sized(1, reward=1.0)]
    pipeline = RewardPipeline({"tripwire": TripWire(max_share=0.4)})
    pipeline.score(episodes, iteration=4)
    with pytest.raises(ValueError, match=r"reward\.tripwire\.max_share=0\.4: in iteration 5, 0\.500 of"):
        pipeline.learn(episodes, iteration=4)
    lenient = RewardPipeline({"tripwire": TripWire(max_share=0.5)})
    lenient.score(episodes, iteration=4)
    assert lenient.learn(episodes, iteration=4)["reward/tripwire_share"] == 0.5


def test_shaping_alone_can_trip_the_wire():
    episodes = [sized(1, reward=1.0, success=True), sized(700, reward=0.0)]
    pipeline = RewardPipeline({"length": Length(weight=-1.0)})  # paid by length
    pipeline.score(episodes, iteration=0)
    assert pipeline.learn(episodes, iteration=0)["reward/tripwire_share"] == 0.5


def test_order_of_episodes_and_exact_continuation_of_everything_together():
    def make():
        made = RewardPipeline(
            {
                "count": Count(),
                "rnd": RandomNetworkDistillation(features=16, hidden=4, outputs=2),
                "delta": Delta(at_iteration=None, patience=1),
                "normalise": Normalise(by="running", centre=True),
            }
        )
        made.setup(context())
        return made

    def returns(episodes):
        return {(e.group, e.member): [t.training_reward for t in e.turns] for e in episodes}

    straight, resumed = make(), make()
    for iteration in range(4):
        episodes, shuffled = golden(), golden()
        random.Random(iteration).shuffle(shuffled)
        straight.score(episodes, iteration=iteration)
        resumed.score(shuffled, iteration=iteration)
        assert returns(episodes) == returns(shuffled)
        assert straight.learn(episodes, iteration=iteration) == resumed.learn(shuffled, iteration=iteration)
        again = make()
        again.load_state_dict(resumed.state_dict())
        resumed = again
    assert set(straight.state_dict()) == {"count", "rnd", "delta", "normalise", "tripwire"}


def test_parts_are_set_up_once_and_told_of_the_run():
    told = []
    part = Constant()
    part.setup = told.append
    pipeline = RewardPipeline({"constant": part})
    for seed in (3, 4):  # Lightning sets up before each validation, fit and test
        pipeline.setup(context(seed))
    assert [each.seed for each in told] == [3] and told[0].tokenizer.unk_token_id is not None


class Forgetful(Constant):
    """Learns from its own process's episodes."""

    def learn(self, episodes, *, iteration):
        self.value += len(episodes)


def test_misuse_is_refused():
    with pytest.raises(ValueError, match="^f learns, and processes must learn the same"):
        RewardPipeline({"f": Forgetful()})
    with pytest.raises(RuntimeError, match="Constant gathers data of other processes"):
        Constant().gather_numbers([1.0])
    with pytest.raises(ValueError, match="^a and b each replace the task's reward"):
        RewardPipeline({"a": Delta(), "b": TopLambda()})
    with pytest.raises(ValueError, match=r"^x\._target_=dict must be a RewardPart"):
        RewardPipeline({"x": {}})
    with pytest.raises(
        ValueError,
        match=r"reward\.c must give one finite number .* turn 1 was given nan; give 0 to what cannot be scored",
    ):
        scored({"c": Constant(float("nan"))}, golden())

    class Short(Constant):
        def score(self, episodes, *, iteration):
            return [[0.0] for _ in episodes]

    with pytest.raises(
        ValueError,
        match=r"reward\.short must give one .* game game instance seed 1 has 2 turns, and was given 1",
    ):
        scored({"short": Short()}, golden())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Normalise(by="all"), "by=all must be one of batch, group, running, none"),
        (lambda: Normalise(centre="no"), "centre=no must be true or false"),
        (lambda: Normalise(by="none", centre=True), "centre=true would be ignored"),
        (lambda: Caps(per_turn=0), "per_turn=0 must be > 0"),
        (lambda: Caps(per_turn=None, per_episode=None), "per_turn=null with per_episode=null bounds nothing"),
        (lambda: TripWire(quantile=2), "quantile=2 must be in"),
        (lambda: TripWire(max_share=-1), "max_share=-1 must be in"),
    ],
)
def test_options_are_refused(make, message):
    with pytest.raises(ValueError, match="^" + message):
        make()


class Raising(Constant):
    """Fails where it is told to."""

    where = ""

    def _raise(self, where):
        if where == self.where:
            raise KeyError("colour")

    def setup(self, context):
        self._raise("setup")

    def apply(self, points, episodes, *, iteration):
        self._raise("apply")
        return super().apply(points, episodes, iteration=iteration)

    def curves(self, episodes, *, iteration):
        self._raise("curves")
        return {}


@pytest.mark.parametrize("where", ["setup", "apply", "curves"])
def test_a_part_that_raises_is_named(where):
    part = Raising()
    part.where = where
    pipeline, episodes = RewardPipeline({"mine": part}), golden()
    with pytest.raises(ValueError, match=r"^reward\.mine: KeyError: 'colour'"):
        pipeline.setup(context())
        pipeline.score(episodes, iteration=0)
        pipeline.learn(episodes, iteration=0)
