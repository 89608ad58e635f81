"""Counts, random network distillation and curiosity: worked numbers, annealing, order, exact continuation."""

from __future__ import annotations

import io
import math
import random
import re

import pytest
import torch

from lit_agentrl.rewards.learned.icm import IntrinsicCuriosity, list_transitions
from lit_agentrl.rewards.learned.rnd import RandomNetworkDistillation, embed
from lit_agentrl.rewards.shaping.count import Count
from lit_agentrl.rewards.shaping.moments import Moments
from tests.conftest import load_task_yaml
from tests.rewards.conftest import context, episode, turn


def walk(*keys, **fields):
    return episode([turn(key=key, text=f"P {key}\n_ O") for key in keys], **fields)


def rnd(seed=1, **options):
    part = RandomNetworkDistillation(**{"features": 32, "hidden": 8, "outputs": 4, **options})
    part.setup(context(seed))
    return part


def icm(seed=1, **options):
    part = IntrinsicCuriosity(**{"features": 32, "hidden": 8, "outputs": 4, **options})
    part.setup(context(seed))
    return part


BATCH = [walk(1, 2, 3), walk(1, 2, member=1), walk(1, 4, 4, 2, member=2)]


def test_count_by_hand():
    part = Count(normalise=False, anneal_iterations=None)
    first = part.score(BATCH, iteration=0)
    assert first == [[3**-0.5, 1.0, 0.0], [3**-0.5, 0.0], [2**-0.5, 2**-0.5, 3**-0.5, 0.0]]
    assert part.score(BATCH, iteration=0) == first  # scoring again, for a further wave, counts nothing twice
    assert part.curves(BATCH, iteration=0)["states"] == 4
    part.learn(BATCH, iteration=0)
    assert part.score([walk(1, 2)], iteration=1) == [[4**-0.5, 0.0]]


def test_the_bonus_is_divided_by_the_spread_of_its_sums_and_not_centred():
    part, plain = Count(anneal_iterations=None), Count(normalise=False)
    sums = [sum(row) for row in plain.score(BATCH, iteration=0)]
    mean = sum(sums) / 3
    std = math.sqrt(sum((s - mean) ** 2 for s in sums) / 2)
    for scaled, raw in zip(part.score(BATCH, iteration=0), plain.score(BATCH, iteration=0), strict=True):
        assert scaled == pytest.approx([bonus / std for bonus in raw])
        assert all(bonus >= 0 for bonus in scaled)
    assert Count().score([walk(1, 2)], iteration=0) == [[1.0, 0.0]]  # no spread: undivided


@pytest.mark.parametrize("make", [Count, rnd, icm])
def test_annealing(make):
    part = make(anneal_iterations=4, normalise=False)
    full, half, after = (part.score(BATCH, iteration=i)[0][0] for i in (0, 2, 4))
    assert full > 0 and half == pytest.approx(full / 2) and after == 0
    assert part.score(BATCH, iteration=9)[0][0] == 0
    assert make(anneal_iterations=None).coef(10**6) == 1
    assert part.curves(BATCH, iteration=3)["coef"] == 0.25


def test_rnd_fades_where_it_has_been():
    part = rnd(normalise=False, steps=30, anneal_iterations=None)
    [[known, _]], [[new, _]] = (part.score([walk(1, key)], iteration=0) for key in (2, 3))
    for iteration in range(4):
        part.score([walk(1, 2)], iteration=iteration)
        part.learn([walk(1, 2)], iteration=iteration)
    [[known_later, _]], [[new_later, _]] = (part.score([walk(1, key)], iteration=0) for key in (2, 3))
    assert known_later < 0.1 * known and new_later / new > 3 * known_later / known


def test_rnd_by_hand():
    part = rnd(normalise=False, anneal_iterations=None)
    words = torch.stack([embed("P 2\n_ O", 32)])
    error = (part._predictor(words) - part._target(words)).square().sum().item()
    assert part.score([walk(1, 2)], iteration=0) == [[pytest.approx(error), 0.0]]


def test_rnd_features_say_where_things_stand():
    texts = ["P _\n_ O", "_ P\n_ O", "_ _\nP O", "O _\n_ P"]
    vectors = [embed(text, 256) for text in texts]
    assert all(torch.dist(a, b) > 1 for i, a in enumerate(vectors) for b in vectors[:i])
    assert all(v.square().mean().item() == pytest.approx(1.0) for v in vectors)
    assert not embed("", 8).any()


def test_rnd_networks_are_keyed_by_the_seed_and_leave_the_global_generator_alone():
    before = torch.get_rng_state()
    same, again, other = rnd(), rnd(), rnd(seed=2)
    assert torch.equal(before, torch.get_rng_state())
    assert same.score(BATCH, iteration=0) == again.score(BATCH, iteration=0)
    assert same.score(BATCH, iteration=0) != other.score(BATCH, iteration=0)


