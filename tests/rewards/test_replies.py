"""Parts that look at the replies: worked numbers and refused options."""

from __future__ import annotations

import math

import pytest

from lit_agentrl.actions import Actions
from lit_agentrl.rewards.shaping.cosine import Cosine
from lit_agentrl.rewards.shaping.format import Format
from lit_agentrl.rewards.shaping.length import Length
from lit_agentrl.rewards.shaping.overlong import Overlong
from lit_agentrl.rewards.shaping.repetition import Repetition
from lit_agentrl.text.dialects.answer import ANSWER
from tests.rewards.conftest import episode, sized, turn


def scores(part, *episodes):
    return part.score(episodes, iteration=0)


@pytest.mark.parametrize("tokens", [80, 81, 90, 100, 101, 500])
def test_overlong(tokens):
    expected = {80: 0.0, 81: -0.05, 90: -0.5, 100: -1.0, 101: -1.0, 500: -1.0}[tokens]
    part = Overlong(max_tokens=100, buffer=20)
    assert scores(part, sized(tokens)) == [[pytest.approx(expected)]]


def test_overlong_of_each_turn_or_of_the_episode():
    long = episode([turn(90), turn(20)])
    assert scores(Overlong(max_tokens=100, buffer=20), long) == [[-0.5, 0.0]]
    assert scores(Overlong(max_tokens=100, buffer=20, per="episode"), long) == [[0.0, -1.0]]


@pytest.mark.parametrize(("tokens", "expected"), [(512, 0), (611, 0), (612, -1), (711, -1), (712, -2)])
def test_length(tokens, expected):
    two_turns = episode([turn(tokens - 10), turn(10)])
    assert scores(Length(), two_turns) == [[0, expected]]
    points = Length().apply([[1.0, 2.0]], [two_turns], iteration=0)
    assert points == [[1.0, 2.0 + 0.5 * expected]]


@pytest.mark.parametrize(
    ("sampled", "n", "expected"),
    [([1, 2, 1, 2], 2, -1 / 3), ([1, 1, 1, 1], 1, -0.75), ([1, 2, 3], 2, 0.0), ([1], 3, 0.0), ([], 1, 0.0)],
)
def test_repetition(sampled, n, expected):
    assert scores(Repetition(n=n), episode([turn(sampled=sampled)])) == [[pytest.approx(expected)]]


def test_cosine():
    part = Cosine(max_tokens=100, solved_short=2, solved_long=1, failed_short=-10, failed_long=0, exceeded=-7)
    cases = [(50, True, 1.5), (50, False, -5), (100, True, -7), (100, False, -7), (180, False, -7)]
    quarter = (1 + math.cos(math.pi / 4)) / 2
    cases += [(25, True, 1 + quarter), (25, False, -10 * quarter)]
    for tokens, success, expected in cases:
        assert scores(part, sized(tokens, success=success)) == [[pytest.approx(expected)]]
    near_zero = [scores(part, sized(1, success=success))[0][0] for success in (True, False)]
    assert near_zero == [pytest.approx(2, abs=1e-3), pytest.approx(-10, abs=1e-2)]


def test_format_by_the_dialects_verdict():
    verdicts = {"valid": (True, True, True), "content": (False, True, True), "markup": (False, False, True)}
    verdicts |= {"no think": (True, True, False), "content, no think": (False, True, False)}
    good = {
        "valid": {"valid", "no think"},
        "structure": set(verdicts) - {"markup"},
        "think": {"valid", "content"},
    }
    for rule in good:
        for name, (is_valid, is_well_formed, has_think) in verdicts.items():
            judged = turn(is_valid=is_valid, is_well_formed=is_well_formed, has_think=has_think)
            assert scores(Format(rule=rule), episode([judged])) == [[float(name in good[rule])]], (rule, name)


def test_an_unknown_action_does_not_hide_a_missing_think_block():
    for text, expected in (("<answer>Jump</answer>", 0.0), ("<think>a</think><answer>Jump</answer>", 1.0)):
        reply = ANSWER.parse(text, Actions("names", ("Up",)), think=True)
        judged = turn(is_valid=reply.is_valid, is_well_formed=reply.is_well_formed, has_think=reply.has_think)
        assert reply.problem == "unknown_action"
        assert scores(Format(rule="think"), episode([judged])) == [[expected]]


def test_format_as_a_penalty():
    mixed = episode([turn(reward=1.0), turn(is_valid=False, problem="no_answer", reward=-0.1)])
    part = Format(weight=0.5, ok=0.0, bad=-1.0)
    assert part.apply([[1.0, -0.1]], [mixed], iteration=0) == [[1.0, pytest.approx(-0.6)]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Format(weight=0), "weight=0 must be a number other than 0"),
        (lambda: Format(weight=True), "weight=true must be a number"),
        (lambda: Format(weight=math.inf), "weight=inf must be a finite number"),
        (lambda: Format(rule="tags"), "rule=tags must be one of valid, structure, think"),
        (lambda: Format(ok=0.0), "bad=0.0 must be a number other than ok"),
        (lambda: Format(ok=math.nan), "ok=nan must be a number"),
        (lambda: Length(step_tokens=0), "step_tokens=0 must be a whole number >= 1"),
        (lambda: Length(free_tokens=-1), "free_tokens=-1 must be a whole number >= 0"),
        (lambda: Length(free_tokens=1.5), "free_tokens=1.5 must be a whole number"),
        (lambda: Overlong(buffer=50), "buffer=50 must be <= max_tokens=40"),
        (lambda: Overlong(buffer=0), "buffer=0 must be a whole number >= 1"),
        (lambda: Overlong(max_tokens=0), "max_tokens=0 must be a whole number >= 1"),
        (lambda: Overlong(per="group"), "per=group must be one of turn, episode"),
        (lambda: Repetition(n=0), "n=0 must be a whole number >= 1"),
        (lambda: Cosine(max_tokens=0), "max_tokens=0 must be a whole number >= 1"),
        (lambda: Cosine(exceeded="low"), "exceeded=low must be a number"),
    ],
)
def test_options_are_refused(make, message):
    with pytest.raises(ValueError, match="^" + message):
        make()
