"""A game of an OpenEnv server (Meta, Hugging Face), played over its websocket; the library itself is not needed."""

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
from lit_agentrl.envs.hosted.openenv_actions import LIST_TOOLS, Kind, kind_of, listed, shown
from lit_agentrl.envs.hosted.openenv_session import Gone, Refused, Session
from lit_agentrl.envs.hosted.wire import object_in
from lit_agentrl.envs.splits import stable_hash

_recoveries = Recoveries(logging.getLogger(__name__))
_COUNTERS = {"episode_id", "step_count"}  # of a state; they say nothing of the game


class OpenEnv(Replayed):
    """A session for each game; a reset sends the seed, and the reward and ``done`` of each answer count.

    An instance belongs to a split by what it shows first and what the server says of its state.  What is random
    comes from the seed alone, so the members of a group share it.  The server has no way to save a game: one that is
    saved, branched, or lost with its server is begun and played again, and must show the same.

    Args:
        url: where the server listens, such as ``http://127.0.0.1:8000``.
        field: of an action, that a reply fills; None: the only one, or the action is a call of a tool.
        show: fields of an observation that the policy sees; None: all.
        told: the rules that the policy is told; None: what the server says of itself.
        options: further arguments of each reset, where the server has any.
        success_reward: least last reward of a solved game; None: above 0.
        instances: 1 where all seeds begin the same game, which all splits then share.
        timeout_s: for one answer.
        patience_s: how long a server that is gone is waited for.
        max_mb: of one answer.
        max_chars: of an observation that are shown.
        split: ``train``, ``val`` or ``test``.

    Raises:
        ValueError: an option out of range, nobody listens, it is no such server, or the library is missing.
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
        self._of_session = {"timeout_s": timeout_s, "patience_s": patience_s, "max_mb": max_mb}
        self._url, self._show, self._most = url, None if show is None else list(show), max_chars
        self._options = dict(options or {})
        about, schema = described(url, timeout_s=timeout_s, max_mb=max_mb)
        self._told = str(about.get("description") or "") if told is None else told
        self._kind: Kind = kind_of(schema, field)
        self._is_repeatable = False  # seen to be
        self._number = 0
        self._opening = ""
        self._sent: list[tuple[dict[str, Any], str]] = []  # actions of this episode, and what they gave
        self._seen, self._hidden = "", ""
        self._open()

    @classmethod
    def identity(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the server says of itself, wherever it is, and the options that change the game."""
        about, schema = described(options["url"], timeout_s=options["timeout_s"], max_mb=options["max_mb"])
        own = {k: v for k, v in options.items() if k not in ("url", "timeout_s", "patience_s", "max_mb")}
        return {**own, "name": about.get("name"), "version": about.get("version"), "action": schema}

    @property
    def rules(self) -> str:
        return self._told

    def action_names(self) -> list[str] | None:
        return None if self._kind.values is None else list(self._kind.values)

    def tools(self) -> Sequence[ToolSpec]:
        return self._kind.tools

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
            raise self._wrong(
                f"begins no game that belongs to split={self.split}; where all its seeds begin the same one, set "
                "env.game.instances=1"
            ) from error
        if not self._is_repeatable:
            self._begin(self._number)
            if self._content() != content:
                raise self._wrong(
                    "begins two games with the same seed, so a group would not share one; have its reset mind the seed"
                )
            self._is_repeatable = True
        return content

    def _begin(self, number: int) -> None:
        self._number, self._sent, self._opening = number, [], ""
        if self._kind.calls_server and not self._kind.tools:
            self._asked("reset", self._of_reset)
            tools = self._asked("step", LIST_TOOLS)
            try:
                self._kind = listed(object_in(tools, "observation"))
            except ValueError as error:
                raise self._wrong(f"lists tools that cannot be used: {error}") from error
        answer = self._asked("reset", self._of_reset)
        self._opening = self._read(answer)[0]
        if answer.get("done"):
            raise self._wrong("is over at its beginning")

    def _content(self) -> str:
        return json.dumps([self._seen, self._hidden])

    def _observe(self) -> str:
        return self._seen

    def _act(self, action: str) -> Outcome:
        data = self._kind.data(action)
        try:
            reward, done, text = self._stepped(data)
        except Refused as error:
            self._seen = text = escape_unprintable(f"error: {error}")
            self._sent.append((data, text))
            return Outcome(action_is_valid=False)
        self._sent.append((data, text))
        least = self._success_reward
        is_solved = done and (reward > 0 if least is None else reward >= least)
        return Outcome({"reward": reward}, terminated=done, success=is_solved)

    def _get_state(self) -> dict[str, Any]:
        return {**super()._get_state(), "seen": self._seen}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        super()._set_state(state)
        if self._seen != state["seen"]:
            raise self._wrong("shows something else when a game is played again")

    def state_key(self) -> int:
        """Stable 63-bit hash of what is shown and of what the server says of its state."""
        return stable_hash(f"{type(self).__name__} {self._content()}")

    @property
    def _of_reset(self) -> dict[str, Any]:
        return {**self._options, "seed": self._number, "episode_id": str(self._number)}

    def _stepped(self, data: dict[str, Any]) -> tuple[float, bool, str]:
        """Reward and end of a step, and all of its answer."""
        answer = self._asked("step", data)
        text, reward = self._read(answer)
        return reward, bool(answer.get("done")), text

    def _read(self, answer: Mapping[str, Any]) -> tuple[str, float]:
        """Take what an answer shows; all of it in one text, and its reward."""
        assert self._session is not None
        try:
            observation = object_in(answer, "observation")
            self._seen = shown(observation, self._show, self._most)
            reward = answer.get("reward")
            reward = 0.0 if reward is None else reward
            require_number("reward", reward, "a finite number or null")
        except ValueError as error:
            raise self._wrong(f"answers what cannot be used: {error}") from error
        try:
            found = self._session.ask("state")
        except (Refused, Gone):  # it tells none; or the next question will find it gone
            found = {}
        self._hidden = json.dumps({k: v for k, v in found.items() if k not in _COUNTERS}, sort_keys=True)
        return json.dumps([self._seen, float(reward), bool(answer.get("done"))]), float(reward)

    def _asked(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of the server, which may have gone and come back in between."""
        if self._session is None:
            self._session = Session(self._url, **self._of_session)
        for _ in range(2):
            if not self._session.is_open:
                self._session.open()
                if kind == "step" and data != LIST_TOOLS:
                    self._again()
            try:
                return self._session.ask(kind, data)
            except Gone:
                continue
        raise self._wrong(f"ended twice at a {kind}")

    def _again(self) -> None:
        """Bring a new session to where the one that was lost stood."""
        assert self._session is not None
        try:
            is_same = self._read(self._session.ask("reset", self._of_reset))[0] == self._opening
            for data, before in self._sent:
                try:
                    text = self._read(self._session.ask("step", data))[0]
                except Refused as error:
                    text = escape_unprintable(f"error: {error}")
                is_same = is_same and text == before
        except Gone:
            raise self._wrong("ended twice in an episode") from None
        if not is_same:
            raise self._wrong("has lost the episode, and played again it shows something else")
        _recoveries.tell(f"the OpenEnv server {self._url}")

    def _wrong(self, what: str) -> ValueError:
        return ValueError(escape_unprintable(f"the OpenEnv server {self._url} {what}"))


def described(url: str, *, timeout_s: float, max_mb: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a server says of itself, and the schema of its actions.

    Raises:
        ValueError: nobody listens, or it is no such server.
    """
    link = Link(url, timeout_s=timeout_s, max_mb=max_mb)
    try:
        about, schemas = link.ask("/metadata"), link.ask("/schema")
    except (Unreachable, Lost, Late) as error:
        raise ValueError(
            escape_unprintable(f"url={url} does not answer ({error}); start the OpenEnv server there")
        ) from None
    finally:
        link.close()
    action = object_in(schemas, "action")
    require(bool(action), "url", url, "an OpenEnv server; this one tells no schema of actions")
    return about, action
