"""An episode that a program plays, with chat requests in place of a game's texts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from lit_agentrl import screen
from lit_agentrl.engines.base import SamplingParams, TurnResult
from lit_agentrl.episode import EndReason, Episode, Turn
from lit_agentrl.experimental.gateway.context import Calls
from lit_agentrl.experimental.gateway.messages import ChatRequest
from lit_agentrl.experimental.gateway.session import MOST_CHARACTERS, Call, ChatSession
from lit_agentrl.rollout.episode import EpisodeInPlay, Request
from lit_agentrl.rollout.hooks import NO_HOOK, PlayHook
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.worlds.branch_point import BranchPoint
from lit_agentrl.rollout.worlds.environments import Answer
from lit_agentrl.text.lost_characters import count_lost

_said: set[str] = set()  # names of the lines that this process has printed


def note_once(name: str, line: str) -> None:
    """Print a line in the first process of a run, once for each name."""
    if name not in _said:
        _said.add(name)
        screen.note(line)


class ProgramInPlay(EpisodeInPlay):
    """An episode whose prompts are the chat requests of a program, see `AgentProgram`.

    Raises:
        ValueError: The run has a context, a structure or shots that only games support.
    """

    takes_any_reply: ClassVar[bool] = True

    def __init__(self, episode: Episode, rules: Rules, noise_seed: int = 0, hook: PlayHook = NO_HOOK) -> None:
        super().__init__(episode, rules, noise_seed, hook)
        if not isinstance(rules.context, Calls):
            raise ValueError(
                f"context={type(rules.context).__name__.lower()}: a program decides what the policy reads; set "
                "context=program"
            )
        if hook != NO_HOOK or rules.shots.get(self._task.name):
            raise ValueError(
                "algo.structure and prompt change the messages of a game, and a program writes its own; choose "
                "algo/structure=refill and no shots"
            )
        is_parallel = bool(getattr(self._task, "is_parallel", False))
        self._session = ChatSession(
            rules.chat,
            is_parallel=is_parallel,
            max_tokens=rules.max_context_tokens,
            show_tools=rules.context.show_tools,
        )
        self._call: Call | None = None  # the call that waits for its reply
        self._held: list[int] = []  # tokens that the engine holds

    def branch(self, child: Episode, turn: int, noise_seed: int) -> tuple[EpisodeInPlay, BranchPoint]:
        """Refuse to continue from a turn.

        Raises:
            ValueError: Always, because a program cannot be copied while it runs.
        """
        raise ValueError(
            "algo.structure: a program cannot be copied while it runs, so no episode continues from another; set "
            "algo/structure=refill"
        )

    def take(self, answer: Answer) -> None:
        """Handle the next request of the program, or its end."""
        if not self._record_answer(answer):
            self._order_turns()
            return
        self.asks, self.note = None, answer.result
        event = json.loads(self._observation)
        if "end" in event:
            self._finish(event["end"], answer)
            return
        if not self.episode.instance_id:
            self.episode.instance_id = answer.instance_id
        request = ChatRequest.from_plain(event["request"])
        for option in request.overruled:
            note_once(
                option.partition("=")[0],
                f"the program's {option} has no effect: the run decides how replies are sampled (rollout, val, test), "
                "and the model's template how messages are shown",
            )
        try:
            call = self._session.ask(request)
        except Exception as error:  # of a template or a dialect, which may be a user's
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            self._end(EndReason.ERROR, error=f"{kind}{error}")
            self._order_turns()
            return
        self._open(call, answer)

    begin = continue_play = take

    def _open(self, call: Call, answer: Answer) -> None:
        """Record a request that waits for its reply."""
        episode = self.episode
        self._call = call
        if not episode.opening:
            episode.opening = [
                {"role": message.role, "content": message.content} for message in call.request.messages
            ]
        episode.num_broken += call.new.broken
        shown = [] if call.is_too_long else [message.content for message in call.request.messages[-1:]]
        episode.num_lost += count_lost(self.rules.chat.tokenizer, shown).total()
        call.turn.probes = answer.probes
        episode.turns.append(call.turn)

    def make_request(self, params: SamplingParams) -> Request:
        """Return the new tokens if the engine holds all earlier ones, else the whole prompt."""
        assert self._call is not None
        limit = self._call.request.max_tokens
        if limit is not None and limit > params.max_reply_tokens:
            note_once(
                "max_tokens",
                f"the program asks for max_tokens={limit}, and rollout.max_reply_tokens={params.max_reply_tokens} "
                "bounds it",
            )
        if limit is not None and limit < params.max_reply_tokens:
            params = replace(params, max_reply_tokens=limit)
        prompt, held = self._call.prompt, self._held
        is_continued = bool(held) and len(prompt) > len(held) and prompt[: len(held)] == held
        self._held = prompt
        tokens: Sequence[int] = prompt[len(held) :] if is_continued else prompt
        is_new = not is_continued and len(self._session.calls) > 1
        return Request(tokens, self._call.address, params, is_new)

    def receive_reply(self, result: TurnResult) -> list[str]:
        """Record a reply; return the one action that sends it to the program."""
        episode, call = self.episode, self._call
        assert call is not None
        episode.num_prefilled += result.num_prefilled
        episode.num_shared += result.num_shared
        if result.error:
            self._end(EndReason.ERROR, error=result.error)
            self._order_turns()
            return []
        self._call = None
        call.turn.reward_parts = {"reward": 0.0}
        if not result.tokens:  # the context is full: the program gets an error, and may send less
            self._held = []
            episode.turns.pop()
            refusal = self._describe_overflow(call)
            call.request = ChatRequest(())  # frees messages, which may have megabytes
            call.turn = Turn("", call.turn.prefix_tokens, call.turn.prefix_segments)
            if not any(each.is_answered for each in self._session.calls):
                episode.opening = []
            return [json.dumps({"refusal": refusal})]
        episode.num_new += len(call.new.tokens)
        self._held = [*self._held, *result.tokens]
        try:
            reply = self._session.receive(call, result)
        except (Exception, SystemExit) as error:  # a dialect may be a user's
            kind = type(self.rules.chat.dialect).__name__
            self._end(EndReason.ERROR, error=f"dialect {kind} failed: {type(error).__name__}: {error}")
            self._order_turns()
            return []
        usage = {"prompt_tokens": len(call.prompt), "completion_tokens": len(call.turn.reply_tokens)}
        body: dict[str, Any] = {
            **reply,
            "usage": usage,
            "prompt_token_ids": call.prompt,
            "token_ids": call.turn.reply_tokens.tolist(),
            "logprobs": call.turn.reply_logps.tolist(),
        }
        return [json.dumps({"reply": body})]

    def _describe_overflow(self, call: Call) -> str:
        limit = f"rollout.max_context_tokens={self.rules.max_context_tokens}"
        if call.is_too_long:
            return f"context_length_exceeded: the messages have over {MOST_CHARACTERS} characters for each of {limit}"
        return f"context_length_exceeded: the prompt has {len(call.prompt)} tokens, of {limit}"

    def messages(self) -> list[Any]:
        """Refuse an engine that takes messages.

        Raises:
            ValueError: Always, because the record must hold the tokens that were read and sampled.
        """
        raise ValueError(
            "engine returns texts, and a program is trained on the tokens that were sampled; set engine=native, or "
            "engine=openai engine.mode=tokens"
        )

    def _finish(self, end: dict[str, Any], answer: Answer) -> None:
        """End the episode, and give each turn its rewards.

        A posted reward goes to the turn of its call.  The final reward goes to the last turn of the record, so that
        the return of every turn includes it.
        """
        for number, reward in end["posted"]:
            _add_reward(self._session.calls[number - 1].turn, reward, {"reward": reward}, None)
        if not any(call.is_answered for call in self._session.calls):
            self._end(EndReason.ERROR, error="the program ended before any call was answered")
        elif end["reason"] == "calls":
            self._end(EndReason.TURN_LIMIT)
        else:
            self._end(EndReason.SUCCESS if answer.success else EndReason.FAILURE, success=answer.success)
        self._order_turns()
        if not self.episode.failed:
            for step in answer.steps:
                _add_reward(self.episode.turns[-1], step.reward, step.reward_parts, step.cost)

    def _order_turns(self) -> None:
        """Replace the turns in the order of requests by those in the order of rows."""
        unanswered = [call.turn for call in self._session.calls[:1]]
        self.episode.turns = self._session.make_turns() or unanswered


def _add_reward(turn: Turn, reward: float, parts: Mapping[str, float], cost: float | None) -> None:
    turn.reward += reward
    turn.cost = turn.cost if cost is None else cost + (turn.cost or 0.0)
    for name, points in parts.items():
        turn.reward_parts[name] = turn.reward_parts.get(name, 0.0) + points
