"""A game of an OpenEnv server (Meta, Hugging Face), played over its websocket."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from lit_agentrl.actions import ToolSpec
from lit_agentrl.checks import escape_unprintable, require, require_number, require_whole
from lit_agentrl.envs.adapters.base import Replayed
from lit_agentrl.envs.base import Outcome
from lit_agentrl.envs.hosted.link import Late, Link, Lost, Recoveries, Unreachable, check_waits
from lit_agentrl.envs.hosted.openenv_actions import (
    LIST_TOOLS,
    ActionFormat,
    derive_format,
    format_observation,
    parse_listed,
)
from lit_agentrl.envs.hosted.openenv_session import Gone, Refused, Session
from lit_agentrl.envs.hosted.wire import get_object
from lit_agentrl.envs.splits import stable_hash

_recoveries = Recoveries(logging.getLogger(__name__))
_COUNTERS = {"episode_id", "step_count"}  # entries of a state that do not describe the game


class OpenEnv(Replayed):
    """Each game has its own session; resets send the seed, answers hold reward and ``done``.

    An instance is identified by what it first shows and by the state that the server reports.  All randomness comes
    from the seed, so the episodes of a group share the same random draws.  The server cannot save a game: to restore or
    branch a game, or after the server has lost it, the game is started again and its actions are replayed; the replay
    must show the same texts.  The OpenEnv library is not needed.

    Args:
        url: address of the server, such as ``http://127.0.0.1:8000``.
        field: field of an action that a reply fills; None: the only one, or the action is a tool call.
        show: fields of an observation that the policy sees; None: all.
        told: the rules shown to the policy; None: the server's own description.
        options: further arguments of each reset, if the server takes any.
        success_reward: a game is solved if its last reward is at least this; None: if it is above 0.
        instances: 1 if all seeds start the same game; all splits then share it.
        timeout_s: seconds for one answer.
        patience_s: how long to wait for a server that is gone, seconds.
        max_mb: size of one answer, MiB.
        max_chars: characters of an observation that are shown.
        split: ``train``, ``val`` or ``test``.

    Raises:
        ValueError: an option is out of range, nobody listens, it is no OpenEnv server, or the library is missing.
    """

    foreign: ClassVar[tuple[str, ...]] = ("_session",)
    _session: Session | None

    def __init__(
        self,
        *,
        url: str,
        field: str | None = None,
        show: Sequence[str] | None = None,
        told: str | None = None,
        options: Mapping[str, Any] | None = None,
        success_reward: float | None = None,
        instances: int | None = None,
        timeout_s: float = 60.0,
        patience_s: float = 30.0,
        max_mb: float = 16.0,
        max_chars: int = 8000,
        split: str = "train",
    ) -> None:
        super().__init__(split=split)
        check_waits(timeout_s=timeout_s, patience_s=patience_s, max_mb=max_mb)
        require_whole("max_chars", max_chars, 1)
        require(instances in (None, 1), "instances", instances, "null or 1")
        if success_reward is not None:
            require_number("success_reward", success_reward, "a number, or null")
        self.instances, self._success_reward = instances, success_reward
        self._session_options = {"timeout_s": timeout_s, "patience_s": patience_s, "max_mb": max_mb}
        self._url, self._show, self._max_chars = url, None if show is None else list(show), max_chars
        self._options = dict(options or {})
        description, schema = fetch_descriptions(url, timeout_s=timeout_s, max_mb=max_mb)
        self._rules = str(description.get("description") or "") if told is None else told
        self._format: ActionFormat = derive_format(schema, field)
        self._is_repeatable = False  # whether equal seeds have been seen to start equal games
        self._number = 0
        self._opening = ""
        # actions of this episode, and their answers
        self._sent_actions: list[tuple[dict[str, Any], str]] = []
        self._observation, self._reported_state = "", ""
        self._open()

    @classmethod
    def identity(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the server's description, without its address, and the options that change the game."""
        description, schema = fetch_descriptions(
            options["url"], timeout_s=options["timeout_s"], max_mb=options["max_mb"]
        )
        game_options = {
            k: v for k, v in options.items() if k not in ("url", "timeout_s", "patience_s", "max_mb")
        }
        return {
            **game_options,
            "name": description.get("name"),
            "version": description.get("version"),
            "action": schema,
        }

    @property
    def rules(self) -> str:
        return self._rules

    def action_names(self) -> list[str] | None:
        return None if self._format.values is None else list(self._format.values)

    def tools(self) -> Sequence[ToolSpec]:
        return self._format.tools

    def close(self) -> None:
        """End the session."""
        if self._session is not None:
            self._session.close()

    def _draw_instance(self, seed: int) -> str:
        try:
            content = super()._draw_instance(seed)
        except ValueError as error:
            if not str(error).startswith("no instance for split"):
                raise
            raise self._make_error(
                f"begins no game that belongs to split={self.split}; where all its seeds begin the same one, set "
                "env.game.instances=1"
            ) from error
        if not self._is_repeatable:
            self._begin(self._number)
            if self._get_content() != content:
                raise self._make_error(
                    "begins two games with the same seed, so a group would not share one; have its reset mind the seed"
                )
            self._is_repeatable = True
        return content

    def _begin(self, number: int) -> None:
        self._number, self._sent_actions, self._opening = number, [], ""
        if self._format.calls_server and not self._format.tools:
            self._ask("reset", self._reset_arguments)
            tools = self._ask("step", LIST_TOOLS)
            try:
                self._format = parse_listed(get_object(tools, "observation"))
            except ValueError as error:
                raise self._make_error(f"lists tools that cannot be used: {error}") from error
        answer = self._ask("reset", self._reset_arguments)
        self._opening = self._read(answer)[0]
        if answer.get("done"):
            raise self._make_error("is over at its beginning")

    def _get_content(self) -> str:
        return json.dumps([self._observation, self._reported_state])

    def _observe(self) -> str:
        return self._observation

    def _act(self, action: str) -> Outcome:
        data = self._format.convert(action)
        try:
            reward, done, text = self._step(data)
        except Refused as error:
            self._observation = text = escape_unprintable(f"error: {error}")
            self._sent_actions.append((data, text))
            return Outcome(action_is_valid=False)
        self._sent_actions.append((data, text))
        least = self._success_reward
        is_solved = done and (reward > 0 if least is None else reward >= least)
        return Outcome({"reward": reward}, terminated=done, success=is_solved)

    def _get_state(self) -> dict[str, Any]:
        return {**super()._get_state(), "seen": self._observation}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        super()._set_state(state)
        if self._observation != state["seen"]:
            raise self._make_error("shows something else when a game is played again")

    def state_key(self) -> int:
        """Return a stable 63-bit hash of the observation and of the reported state."""
        return stable_hash(f"{type(self).__name__} {self._get_content()}")

    @property
    def _reset_arguments(self) -> dict[str, Any]:
        return {**self._options, "seed": self._number, "episode_id": str(self._number)}

    def _step(self, data: dict[str, Any]) -> tuple[float, bool, str]:
        """Play a step; return its reward, ``done``, and the whole answer as text."""
        answer = self._ask("step", data)
        text, reward = self._read(answer)
        return reward, bool(answer.get("done")), text

    def _read(self, answer: Mapping[str, Any]) -> tuple[str, float]:
        """Store what an answer shows; return the whole answer as text, and its reward."""
        assert self._session is not None
        try:
            observation = get_object(answer, "observation")
            self._observation = format_observation(observation, self._show, self._max_chars)
            reward = answer.get("reward")
            reward = 0.0 if reward is None else reward
            require_number("reward", reward, "a finite number or null")
        except ValueError as error:
            raise self._make_error(f"answers what cannot be used: {error}") from error
        try:
            state = self._session.ask("state")
        except (Refused, Gone):  # no state is reported, or the server is gone, which the next request finds
            state = {}
        self._reported_state = json.dumps(
            {k: v for k, v in state.items() if k not in _COUNTERS}, sort_keys=True
        )
        return json.dumps([self._observation, float(reward), bool(answer.get("done"))]), float(reward)

    def _ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the server, which may have restarted in between."""
        if self._session is None:
            self._session = Session(self._url, **self._session_options)
        for _ in range(2):
            if not self._session.is_open:
                self._session.open()
                if kind == "step" and data != LIST_TOOLS:
                    self._replay_episode()
            try:
                return self._session.ask(kind, data)
            except Gone:
                continue
        raise self._make_error(f"ended twice at a {kind}")

    def _replay_episode(self) -> None:
        """Replay the episode in a new session after the old one was lost."""
        assert self._session is not None
        try:
            is_same = self._read(self._session.ask("reset", self._reset_arguments))[0] == self._opening
            for data, text_before in self._sent_actions:
                try:
                    text = self._read(self._session.ask("step", data))[0]
                except Refused as error:
                    text = escape_unprintable(f"error: {error}")
                is_same = is_same and text == text_before
        except Gone:
            raise self._make_error("ended twice in an episode") from None
        if not is_same:
            raise self._make_error("has lost the episode, and played again it shows something else")
        _recoveries.count(f"the OpenEnv server {self._url}")

    def _make_error(self, problem: str) -> ValueError:
        return ValueError(escape_unprintable(f"the OpenEnv server {self._url} {problem}"))


def fetch_descriptions(url: str, *, timeout_s: float, max_mb: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Ask a server for its description and the schema of its actions.

    Raises:
        ValueError: nobody listens, or it is no OpenEnv server.
    """
    link = Link(url, timeout_s=timeout_s, max_mb=max_mb)
    try:
        description, schemas = link.ask("/metadata"), link.ask("/schema")
    except (Unreachable, Lost, Late) as error:
        raise ValueError(
            escape_unprintable(f"url={url} does not answer ({error}); start the OpenEnv server there")
        ) from None
    finally:
        link.close()
    action = get_object(schemas, "action")
    require(bool(action), "url", url, "an OpenEnv server; this one tells no schema of actions")
    return description, action
