"""One episode in play: prompts, parsed actions, budgets, penalties, and the ledger of it all."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import numpy as np

from lit_agentrl.engines.base import TurnResult
from lit_agentrl.envs.world import World
from lit_agentrl.episode import EndReason, Episode, FinishReason, Turn
from lit_agentrl.rewards.base import Probe
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.text.chat import Prefix
from lit_agentrl.text.context import Past
from lit_agentrl.text.ledger import reply_segments


class EpisodeInPlay:
    """An episode whose next reply is awaited, or that is over.

    Attributes:
        episode: the record; complete once :attr:`is_over`.
        env: its environment.
        is_over: no further reply is wanted.
    """

    def __init__(
        self,
        episode: Episode,
        env: World,
        rules: Rules,
        probes: Mapping[str, Probe] | None = None,
    ) -> None:
        self.episode = episode
        self.env = env
        self.is_over = False
        self._task = rules.tasks[episode.task]
        self._prompt = rules.prompt
        self._chat = rules.chat
        self._context = rules.context
        self._actions_left = self._task.max_actions
        self._probes = probes or {}
        self._observation = self._complaint = ""

    def begin(self, *, noise_seed: int) -> None:
        """Reset the game and write the opening prompt; a game that fails ends the episode."""
        task, episode = self._task, self.episode
        try:
            with self._timed():
                self._observation, info = self.env.reset(
                    seed=episode.instance_seed, options={"noise_seed": noise_seed}
                )
            episode.instance_id = str(info.get("instance_id", ""))
            rules, system_text, actions = self.env.rules, self.env.system_text, self.env.actions()
            state_key, probes = self.env.state_key(), self._measured()
        except Exception as error:  # whatever a user's game raises is this episode's failure, not the run's
            self._fail(error)
            return
        opening = partial(
            self._prompt.opening,
            name=task.name,
            rules=rules,
            actions=actions,
            dialect=self._chat.dialect,
            system_text=system_text,
            observation=self._observation,
            max_turns=task.max_turns,
            max_actions=task.max_actions,
            max_actions_per_turn=task.max_actions_per_turn if actions.format == "names" else 1,
        )
        self._past = Past(opening, episode.turns)
        episode.opening = opening()
        self._open_turn("", self._chat.opening(episode.opening), state_key, probes)

    def answer(self, result: TurnResult) -> None:
        """Record a reply, play its actions, and either open the next turn or end the episode."""
        episode, turn = self.episode, self.episode.turns[-1]
        episode.num_prefilled += result.num_prefilled
        episode.num_shared += result.num_shared
        if result.error:
            self._end(EndReason.ERROR, error=result.error)
            return
        if not result.tokens:  # the prompt did not fit: the turn was never taken
            if len(episode.turns) > 1:
                episode.turns.pop()
            self._end(EndReason.CONTEXT_LIMIT)
            return
        episode.num_new += len(self._past.pieces[-1].tokens)
        forced = self._chat.forced_think
        turn.reply_tokens, turn.reply_logps = np.array(result.tokens), np.array(result.logps)
        turn.reply_entropies = np.array(result.entropies)
        turn.policy_version, turn.finish = result.policy_version, result.finish
        turn.reply_text = self._chat.decode(result.tokens)
        segments = reply_segments(
            self._chat.tokenizer, result.tokens, forced_think=forced, dialect=self._chat.dialect
        )
        turn.reply_segments = np.array(segments, np.int8)
        try:
            ended, success = self._play(
                turn, (self._chat.dialect.think_start if forced else "") + turn.reply_text
            )
            state_key, probes = (0, {}) if ended else (self.env.state_key(), self._measured())
        except Exception as error:  # as in begin()
            self._fail(error)
            return
        self._continue_or_end(turn, ended, success, state_key, probes)

    def _play(self, turn: Turn, text: str) -> tuple[bool, bool]:
        task = self._task
        dialect = self._chat.dialect
        reply = dialect.parse(text, self.env.actions(), think=self._prompt.think)
        turn.is_valid, turn.problem, turn.has_think = reply.is_valid, reply.problem, reply.has_think
        turn.is_well_formed, self._complaint = reply.is_well_formed, reply.complaint
        allowed = min(task.max_actions_per_turn, self._actions_left)
        turn.num_surplus_actions = max(0, len(reply.actions) - allowed)
        ended = success = False
        for action in reply.actions[:allowed]:
            with self._timed():
                self._observation, reward, terminated, truncated, info = self.env.step(action)
            turn.actions.append(action)
            turn.reward += reward
            for name, points in info.get("reward_parts", {"reward": reward}).items():
                turn.reward_parts[name] = turn.reward_parts.get(name, 0.0) + points
            self._actions_left -= 1
            if not info.get("action_is_valid", True):
                turn.is_valid = False
                turn.problem, self._complaint = dialect.rejected(action)
            if ended := terminated or truncated:
                success = bool(info["success"])
                break
        if not turn.is_valid:
            turn.reward += task.invalid_penalty
            turn.reward_parts["invalid"] = task.invalid_penalty
        return ended, success

    def _continue_or_end(
        self, turn: Turn, ended: bool, success: bool, state_key: int, probes: dict[str, float]
    ) -> None:
        turns_left = self._task.max_turns - len(self.episode.turns)
        if ended:
            self._end(EndReason.SUCCESS if success else EndReason.FAILURE, success=success)
        elif turn.finish is FinishReason.CONTEXT:
            self._end(EndReason.CONTEXT_LIMIT)
        elif not self._actions_left:
            self._end(EndReason.ACTION_LIMIT)
        elif not turns_left:
            self._end(EndReason.TURN_LIMIT)
        else:
            message = self._prompt.following(
                observation=self._observation,
                reward=turn.reward,
                complaint=self._complaint,
                turns_left=turns_left,
                actions_left=self._actions_left,
            )
            piece = self._chat.following(message, last_reply=turn.reply_tokens.tolist())
            self._open_turn(message, piece, state_key, probes)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Counts one call of the game, and what it takes."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.episode.env_calls += 1
            self.episode.env_seconds += time.perf_counter() - started

    def _measured(self) -> dict[str, float]:
        return {name: float(probe(self.env, self._observation)) for name, probe in self._probes.items()}

    def _open_turn(self, message: str, piece: Prefix, state_key: int, probes: dict[str, float]) -> None:
        past, is_first = self._past, not self.episode.turns
        past.messages.append(message)
        past.pieces.append(piece)
        prefix = self._context.prompt(past, self._chat)
        self.episode.turns.append(
            Turn(
                observation=self._observation,
                prefix_tokens=np.array(prefix.tokens),
                prefix_segments=np.array(prefix.segments, np.int8),
                message=message,
                starts_row=is_first or not self._context.is_append_only,
                state_key=state_key,
                probes=probes,
            )
        )

    def _fail(self, error: Exception) -> None:
        self._end(EndReason.ERROR, error=f"{type(error).__name__}: {error}")

    def _end(self, reason: EndReason, *, success: bool = False, error: str = "") -> None:
        self.is_over = True
        self.episode.end, self.episode.success, self.episode.error = reason, success, error
