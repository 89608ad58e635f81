"""A game served over HTTP by another process: ``lit-agentrl serve-env``, or your own server."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.error import ResetNeeded

from lit_agentrl.actions import FORMATS, Format, ToolSpec
from lit_agentrl.checks import require, require_number, require_whole
from lit_agentrl.envs.hosted.link import (
    PAUSE_S,
    Late,
    Link,
    Lost,
    Recoveries,
    Unreachable,
    check_waits,
    fetch_description,
)  # fmt: skip
from lit_agentrl.envs.hosted.wire import get_list, get_object, get_text, parse_tools, restore_rng
from lit_agentrl.envs.world import World

_recoveries = Recoveries(logging.getLogger(__name__))
_ABILITIES = ("random", "best", "state", "rekey")


class Remote(World):
    """A game behind ``url``, with the same texts, rewards and states as a local one.

    What the server does not provide counts as unknown.  If the server restarts and loses an episode, the episode is
    replayed from its seeds and actions, and a warning counts it.

    Args:
        url: address of the server, such as ``http://127.0.0.1:8100``.
        timeout_s: seconds for one request with its whole answer.
        patience_s: seconds to wait for a server that disappears during an episode.
        max_mb: size of one answer, MiB.
        split: ``train``, ``val`` or ``test``.

    Raises:
        ValueError: an option is out of range, nobody listens, or it is no server of games.
    """

    def __init__(
        self,
        *,
        url: str,
        timeout_s: float = 60.0,
        patience_s: float = 30.0,
        max_mb: float = 16.0,
        split: str = "train",
    ) -> None:
        super().__init__(split=split)
        check_waits(timeout_s=timeout_s, patience_s=patience_s, max_mb=max_mb)
        self._options = {"url": url, "timeout_s": timeout_s, "patience_s": patience_s, "max_mb": max_mb}
        self._patience_s = patience_s
        self._link = Link(url, timeout_s=timeout_s, max_mb=max_mb)
        game = fetch_description(self._link)
        require_whole("max_solution", game.get("max_solution", 1), 1)
        self.max_solution, self.instances = game.get("max_solution", 1), game.get("instances")
        if self.instances is not None:
            require_whole("instances", self.instances, 1)
        self._abilities = [ability for ability in _ABILITIES if ability in get_list(game, "knows")]
        self.has_state = "state" in self._abilities
        self._session: str | None = None
        self._is_running = False
        self._start_request: dict[str, Any] = {}  # body of the request that started the episode
        self._opening: tuple[str, str] | None = None  # its first observation and instance_id
        # requests that changed the episode, each with the observation after it
        self._changes: list[tuple[str, dict[str, Any], str]] = []
        self._num_steps = 0  # of this session
        self._observation = ""
        # the game's current format, names, rules and others
        self._description: dict[str, Any] = {}
        self._tools: tuple[ToolSpec, ...] = ()

    @classmethod
    def identity(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the identity that the server reports, or its url if it reports none."""
        link = Link(options["url"], timeout_s=options["timeout_s"], max_mb=options["max_mb"])
        try:
            return {
                "served": str(fetch_description(link).get("identity") or options["url"]),
                "split": options["split"],
            }
        finally:
            link.close()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        seed = self.choose_seed(seed)
        options_with_seed = {"noise_seed": seed, **(options or {})}
        unknown = sorted(set(options_with_seed) - {"noise_seed"})
        require(not unknown, "options", unknown, "empty, or {noise_seed: number}")
        for name, value in (("seed", seed), ("noise_seed", options_with_seed["noise_seed"])):
            is_whole = isinstance(value, int | np.integer) and value >= 0
            require(bool(is_whole), name, value, "a whole number >= 0: it addresses the draws")
        self._close_session()
        self._start_request = {
            "split": self.split,
            "seed": int(seed),
            "noise_seed": int(options_with_seed["noise_seed"]),
        }
        self._opening, self._changes = None, []
        answer = self._retry(self._begin)
        self._observation, self._is_running = get_text(answer, "observation"), True
        return self._observation, get_object(answer, "info")

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if not self._is_running:
            raise ResetNeeded("step: no game is running; call reset(seed=...) first")
        answer = self._change("/step", {"action": action})
        reward, terminated, truncated = (
            answer.get(key, False) for key in ("reward", "terminated", "truncated")
        )
        require_number("reward", reward, "a finite number")
        for name, value in (("terminated", terminated), ("truncated", truncated)):
            require(isinstance(value, bool), name, value, "true or false")
        self._is_running = not (terminated or truncated)
        return self._observation, float(reward), terminated, truncated, get_object(answer, "info")

    def close(self) -> None:
        self._close_session()
        self._link.close()

    @property
    def rules(self) -> str:
        return str(self._description.get("rules") or "")

    @property
    def system_text(self) -> str | None:
        text = self._description.get("system_text")
        return None if text is None else str(text)

    def action_names(self) -> list[str] | None:
        names = self._description.get("names")
        return None if names is None else [str(name) for name in names]

    def tools(self) -> Sequence[ToolSpec]:
        return self._tools

    def action_format(self) -> Format:
        format: Format | None = self._description.get("format")
        return super().action_format() if format is None else format

    def random_action(self, rng: np.random.Generator) -> str | None:
        if "random" not in self._abilities:
            return super().random_action(rng)
        answer = self._ask("/random", {"rng": rng.bit_generator.state})
        rng.bit_generator.state = restore_rng(answer.get("rng")).bit_generator.state
        action = answer.get("action")
        return None if action is None else str(action)

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        require_whole("horizon", horizon, 1)
        if "best" not in self._abilities:
            return None
        plan = self._ask("/best", {"horizon": horizon}).get("actions")
        return None if plan is None else [str(action) for action in plan]

    def state_key(self) -> int:
        return int(self._description.get("state_key", 0))

    def rekey(self, noise_seed: int) -> None:
        if "rekey" in self._abilities:
            self._change("/rekey", {"noise_seed": int(noise_seed)})

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the served game, and whether it is running."""
        game = get_object(self._ask("/state", {}), "state")
        return {"game": game, "is_running": self._is_running, "seen": self._observation}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._changes, self._observation = [], str(state["seen"])  # a replay starts from the loaded state
        self._change("/load", {"state": state["game"]})
        self._is_running = bool(state["is_running"])

    def __getstate__(self) -> dict[str, Any]:
        state = json.dumps(self.state_dict()) if self._session is not None else None
        return {"options": self._options, "split": self.split, "begun": self._start_request, "state": state}

    def __setstate__(self, saved: Mapping[str, Any]) -> None:
        self.__init__(**saved["options"], split=saved["split"])  # type: ignore[misc]
        if saved["state"] is not None:
            request = saved["begun"]
            self.reset(seed=request["seed"], options={"noise_seed": request["noise_seed"]})
            self.load_state_dict(json.loads(saved["state"]))

    def _begin(self) -> dict[str, Any]:
        """Start the episode on the current server and replay it; return the first answer."""
        self._session, self._num_steps, self._description = None, 0, {}
        first = self._link.ask("/reset", self._start_request)
        session, instance = get_text(first, "session"), get_object(first, "info").get("instance_id", "")
        opening = get_text(first, "observation"), str(instance)
        self._store_description(first)
        is_same = self._opening in (None, opening)
        for path, body, seen in self._changes:
            is_same = is_same and self._send(session, path, body).get("observation", seen) == seen
        if not is_same:
            raise ValueError(
                f"the game at {self._link.url} has lost the episode, and played again it shows something else"
            )
        self._session, self._opening = session, opening
        return first

    def _send(self, session: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        # the server plays each number once, so a request that is sent again does not play a second step
        step_number = {"number": self._num_steps + 1} if path == "/step" else {}
        answer = self._link.ask(path, {"session": session, **step_number, **body})
        self._num_steps += len(step_number)
        self._store_description(answer)
        return answer

    def _ask(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the episode's server, which may have restarted in between."""

        def ask() -> dict[str, Any]:
            if self._session is None:
                self._begin()
                _recoveries.count(f"the game at {self._link.url}")
            assert self._session is not None
            return self._send(self._session, path, body)

        if not self._start_request:
            raise ResetNeeded(f"{path[1:]}: no game is running; call reset(seed=...) first")
        return self._retry(ask)

    def _change(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self._ask(path, body)
        if "observation" in answer:
            self._observation = get_text(answer, "observation")
        self._changes.append((path, body, self._observation))
        return answer

    def _retry(self, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Retry a request until it is answered.

        Raises:
            ValueError: no answer in time, or one that cannot be used.
        """
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                return ask()
            except Late:  # closing the session of a server that hangs would hang, too
                self._session = None
                raise
            except (Lost, Unreachable) as error:
                is_lost = isinstance(error, Lost)
                self._session = None if is_lost else self._session
                if time.monotonic() >= deadline:
                    reason = "it forgets its episodes" if is_lost else str(error)
                    raise ValueError(
                        f"the game at {self._link.url} is gone ({reason}), and was waited for "
                        f"patience_s={self._patience_s:g}"
                    ) from None
                time.sleep(0.0 if is_lost else PAUSE_S)

    def _store_description(self, answer: Mapping[str, Any]) -> None:
        """Update the game's description by the changes in an answer."""
        changes = get_object(answer, "now")
        if "format" in changes:
            require(changes["format"] in FORMATS, "format", changes["format"], f"one of {', '.join(FORMATS)}")
        if "names" in changes and changes["names"] is not None:
            get_list(changes, "names")
        if "state_key" in changes:
            require_whole("state_key", changes["state_key"], 0, 2**63 - 1)
        if "tools" in changes:
            self._tools = parse_tools(get_list(changes, "tools"))
        self._description = {**self._description, **changes}

    def _close_session(self) -> None:
        """Close the session; ignore a server that does not answer."""
        session, self._session, self._is_running = self._session, None, False
        self._description, self._tools = {}, ()
        if session is not None:
            try:
                self._link.ask("/close", {"session": session})
            except (Lost, Unreachable, ValueError):
                self._link.close()
