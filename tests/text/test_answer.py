from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_agentrl.actions import Actions, ToolSpec
from lit_agentrl.text.dialects.answer import COMPLAINTS, DECISION_TABLE, VALID_PROBLEMS, Answer
from lit_agentrl.text.dialects.base import Reply
from lit_agentrl.text.dialects.blocks import find_blocks

NAMES = ("Up", "Down")
TEXT = Actions("text")
INVALID_PROBLEMS = frozenset(COMPLAINTS)
PROBLEMS = VALID_PROBLEMS | INVALID_PROBLEMS


def parse_reply(
    text: str, *, action_names: tuple[str, ...] | None, think: bool = True, separator: str = "||"
) -> Reply:
    actions = TEXT if action_names is None else Actions("names", action_names)
    return Answer(separator).parse(text, actions, think=think)


PARTS = [
    "<think>",
    "</think>",
    "<answer>",
    "</answer>",
    "<ANSWER>",
    "</Answer>",
    "||",
    "Up",
    "dOWN",
    " ",
    "a wall",
    "é",
    "\n",
]
replies = st.one_of(
    st.text(), st.lists(st.one_of(st.sampled_from(PARTS), st.text(max_size=3)), max_size=14).map("".join)
)


@pytest.mark.parametrize(("condition", "text", "problem", "actions"), DECISION_TABLE)
def test_decision_table(condition: str, text: str, problem: str, actions: tuple[str, ...]) -> None:
    reply = parse_reply(text, action_names=NAMES)
    assert (reply.problem, reply.actions) == (problem, actions), condition
    assert reply.is_valid == (problem in {"", "no_think"})


def test_decision_table_shows_every_problem() -> None:
    assert {row[2] for row in DECISION_TABLE} == PROBLEMS
    assert not VALID_PROBLEMS & INVALID_PROBLEMS


def test_the_documented_table_is_part_of_the_tested_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
    rows = page[page.index("| condition |") :].split("\n\n")[0].splitlines()[2:]
    tested = {condition: rest for condition, *rest in DECISION_TABLE}
    problems = set()
    for row in rows:
        cells = [cell.strip("` ") for cell in row.strip("| ").split(" | ")]
        example, problem, actions = tested[cells[0]]
        shown = [example.replace("|", r"\|"), problem, "no" if problem in INVALID_PROBLEMS else "yes"]
        assert cells[1:4] == [shown[0], shown[1] or "none", shown[2]]
        assert cells[4] == (", ".join(actions) or "nothing")
        problems.add(problem)
    assert problems == PROBLEMS


@pytest.mark.parametrize(
    ("text", "think"),
    [
        ("<think> a wall </think><answer>Up</answer>", "a wall"),
        ("a wall</think><answer>Up</answer>", "a wall"),
        ("<think>a</think>b<think>c</think><answer>Up</answer>", "a\nc"),
        ("<think>a<answer>Up</answer>", ""),
        ("<think>a</think>", "a"),
    ],
)
def test_think_text(text: str, think: str) -> None:
    assert parse_reply(text, action_names=NAMES).think == think


def test_think_off_takes_think_tags_for_text() -> None:
    reply = parse_reply("<think><answer>Up</answer></think>", action_names=NAMES, think=False)
    assert reply.is_valid and reply.problem == "" and reply.actions == ("Up",) and reply.think == ""


def test_think_block_after_the_answer_does_not_count() -> None:
    assert parse_reply("<answer>Up</answer><think>a</think>", action_names=NAMES).problem == "no_think"


def test_an_answer_before_a_lone_closing_think_tag_is_thinking() -> None:
    text = "<answer>Up</answer></think><answer>Down</answer>"
    assert parse_reply(text, action_names=NAMES).actions == ("Down",)


@pytest.mark.parametrize("body", ["    x = 1 || 2\n", " search[a || b] ", 'print("<think>")', "</think>"])
def test_free_text_is_one_action_as_it_is_written(body: str) -> None:
    reply = parse_reply(f"<think>a</think><answer>{body}</answer>", action_names=None)
    assert (reply.actions, reply.problem) == ((body,), "")
    assert parse_reply("<answer> \n</answer>", action_names=None).problem == "empty_answer"


