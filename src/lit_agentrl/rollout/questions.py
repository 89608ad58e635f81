"""Questions to the policy beside any game: a text goes in, a text comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lit_agentrl.engines.base import Engine, SamplingParams, TurnRequest, TurnResult
from lit_agentrl.episode import Message
from lit_agentrl.text.chat import ChatRenderer


@dataclass(frozen=True)
class Question:
    """One message of a user, whatever it spells, and the key of the draws of its answer."""

    text: str
    key: int


@dataclass(frozen=True)
class Asked:
    """What came of questions.

    Attributes:
        texts: the answers in the order of the questions; empty where there was no room for one, or the engine failed.
        num_read, num_written: tokens.
        used: what the engine was asked for, see `MeteredEngine`.
    """

    texts: list[str] = field(default_factory=list)
    num_read: int = 0
    num_written: int = 0
    used: dict[str, float] = field(default_factory=dict)


def ask(engine: Engine, chat: ChatRenderer, questions: Sequence[Question], params: SamplingParams) -> Asked:
    """Have an engine answer, as many questions at a time as it has room for.

    Args:
        engine: holds no episode.
        chat: makes tokens of the messages; what they spell is text.
        questions: answered each by itself.
        params: how answers are sampled, and how long they may be.
    """
    results: dict[int, TurnResult] = {}
    begun = 0
    while len(results) < len(questions):
        while begun < len(questions) and begun - len(results) < engine.capacity:
            engine.submit(_request(engine, chat, begun, questions[begun], params))
            begun += 1
        found = engine.poll()
        if not found and not engine.num_pending:
            raise RuntimeError("the engine has nothing left to answer although replies were requested")
        for result in found:
            results[result.episode] = result
            engine.close(result.episode)
    answered = [results[number] for number in range(len(questions))]
    return Asked(
        [_text(chat, result) for result in answered],
        sum(result.num_prefilled for result in answered),
        sum(len(result.tokens) for result in answered),
    )


def _request(
    engine: Engine, chat: ChatRenderer, number: int, question: Question, params: SamplingParams
) -> TurnRequest:
    message: Message = {"role": "user", "content": question.text}
    if engine.capabilities.token_ids:
        return TurnRequest(number, chat.render_opening([message]).tokens, question.key, params)
    return TurnRequest(number, (), question.key, params, messages=[message])


def _text(chat: ChatRenderer, result: TurnResult) -> str:
    """An answer without the marker that ended it."""
    if result.text is not None:
        return result.text
    tokens = result.tokens
    return chat.decode(tokens[:-1] if tokens and tokens[-1] in chat.end_of_turn_ids else tokens)
