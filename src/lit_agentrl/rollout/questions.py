"""Questions to the policy outside any game: a text goes in, a text comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lit_agentrl.engines.base import Engine, SamplingParams, TurnRequest, TurnResult
from lit_agentrl.episode import Message
from lit_agentrl.text.chat import ChatRenderer


@dataclass(frozen=True)
class Question:
    """A user message, taken as plain text, and the random key of its answer."""

    text: str
    key: int


@dataclass(frozen=True)
class Answers:
    """The answers to questions and their cost.

    Attributes:
        texts: The answers in the order of the questions; empty if a question did not fit or the engine failed.
        num_read, num_written: Numbers of tokens that the engine read and wrote.
        used: Usage of the engine, see `MeteredEngine`.
    """

    texts: list[str] = field(default_factory=list)
    num_read: int = 0
    num_written: int = 0
    used: dict[str, float] = field(default_factory=dict)


def ask(engine: Engine, chat: ChatRenderer, questions: Sequence[Question], params: SamplingParams) -> Answers:
    """Answer questions with an engine, as many at a time as the engine holds.

    Args:
        engine: Engine that holds no episode.
        chat: Encodes the messages; special tokens spelled in them are plain text.
        questions: Independent questions.
        params: Sampling parameters and length limit of the answers.

    Raises:
        RuntimeError: The engine lost a request.
    """
    results: dict[int, TurnResult] = {}
    num_submitted = 0
    while len(results) < len(questions):
        while num_submitted < len(questions) and num_submitted - len(results) < engine.capacity:
            engine.submit(_make_request(engine, chat, num_submitted, questions[num_submitted], params))
            num_submitted += 1
        finished = engine.poll()
        if not finished and not engine.num_pending:
            raise RuntimeError("the engine has no pending request although some questions are not answered")
        for result in finished:
            results[result.episode] = result
            engine.close(result.episode)
    answers = [results[index] for index in range(len(questions))]
    return Answers(
        [_decode_answer(chat, result) for result in answers],
        sum(result.num_prefilled for result in answers),
        sum(len(result.tokens) for result in answers),
    )


def _make_request(
    engine: Engine, chat: ChatRenderer, number: int, question: Question, params: SamplingParams
) -> TurnRequest:
    message: Message = {"role": "user", "content": question.text}
    if engine.capabilities.token_ids:
        return TurnRequest(number, chat.render_opening([message]).tokens, question.key, params)
    return TurnRequest(number, (), question.key, params, messages=[message])


def _decode_answer(chat: ChatRenderer, result: TurnResult) -> str:
    """Return the text of an answer without its end-of-turn token."""
    if result.text is not None:
        return result.text
    tokens = result.tokens
    return chat.decode(tokens[:-1] if tokens and tokens[-1] in chat.end_of_turn_ids else tokens)
