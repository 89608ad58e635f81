"""Replies without tags: the whole reply is the action, and prompts say what the game says."""

from __future__ import annotations

import pytest

from lit_agentrl.actions import Actions
from lit_agentrl.text.dialects.plain import Plain
from lit_agentrl.text.prompts import Prompt

TEXT = Actions("text", (), ())
OPENED = {
    "name": "x",
    "rules": "r",
    "actions": TEXT,
    "max_turns": 2,
    "max_actions": 2,
    "max_actions_per_turn": 1,
}


@pytest.mark.parametrize(
    ("reply", "actions", "problem", "thought"),
    [
        ("<think>a wall</think>Go left.", ("Go left.",), "", "a wall"),
        ("a wall</think> Go left.\n", (" Go left.\n",), "", "a wall"),
        ("Go <answer>left</answer>", ("Go <answer>left</answer>",), "no_think", ""),
        ("Go left.<|im_end|>", ("Go left.",), "no_think", ""),
        ("a <|im_end|> b</s>\n", ("a <|im_end|> b",), "no_think", ""),
        ("<think>a</think>b<think>c</think>", ("b<think>c</think>",), "", "a"),
        ("", (), "empty_reply", ""), (" \n<|im_end|>", (), "empty_reply", ""),
        ("<think>a</think> ", (), "empty_reply", "a"), (" <think>a wall, so", (), "unclosed_think", ""),
    ],
)  # fmt: skip
def test_replies(reply: str, actions: tuple[str, ...], problem: str, thought: str) -> None:
    found = Plain().parse(reply, TEXT, think=True)
    assert (found.actions, found.problem, found.think) == (actions, problem, thought)
    assert found.is_valid == bool(actions) == (not found.complaint) == found.is_well_formed
    assert Plain().parse(reply, TEXT, think=False).is_valid == bool(reply.replace("<|im_end|>", "").strip())


def test_what_it_writes_it_reads() -> None:
    text = Plain().write(["Go.\n"], thought="so")
    assert Plain().parse(text, TEXT, think=True).actions == ("Go.\n",)
    think, answer = Plain().spans(text, in_think=False)
    assert (text[think.body_start : think.body_end], text[answer.body_start : answer.body_end]) == (
        "so",
        "Go.\n",
    )
    assert [block.kind for block in Plain().spans("so", in_think=True)] == ["think"]


def test_a_bare_prompt_is_what_the_game_shows() -> None:
    bare = Prompt("bare", show_reward=False)
    user = {"role": "user", "content": "P"}
    assert bare.write_opening(observation="P", **OPENED) == [user]
    told = bare.write_opening(observation="P", system_text="Be kind.", **OPENED)
    assert told == [{"role": "system", "content": "Be kind."}, user]
    assert bare.write_next(observation="Q", reward=1.0, complaint="", turns_left=1, actions_left=1) == "Q"
    told = Prompt("bare").write_next(
        observation="Q", reward=1, complaint="it was empty", turns_left=1, actions_left=1
    )
    assert told == "Your last reply was invalid: it was empty.\nYour last turn earned +1.0 points.\nQ"