def test_a_call_of_a_tool_is_one_action() -> None:
    tools = Actions("tools", tools=(ToolSpec("go", "goes", {"type": "object", "properties": {}}),))
    reply = Answer().parse('<answer> {"name":"go","arguments":{}} </answer>', tools, think=False)
    assert (reply.is_valid, reply.actions) == (True, ('{"name": "go", "arguments": {}}',))
    reply = Answer().parse('<answer>{"name":"run","arguments":{}}</answer>', tools, think=False)
    assert (reply.problem, reply.is_well_formed, reply.actions) == ("unknown_tool", True, ())


def test_other_separator() -> None:
    assert parse_reply("<answer>up, down</answer>", action_names=NAMES, separator=",").actions == NAMES


@pytest.mark.parametrize("tag", ["<an\u017fwer>", "< answer>", "<answer >", "\uff1canswer>"])
def test_lookalike_tags_are_text(tag: str) -> None:
    assert parse_reply(f"{tag}Up</answer>", action_names=NAMES).problem == "no_answer"


@pytest.mark.parametrize(
    ("names", "separator", "match"),
    [
        (("Up", "UP"), "||", "differ in more than case"),
        (("Up", " "), "||", "non-empty"),
        (("a||b",), "||", "must not contain the separator"),
        (("Up",), " ", "blank"),
    ],
)
def test_ambiguous_formats_are_refused(names: tuple[str, ...], separator: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        parse_reply("", action_names=names, separator=separator)


@given(text=replies, think=st.booleans(), free=st.booleans())
@settings(max_examples=150)
def test_total_and_consistent(text: str, think: bool, free: bool) -> None:
    reply = parse_reply(text, action_names=None if free else NAMES, think=think)
    assert reply.problem in PROBLEMS
    assert reply.is_valid == (reply.problem in VALID_PROBLEMS)
    assert reply.actions or not reply.is_valid
    assert free or set(reply.actions) <= set(NAMES)
    assert all(action.strip() and (free or action == action.strip()) for action in reply.actions)
    assert bool(reply.complaint) != reply.is_valid and reply.is_well_formed >= reply.is_valid


@given(text=replies)
@settings(max_examples=120)
def test_more_answer_blocks_never_gain(text: str) -> None:
    """Hedging: whatever is put after an answer, the actions played are those of that answer, or none."""
    reply = parse_reply(f"<think></think><answer>Up</answer>{text}", action_names=NAMES)
    hedges = any(tag in text.lower() for tag in ("<answer>", "</think>"))
    assert reply.actions == ("Up",) or (hedges and not reply.is_valid and reply.actions == ())


@given(actions=st.lists(st.sampled_from(NAMES), min_size=1, max_size=5), cut=st.integers(0, 80))
def test_truncation_plays_nothing_or_everything(actions: list[str], cut: int) -> None:
    text = f"<think>a wall</think><answer>{' || '.join(actions)}</answer>"
    reply = parse_reply(text[:cut], action_names=NAMES)
    assert reply.actions == (tuple(actions) if cut >= len(text) else ())


@given(text=replies, think=st.booleans(), in_think=st.booleans())
@settings(max_examples=120)
def test_blocks_are_ordered_and_apart(text: str, think: bool, in_think: bool) -> None:
    blocks = find_blocks(text, "answer", think=think, in_think=in_think)
    edges = [edge for b in blocks for edge in (b.start, b.body_start, b.body_end, b.end)]
    assert edges == sorted(edges) and all(0 <= edge <= len(text) for edge in edges)
    assert all(block.is_closed or block is blocks[-1] or block.kind == "think" for block in blocks)


def test_forced_think_block_starts_with_the_text() -> None:
    (block,) = find_blocks("a wall", "answer", in_think=True)
    assert (block.kind, block.start, block.end, block.is_closed) == ("think", 0, 6, False)


def test_cost_is_linear_in_the_number_of_tags() -> None:
    from time import process_time  # not the clock: a busy machine must not decide

    def seconds(text: str) -> float:
        start = process_time()
        parse_reply(text, action_names=NAMES)
        return process_time() - start

    short = min(seconds("<think><answer>" * 2_000) for _ in range(5))
    long = min(seconds("<think><answer>" * 40_000) for _ in range(3))
    assert long < 100 * short  # 20 times the text; quadratic time would be 400 times
