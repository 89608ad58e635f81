"""What is read before a reply: recorded pieces, spliced; text only where nothing was sampled."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from lit_agentrl.actions import Actions
from lit_agentrl.episode import Segment, Turn
from lit_agentrl.text.chat import ChatRenderer, Prefix
from lit_agentrl.text.condensers import LastActions
from lit_agentrl.text.context import FULL, Context, Past, Single, Window
from lit_agentrl.text.prompts import Prompt
from tests.conftest import nano_tokenizer

REPLIES = [["Up"], [], ["Up", "Down"]]  # actions of three past turns; the second reply was invalid


def episode(chat: ChatRenderer, prompt: Prompt, number: int) -> Past:
    """``number`` turns taken, the next reply awaited.  A reply is ids that no text would give."""
    opening = partial(
        prompt.write_opening, name="sokoban", rules="Push.", actions=Actions("names", ("Up", "Down")),
        observation="# P", max_turns=5, max_actions=10, max_actions_per_turn=4,
    )  # fmt: skip
    past = Past(opening, [], [""], [chat.render_opening(opening())])
    marker = chat.tokenizer("<answer>", add_special_tokens=False)["input_ids"]
    for k, actions in enumerate(REPLIES[:number]):
        turn = Turn("# P", [], [], reply_tokens=[*marker, 7 + k, 7], reward=float(k), actions=actions)
        message = prompt.write_next(
            observation="P #", reward=turn.reward, complaint="" if actions else "it had none", turns_left=4 - k,
            actions_left=9 - k,
        )  # fmt: skip
        past.turns = [*past.turns, turn]
        past.messages.append(message)
        past.pieces.append(chat.render_next(message, last_reply=turn.reply_tokens.tolist()))
    return past


def dialogue(past: Past) -> list[int]:
    """All tokens where every turn is shown."""
    tokens = list(past.pieces[0].tokens)
    for turn, piece in zip(past.turns, past.pieces[1:], strict=True):
        tokens += [*turn.reply_tokens.tolist(), *piece.tokens]
    return tokens


def shown(context: Context, chat: ChatRenderer, number: int, prompt: Prompt | None = None) -> Prefix:
    return context.prompt(episode(chat, prompt or Prompt("compact"), number), chat)


def text(chat: ChatRenderer, prefix: Prefix) -> str:
    return chat.decode(prefix.tokens)


@pytest.mark.parametrize("style", ["compact", "full"])
@pytest.mark.parametrize("force_think", [False, True])
def test_the_first_prompt_is_the_same_everywhere(
    tokenizer: PreTrainedTokenizerBase, style: Any, force_think: bool
) -> None:
    chat = ChatRenderer(tokenizer, force_think=force_think)
    first = [shown(c, chat, 0, Prompt(style)) for c in (FULL, Window(1), Window(9), Single(LastActions()))]
    assert all(prefix == first[0] for prefix in first)


@pytest.mark.parametrize("style", ["compact", "full"])
@pytest.mark.parametrize("turns", [3, 4, 100])
def test_a_window_that_holds_every_turn_is_the_whole_dialogue(
    renderer: ChatRenderer, style: Any, turns: int
) -> None:
    past = episode(renderer, Prompt(style), 3)
    prefix = Window(turns).prompt(past, renderer)
    assert prefix.tokens == dialogue(past)
    assert len(prefix.segments) == len(prefix.tokens)
    assert FULL.prompt(past, renderer) is past.pieces[-1]


def test_a_window_drops_old_turns_whole_and_keeps_the_rules(nano: PreTrainedTokenizerBase) -> None:
    chat = ChatRenderer(nano)
    past = episode(chat, Prompt("compact"), 3)
    prefix = Window(1).prompt(past, chat)
    replies = [turn.reply_tokens.tolist() for turn in past.turns]
    start = chat.render_opening([{"role": "user", "content": f"sokoban\n{past.messages[2]}"}])
    assert prefix.tokens == [*start.tokens, *replies[2], *past.pieces[3].tokens]
    assert past.messages[2].startswith("invalid\nreward +1.0\nturns 3 actions 8\n")
    assert "turns 5" not in text(chat, prefix) and "turns 4" not in text(chat, prefix)
    assert prefix.segments == [*start.segments, *[int(Segment.PAST)] * 3, *past.pieces[3].segments]
    two = Window(2).prompt(past, chat)
    assert [t for t, s in zip(two.tokens, two.segments, strict=True) if s == Segment.PAST] == sum(
        replies[1:], []
    )


def test_a_window_of_full_prompts_has_one_message_of_the_game_between_two_replies(
    bpe: PreTrainedTokenizerBase,
) -> None:
    """Templates may refuse two user messages in a row; the system message is always there."""
    chat = ChatRenderer(bpe)
    prompt = Prompt("full")
    roles = text(chat, shown(Window(1), chat, 3, prompt)).split("<|im_start|>")[1:]
    assert [part.split("\n")[0] for part in roles] == ["system", "user", "assistant", "user", "assistant"]
    assert "You are playing sokoban.\nPush." in roles[0]
    assert "Your last reply was invalid" in roles[1] and "3 turns" in roles[1]


def test_single_is_one_message_with_what_was_condensed(nano: PreTrainedTokenizerBase) -> None:
    chat = ChatRenderer(nano)
    past = episode(chat, Prompt("compact"), 3)
    prefix = Single(LastActions()).prompt(past, chat)
    content = f"sokoban\nactions so far: Up || Up || Down\n{past.messages[-1]}"
    assert prefix == chat.render_opening([{"role": "user", "content": content}])
    assert past.messages[-1] == "reward +2.0\nturns 2 actions 7\nP #"
    alone = Single(LastActions(count=0)).prompt(past, chat)
    assert alone == chat.render_opening([{"role": "user", "content": f"sokoban\n{past.messages[-1]}"}])


def test_the_embedded_policy_knows_every_token_of_the_shipped_contexts() -> None:
    tokenizer = nano_tokenizer()
    chat = ChatRenderer(tokenizer)
    for context in (Window(1), Window(2), Single(LastActions()), Single(LastActions(count=1))):
        assert tokenizer.unk_token_id not in shown(context, chat, 3).tokens


def test_single_of_full_prompts_keeps_the_system_message(bpe: PreTrainedTokenizerBase) -> None:
    chat = ChatRenderer(bpe)
    roles = text(chat, shown(Single(LastActions()), chat, 2, Prompt("full"))).split("<|im_start|>")[1:]
    assert [part.split("\n")[0] for part in roles] == ["system", "user", "assistant"]
    assert "actions so far: Up\nYour last reply was invalid" in roles[1]


def test_last_actions() -> None:
    past = [Turn("", [], [], actions=actions) for actions in REPLIES]
    assert LastActions()(past) == "actions so far: Up || Up || Down" == LastActions(count=3)(past)
    assert LastActions(count=2)(past) == "last actions: Up || Down"
    assert LastActions()(past[1:2]) == "actions so far: none"
    with pytest.raises(ValueError, match="^count=-1 must be"):
        LastActions(count=-1)


def test_wrong_options(nano: PreTrainedTokenizerBase) -> None:
    chat = ChatRenderer(nano)
    for turns, written in ((0, "0"), (-1, "-1"), (True, "true"), (1.5, "1.5")):
        with pytest.raises(ValueError, match=rf"^turns={written} must be a whole number >= 1"):
            Window(turns)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="^condense=LastActions must be a function"):
        Single("LastActions")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"context\.condense returned list; give it"):
        shown(Single(lambda past: []), chat, 1)  # type: ignore[arg-type, return-value]
    with pytest.raises(ValueError, match=r"context\.condense failed: IndexError: "):
        shown(Single(lambda past: past[7].observation), chat, 1)


def test_a_condenser_sees_the_turns_and_cannot_change_their_list(nano: PreTrainedTokenizerBase) -> None:
    seen: list[Any] = []
    past = episode(ChatRenderer(nano), Prompt("compact"), 2)
    Single(lambda turns: seen.append(turns) or "").prompt(past, ChatRenderer(nano))  # type: ignore[func-returns-value]
    assert seen == [tuple(past.turns)]


def test_a_past_reply_is_shown_as_it_was_sampled(nano: PreTrainedTokenizerBase) -> None:
    """The prompt of turn 2 of the episode in docs/formats.md."""
    chat = ChatRenderer(nano)

    def opening(message: str = "turns 5 actions 10\n# P") -> list[dict[str, str]]:
        return [{"role": "user", "content": f"sokoban\n{message}"}]

    texts = [
        "<think>wall Left</think><answer>Up || Right</answer>",
        "<think>wall</think><answer>Down</answer>",
    ]
    replies = [nano(text, add_special_tokens=False)["input_ids"] for text in texts]
    messages = ["", "reward -0.2\nturns 4 actions 8\n# S", "reward -0.1\nturns 3 actions 7\nS #"]
    pieces = [chat.render_opening(opening())]
    pieces += [chat.render_next(m, last_reply=r) for m, r in zip(messages[1:], replies, strict=True)]
    past = Past(opening, [Turn("", [], [], reply_tokens=r) for r in replies], messages, pieces)
    prefix = Window(1).prompt(past, chat)
    expected = [Segment.PROMPT] * 17 + [Segment.FORCED] + [Segment.PAST] * 6 + [Segment.FORCED]
    expected += [Segment.OBSERVATION] * 15 + [Segment.FORCED]
    assert prefix.segments == [int(segment) for segment in expected]
    written = " ".join(nano.decode([token]) for token in prefix.tokens).replace("\n", "⏎")
    opening_text = "<|user|> sokoban ⏎ reward - 0 . 2 ⏎ turns 4 actions 8 ⏎ # S <|end|> <|assistant|>"
    past_text = "<think> wall </think> <answer> Down </answer> <|end|>"
    present_text = "<|user|> reward - 0 . 1 ⏎ turns 3 actions 7 ⏎ S # <|end|> <|assistant|>"
    assert written == f"{opening_text} {past_text} {present_text}"
