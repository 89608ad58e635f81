"""One episode in play: prompts, parsed actions, budgets, penalties and token records."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from lit_agentrl.engines.base import SamplingParams, TurnResult
from lit_agentrl.episode import EndReason, Episode, FinishReason, Message, Segment, Turn
from lit_agentrl.rollout.hooks import NO_HOOK, Moment, PlayHook, write_next, write_opening
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.worlds.branch_point import (
    BranchPoint,
    Node,
    copy_turn,
    copy_without_reply,
    describe_branch_point,
)
from lit_agentrl.rollout.worlds.environments import Answer, Look
from lit_agentrl.text.chat import ChatRenderer, Prefix
from lit_agentrl.text.context import Past, ShowsMessages
from lit_agentrl.text.dialects.base import Reply, may_hold_several_calls
from lit_agentrl.text.ledger import reply_segments
from lit_agentrl.text.lost_characters import count_lost
from lit_agentrl.text.prompts import add_shots


@dataclass(frozen=True)
class Request:
    """The engine's part of the next turn of an episode.

    Attributes:
        tokens: The episode's tokens that the engine does not hold yet.
        address: Address of the reply's random draws within the episode.
        params: Sampling parameters.
        is_new: Whether the engine must first forget the tokens that it holds of the episode.
    """

    tokens: Sequence[int]
    address: tuple[int, ...]
    params: SamplingParams
    is_new: bool


class EpisodeInPlay:
    """An episode that waits for its next reply, or that is over.

    Attributes:
        takes_any_reply: Whether replies are texts instead of actions; the dialect then writes no actions.
        episode: The record; complete once :attr:`is_over`.
        is_over: Whether no further reply is wanted.
        asks: Function to call on the game before the next reply.
        note: The result of ``asks``.
        rules: Rules by which the episode is played.
        tries_again: Whether the game must be reset for another try at the same task.

    Args:
        episode: Record with the address of the episode.
        rules: Rules by which the episode is played.
        noise_seed: Noise seed of the episode's game.
        hook: Deviations of this episode from the common rules.
    """

    takes_any_reply: ClassVar[bool] = False

    def __init__(self, episode: Episode, rules: Rules, noise_seed: int = 0, hook: PlayHook = NO_HOOK) -> None:
        self.episode = episode
        self.is_over = False
        self.asks: Look | None = None
        self.note: str | None = None
        self._reset_answer: Answer | None = None  # kept while the game answers the hook's question
        self.tries_again = False
        self._hook, self._tries, self._feedback = hook, hook.count_tries(), ""
        self.rules = rules
        self._noise = [(0, noise_seed)]  # pairs of (first turn, noise seed of the game from there on)
        self._nodes: list[Node] = []  # state of the game at the start of each turn
        self._has_copied_prompt = False  # whether the present prompt was copied from a parent
        self._task = rules.tasks[episode.task]
        self._prompt = rules.prompt
        self._chat = rules.chat
        self._context = rules.context
        self._actions_left = self._task.max_actions
        self._observation = self._complaint = ""

    def branch(self, child: Episode, turn: int, noise_seed: int) -> tuple[EpisodeInPlay, BranchPoint]:
        """Create an episode of the group that continues from a turn of this one.

        Args:
            child: Record of the new episode, which receives the turns before ``turn``.
            turn: Turn to continue from, counted from 0.
            noise_seed: Noise seed of the new episode's game from that turn on.

        Returns:
            The new episode, and how its game reaches that turn.

        Raises:
            ValueError: There is no such turn.
        """
        record = self.episode
        if turn >= len(self._nodes) or turn >= len(record.turns):
            raise ValueError(
                f"algo.structure: member {record.member} of group {record.group} has no turn {turn}"
            )
        child.instance_id, child.opening = record.instance_id, record.opening
        child.scenario, child.scenario_tasks = record.scenario, record.scenario_tasks
        owner = next((member for member, until in record.branches if turn <= until), record.member)
        child.branches = [entry for entry in record.branches if entry[1] < turn] + [(owner, turn)]
        child.turns = [*map(copy_turn, record.turns[:turn]), copy_without_reply(record.turns[turn])]
        play, node = EpisodeInPlay(child, self.rules), self._nodes[turn]
        past = self._past
        play._past = Past(past.opening, child.turns, past.messages[: turn + 1], past.pieces[: turn + 1])
        play._nodes = self._nodes[: turn + 1]
        play._noise = [*(entry for entry in self._noise if entry[0] < turn), (turn, noise_seed)]
        play._actions, play._actions_left = node.actions, node.actions_left
        play._has_copied_prompt = self._context.is_append_only
        return play, describe_branch_point(child.turns, play._noise, node.state)

    def take(self, answer: Answer) -> None:
        """Handle the game's answer to a reset, a branch, or the last actions."""
        turns = self.episode.turns
        if not turns:
            self.begin(answer)
        elif len(turns[-1].reply_tokens):
            self.continue_play(answer)
        else:
            self._record_answer(answer)
            self.asks, self.note = None, answer.result

    def make_request(self, params: SamplingParams) -> Request:
        """Return what the engine needs for the next reply; ``params`` are those of the wave."""
        turns = self.episode.turns
        is_new = turns[-1].starts_row and len(turns) > 1
        return Request(turns[-1].prefix_tokens.tolist(), (len(turns) - 1,), params, is_new)

    def begin(self, answer: Answer) -> None:
        """Write the opening prompt from the game's answer to its reset.

        A game that failed ends the episode.  An episode whose hook asks the game takes two answers: one to the reset,
        and one to the question.
        """
        task, episode = self._task, self.episode
        if not self._record_answer(answer):
            return
        hook_answer: str | None = None
        if self._reset_answer is None and (look := self._hook.ask_game(task)) is not None:
            self._reset_answer, self.asks = answer, look
            return
        if self._reset_answer is not None:
            hook_answer, answer, self.asks = answer.result, self._reset_answer, None
            if hook_answer is None:
                self._end(EndReason.ERROR, error=self._hook.no_answer)
                return
        episode.instance_id = answer.instance_id
        episode.scenario, episode.scenario_tasks = answer.scenario, answer.scenario_tasks
        moment = Moment(self._prompt, self._actions, self._observation, answer=hook_answer)
        make_opening = partial(
            add_shots,
            self.rules.shots.get(task.name, ()),
            name=task.name,
            rules=answer.rules,
            actions=self._actions,
            dialect=self._chat.dialect,
            system_text=answer.system_text,
            observation=self._observation,
            max_turns=task.max_turns * self._tries,
            max_actions=task.max_actions * self._tries,
            max_actions_per_turn=self._max_actions_per_reply,
        )
        opening = partial(make_opening, partial(write_opening, self._hook, moment))
        self._past = Past(opening, episode.turns)
        episode.opening = opening()
        self._open_turn("", self._chat.render_opening(episode.opening), answer)
        if (trained := self._hook.get_trained()) is not None:
            prefix = self._chat.render_opening(make_opening(partial(write_opening, trained, moment)))
            turn = episode.turns[0]
            turn.trained_tokens, turn.trained_segments = np.array(prefix.tokens), np.array(prefix.segments)

    def receive_reply(self, result: TurnResult) -> list[str]:
        """Record a reply and return the actions to play; none if the episode ends."""
        episode, turn = self.episode, self.episode.turns[-1]
        episode.num_prefilled += result.num_prefilled
        has_copied_prompt, self._has_copied_prompt = self._has_copied_prompt, False
        if not has_copied_prompt:
            episode.num_shared += result.num_shared
        if result.error:
            self._end(EndReason.ERROR, error=result.error)
            return []
        if result.text is not None:
            encode_text(result, self._chat)
        if not result.tokens:  # the prompt did not fit: the turn was never taken
            if len(episode.turns) > 1:
                episode.turns.pop()
            self._end(EndReason.CONTEXT_LIMIT)
            return []
        # in a copied prompt only the last token is read, to compute what follows it
        episode.num_new += 1 if has_copied_prompt else len(self._past.pieces[-1].tokens)
        turn.reply_tokens, turn.reply_logps = np.array(result.tokens), np.array(result.logps)
        turn.reply_entropies = np.array(result.entropies)
        turn.policy_version, turn.finish = result.policy_version, result.finish
        turn.reply_text = self._chat.decode(result.tokens)
        try:
            reply = self._parse_reply(turn)
        except ValueError as error:
            self._end(EndReason.ERROR, error=str(error))
            return []
        turn.is_valid, turn.problem, turn.has_think = reply.is_valid, reply.problem, reply.has_think
        turn.is_well_formed, self._complaint = reply.is_well_formed, reply.complaint
        allowed = min(self._max_actions_per_reply, self._actions_left)
        turn.num_surplus_actions = max(0, len(reply.actions) - allowed)
        return list(reply.actions[:allowed])

    def _parse_reply(self, turn: Turn) -> Reply:
        """Parse a reply and record the segments of its tokens.

        A reply that the game does not play has no actions.

        Raises:
            ValueError: The dialect (possibly a user's) fails, or cannot distinguish action names of the game.
        """
        chat, dialect = self._chat, self._chat.dialect
        text = (dialect.think_start if chat.forced_think else "") + turn.reply_text
        turn.reply_segments = np.full(len(turn.reply_tokens), Segment.OTHER, np.int8)
        try:
            segments = reply_segments(
                chat.tokenizer, turn.reply_tokens.tolist(), forced_think=chat.forced_think, dialect=dialect
            )
            turn.reply_segments = np.array(segments, np.int8)
            self._hook.after_reply(turn, self.episode.turns[:-1])
            if not self._hook.is_action(turn):
                has_think = bool((turn.reply_segments == Segment.THINK).any())
                return Reply(True, (), "", "", has_think)
            reply = dialect.parse(text, self._actions, think=self._prompt.think)
        except (Exception, SystemExit) as error:
            kind = type(dialect).__name__
            raise ValueError(f"dialect {kind} failed: {type(error).__name__}: {error}") from error
        if not isinstance(reply, Reply):
            raise ValueError(f"dialect: parse must return a Reply, and returned {type(reply).__name__}")
        return reply

    def messages(self) -> list[Message]:
        """Return the dialogue that the prompt of the current turn shows.

        Raises:
            ValueError: The context can only return tokens.
        """
        if not isinstance(self._context, ShowsMessages):
            raise ValueError(
                f"context={type(self._context).__name__} makes prompts of tokens alone, and the engine takes messages; "
                "give it a method messages, or use context=full, window or single"
            )
        shown = self._context.messages(replace(self._past, turns=self.episode.turns[:-1]))
        # engines get the tools from the method `tools`
        return [{key: text for key, text in message.items() if key != "tools"} for message in shown]

    def tools(self) -> list[dict[str, Any]]:
        """Return the tools that can be called now, in chat API format."""
        return [json.loads(tool.text) for tool in self._actions.tools]

    def continue_play(self, answer: Answer) -> None:
        """Record the game's answer to actions, then open the next turn or end the episode."""
        if self.tries_again:
            self._try_again(answer)
            return
        turn = self.episode.turns[-1]
        for step in answer.steps:
            turn.actions.append(step.action)
            turn.reward += step.reward
            turn.cost = turn.cost if step.cost is None else step.cost + (turn.cost or 0.0)
            for name, points in step.reward_parts.items():
                turn.reward_parts[name] = turn.reward_parts.get(name, 0.0) + points
            for name, number in step.counts.items():
                turn.counts[name] = turn.counts.get(name, 0.0) + number
            self._actions_left -= 1
            if not step.is_valid:
                turn.is_valid = False
                turn.problem, self._complaint = self._chat.dialect.rejected(step.action)
        if not self._record_answer(answer):
            return
        if not turn.is_valid:
            turn.reward += self._task.invalid_penalty
            turn.reward_parts["invalid"] = self._task.invalid_penalty
        self._continue_or_end(turn, answer)

    @property
    def _max_actions_per_reply(self) -> int:
        """The maximum number of actions in one reply."""
        kind = self._actions.format
        is_one = kind == "text" or (kind == "tools" and not may_hold_several_calls(self._chat.dialect))
        return 1 if is_one else self._task.max_actions_per_turn

    def _record_answer(self, answer: Answer) -> bool:
        """Record what every answer of a game contains; return False if the game failed."""
        self.episode.env_calls += answer.calls
        self.episode.env_seconds += answer.seconds
        if answer.error:
            self._end(EndReason.ENV_TIMEOUT if answer.timed_out else EndReason.ERROR, error=answer.error)
            return False
        if answer.observation is not None:
            self._observation = answer.observation
        if answer.actions is not None:
            self._actions = answer.actions
        return True

    def _continue_or_end(self, turn: Turn, answer: Answer) -> None:
        turns = self.episode.turns
        turns_left = self._task.max_turns * self._tries - sum(map(self._hook.is_action, turns))
        is_open = turns_left and turn.finish is not FinishReason.CONTEXT
        feedback = self._hook.after_turn(turn, is_solved=answer.success) if is_open else None
        if feedback is not None:
            self._feedback, self.tries_again = feedback, True
        elif answer.ended:
            end = EndReason.SUCCESS if answer.success else EndReason.FAILURE
            self._end(end, success=answer.success)
        elif turn.finish is FinishReason.CONTEXT:
            self._end(EndReason.CONTEXT_LIMIT)
        elif not self._actions_left:
            self._end(EndReason.ACTION_LIMIT)
        elif not turns_left:
            self._end(EndReason.TURN_LIMIT)
        else:
            moment = Moment(
                self._prompt, self._actions, self._observation, turns, turns_left, self._actions_left
            )
            message = write_next(self._hook, moment, reward=turn.reward, complaint=self._complaint)
            piece = self._chat.render_next(message, last_reply=turn.reply_tokens.tolist())
            self._open_turn(message, piece, answer)

    def _try_again(self, answer: Answer) -> None:
        """Open the next try from the answer to another reset."""
        self.tries_again = False
        if self._record_answer(answer):
            self._actions_left = self._task.max_actions
            last = self.episode.turns[-1].reply_tokens.tolist()
            message = self._feedback
            self._open_turn(message, self._chat.render_next(message, last_reply=last), answer)

    def _open_turn(self, message: str, piece: Prefix, answer: Answer) -> None:
        past, is_first = self._past, not self.episode.turns
        past.messages.append(message)
        past.pieces.append(piece)
        self._nodes.append(Node(self._actions, self._actions_left, answer.state))
        prefix = self._context.prompt(past, self._chat)
        self.episode.num_broken += prefix.broken
        shown = [message] if message else self.episode.prompt_texts
        self.episode.num_lost += count_lost(self._chat.tokenizer, shown).total()
        self.asks = self.rules.asks
        turn = Turn(
            observation=self._observation,
            prefix_tokens=np.array(prefix.tokens),
            prefix_segments=np.array(prefix.segments, np.int8),
            message=message,
            starts_row=is_first or not (self._context.is_append_only or prefix.continues),
            state_key=answer.state_key,
            probes=answer.probes,
        )
        self._hook.before_turn(turn, self.episode.turns)
        self.episode.turns.append(turn)

    def _end(self, reason: EndReason, *, success: bool = False, error: str = "") -> None:
        self.is_over = True
        self.episode.end, self.episode.success, self.episode.error = reason, success, error


def open_episode(
    episode: Episode, rules: Rules, noise_seed: int = 0, hook: PlayHook = NO_HOOK
) -> EpisodeInPlay:
    """Return an episode in play, of the class that its task names."""
    kind = rules.tasks[episode.task].play_class or EpisodeInPlay
    play: EpisodeInPlay = kind(episode, rules, noise_seed, hook)
    return play


def encode_text(result: TurnResult, chat: ChatRenderer) -> None:
    """Encode the text of a result as tokens, until the reply is complete.

    An empty text is encoded as a space.
    """
    dialect = chat.dialect
    text = (result.text or "") + (dialect.write(result.calls, thought=None) if result.calls else "")
    rule, state = dialect.stop(chat.tokenizer), ""
    for token in chat.encode(text or " "):
        result.tokens.append(token)
        state, is_complete = rule.update(state, token)
        if is_complete:
            break
    result.logps = result.entropies = [math.nan] * len(result.tokens)
    result.policy_version = -1
