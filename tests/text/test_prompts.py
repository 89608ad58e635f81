from __future__ import annotations

from typing import Any

import pytest
import yaml

from lit_agentrl.actions import Actions
from lit_agentrl.paths import CONFIG_DIR
from lit_agentrl.text.dialects.answer import ANSWER, COMPLAINTS
from lit_agentrl.text.prompts import Prompt

NAMES = Actions("names", ("Up", "Down"))
TEXT = Actions("text")
CONF = CONFIG_DIR / "prompt"


def opening(prompt: Prompt, **changes: Any) -> list[dict[str, str]]:
    values: dict[str, Any] = {
        "name": "sokoban",
        "rules": "Push every box onto a target.",
        "actions": NAMES,
        "observation": "# P",
        "max_turns": 5,
        "max_actions": 10,
        "max_actions_per_turn": 4,
    }
    return prompt.write_opening(**(values | changes))


def following(prompt: Prompt, **changes: Any) -> str:
    values: dict[str, Any] = {
        "observation": "# P",
        "reward": -0.1,
        "complaint": "",
        "turns_left": 4,
        "actions_left": 1,
    }
    return prompt.write_next(**(values | changes))


def test_compact_opening() -> None:
    assert opening(Prompt("compact")) == [{"role": "user", "content": "sokoban\nturns 5 actions 10\n# P"}]


def test_full_opening_states_rules_budgets_and_format() -> None:
    system, user = opening(Prompt("full"))
    assert user == {"role": "user", "content": "# P"}
    assert system["role"] == "system"
    for part in ("sokoban", "Push every box", "5 turns", "10 actions", "up to 4 actions", "Up, Down"):
        assert part in system["content"]


@pytest.mark.parametrize("think", [True, False])
@pytest.mark.parametrize(("per_turn", "actions"), [(1, ("Up",)), (4, ("Up", "Down"))])
def test_the_example_is_itself_a_valid_reply(think: bool, per_turn: int, actions: tuple[str, ...]) -> None:
    system, _ = opening(Prompt("full", think=think), max_actions_per_turn=per_turn)
    example = system["content"].splitlines()[-1]
    reply = ANSWER.parse(example, NAMES, think=think)
    assert (reply.is_valid, reply.problem, reply.actions) == (True, "", actions)
    assert ("think" in system["content"]) == think
    assert ("||" in system["content"]) == (per_turn > 1)


def test_free_text_example() -> None:
    system, _ = opening(Prompt("full"), actions=TEXT)
    assert ANSWER.parse(system["content"].splitlines()[-1], TEXT, think=True).is_valid
    assert "The actions are" not in system["content"]


@pytest.mark.parametrize(
    ("show_reward", "complaint", "expected"),
    [
        (True, "", "reward -0.1\nturns 4 actions 1\n# P"),
        (True, "it was odd", "invalid\nreward -0.1\nturns 4 actions 1\n# P"),
        (False, "", "turns 4 actions 1\n# P"),
        (False, "it was odd", "invalid\nturns 4 actions 1\n# P"),
    ],
)
def test_compact_following(show_reward: bool, complaint: str, expected: str) -> None:
    assert following(Prompt("compact", show_reward=show_reward), complaint=complaint) == expected


@pytest.mark.parametrize(("reward", "shown"), [(10.9, "+10.9"), (-0.0, "+0.0"), (-0.04, "+0.0"), (1, "+1.0")])
def test_reward_format(reward: float, shown: str) -> None:
    assert following(Prompt("compact"), reward=reward).startswith(f"reward {shown}\n")


@pytest.mark.parametrize("complaint", sorted(COMPLAINTS.values()))
def test_full_following_states_each_complaint(complaint: str) -> None:
    text = following(Prompt("full"), complaint=complaint)
    assert text.startswith(f"Your last reply was invalid: {complaint}.\n")
    assert "-0.1 points" in text and "4 turns and 1 action left" in text and text.endswith("\n# P")


def test_full_following_hides_the_reward() -> None:
    assert "points" not in following(Prompt("full", show_reward=False))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"style": "verbose"}, "^style=verbose must be one of compact, full"),
        ({"style": "full", "think": False, "force_think": True}, "needs prompt.think=true"),
        ({"style": "full", "think": "yes"}, "^think=yes must be true or false"),
    ],
)
def test_bad_options(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Prompt(**options)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"max_turns": 0}, "max_turns=0"),
        ({"max_actions": -1}, "max_actions=-1"),
        ({"max_actions_per_turn": 0}, "max_actions_per_turn=0"),
        ({"name": "two\nlines"}, "one line"),
        ({"name": " "}, "one line"),
    ],
)
def test_bad_opening(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        opening(Prompt("compact"), **changes)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"reward": float("nan")}, "finite"),
        ({"turns_left": -1}, "turns_left=-1"),
        ({"actions_left": -1}, "actions_left=-1"),
    ],
)
def test_bad_following(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        following(Prompt("compact"), **changes)


@pytest.mark.parametrize("style", ["compact", "full"])
def test_yaml_builds_the_prompt(style: str) -> None:
    config = yaml.safe_load((CONF / f"{style}.yaml").read_text())
    assert config.pop("_target_") == "lit_agentrl.text.prompts.Prompt"
    assert Prompt(**config) == Prompt(style)  # type: ignore[arg-type]