@pytest.mark.parametrize("make", [Count, rnd, icm])
def test_the_order_of_episodes_does_not_matter(make):
    first, second = make(), make()
    shuffled = list(BATCH)
    random.Random(1).shuffle(shuffled)
    assert shuffled != BATCH
    for iteration in range(3):
        scored = {
            e.member: row for e, row in zip(BATCH, first.score(BATCH, iteration=iteration), strict=True)
        }
        again = second.score(shuffled, iteration=iteration)
        assert scored == {e.member: row for e, row in zip(shuffled, again, strict=True)}
        first.learn(BATCH, iteration=iteration)
        second.learn(shuffled, iteration=iteration)


@pytest.mark.parametrize("make", [Count, rnd, icm])
def test_state_round_trip_through_a_file(make):
    part, fresh = make(), make()
    for iteration in range(2):
        part.score(BATCH, iteration=iteration)
        part.learn(BATCH, iteration=iteration)
    file = io.BytesIO()
    torch.save(part.state_dict(), file)
    file.seek(0)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    for iteration in range(2, 4):
        assert part.score(BATCH, iteration=iteration) == fresh.score(BATCH, iteration=iteration)
        part.learn(BATCH, iteration=iteration)
        fresh.learn(BATCH, iteration=iteration)
    assert part.score(BATCH, iteration=4) != make().score(BATCH, iteration=4)


def test_icm_by_hand():
    """One transition: the forecast's error, and the loss of both models that one step of SGD would lower."""
    part = icm(normalise=False, anneal_iterations=None, beta=0.25, steps=1, lr=1e-3)
    moved = episode([turn(text="P _", actions=["Left", "Up"]), turn(text="_ P")])
    before, done, after = (embed(text, 32)[None] for text in ("P _", "Left\nUp", "_ P"))
    nets = part._networks
    phi, phi_next = nets["encoder"](before), nets["encoder"](after)
    forward = (nets["forecast"](torch.cat([phi, done], 1)) - phi_next).square().sum() / 2
    inverse = (nets["inverse"](torch.cat([phi, phi_next], 1)) - done).square().mean()
    assert part.score([moved], iteration=0) == [[pytest.approx(forward.item()), 0.0]]
    expected = torch.autograd.grad(0.25 * forward + 0.75 * inverse, list(nets.parameters()))
    start = [p.detach().clone() for p in nets.parameters()]
    part.learn([moved], iteration=0)
    for p, old, gradient in zip(nets.parameters(), start, expected, strict=True):
        clear = gradient.abs() > 1e-5  # the first step of Adam goes by the sign
        assert torch.allclose((p - old)[clear], -1e-3 * gradient[clear].sign(), atol=1e-5)
    assert list_transitions(moved) == ['["P _", "Left\\nUp", "_ P"]'] and not list_transitions(
        episode([turn()])
    )
    assert part.novelty([], [episode([turn()])]) == []
    part.learn([episode([turn()])], iteration=1)  # nothing was arrived at


def test_icm_fades_where_it_has_been_and_tells_actions_apart():
    part = icm(normalise=False, steps=60, anneal_iterations=None, lr=1e-2)

    def step(action):
        return episode([turn(text="P _", actions=[action]), turn(text="_ P" if action == "Left" else "P _")])

    for iteration in range(5):
        part.score([step("Left")], iteration=iteration)
        part.learn([step("Left")], iteration=iteration)
    [[known, _], [new, _]] = part.score([step("Left"), step("Up")], iteration=5)
    assert new > 3 * known


def test_moments_in_parts_equal_the_whole():
    numbers = [3.0, -1.0, 2.5, 1e3, 0.0]
    parts = Moments().merge(numbers[:2]).merge([]).merge(numbers[2:])
    whole = torch.tensor(numbers, dtype=torch.float64)
    assert (parts.count, parts.mean) == (5, pytest.approx(whole.mean().item()))
    assert parts.std == pytest.approx(whole.std().item()) and parts.scale == parts.std
    assert Moments().merge([4.0]).std == 0 and Moments().merge([4.0]).scale == 1
    assert Moments.from_state_dict(parts.state_dict()) == parts


def test_games_of_one_turn_are_refused():
    task, part = load_task_yaml("bandit"), Count()
    with pytest.raises(ValueError, match="^needs a game of several turns, and bandit has one"):
        part.check_game(task, task.make("train"), "")
    part.check_game(load_task_yaml("sokoban"), task.make("train"), "")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Count(anneal_iterations=0), "anneal_iterations=0 must be a whole number >= 1"),
        (lambda: Count(normalise="yes"), "normalise=yes must be true or false"),
        (lambda: rnd(lr=0), "lr=0 must be > 0"),
        (lambda: rnd(steps=0), "steps=0 must be a whole number >= 1"),
        (lambda: icm(beta=1), "beta=1 must be in (0, 1)"),
        (lambda: icm(hidden=0), "hidden=0 must be a whole number >= 1"),
        (lambda: rnd(features=1.5), "features=1.5 must be a whole number >= 1"),
    ],
)
def test_options_are_refused(make, message):
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        make()
