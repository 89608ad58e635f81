"""A game that another process or machine serves over HTTP: ``lit-agentrl serve-env``, or a server of yours."""

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
    health,
)  # fmt: skip
from lit_agentrl.envs.hosted.wire import list_in, object_in, rng_of, text_in, tools_of
from lit_agentrl.envs.world import World

_recoveries = Recoveries(logging.getLogger(__name__))
_KNOWN = ("random", "best", "state", "rekey")


class Remote(World):
    """A game on the other side of ``url``, played as if it were here: the same texts, points and states.

    What the server does not say counts as unknown.  An episode that the server has lost, since it was started
    again, is begun and played again from its seeds and actions, and a warning counts it.

    Args:
        url: where the server listens, such as ``http://127.0.0.1:8100``.
        timeout_s: for one request with its whole answer.
        patience_s: how long a server that is gone is waited for, in the middle of an episode.
        max_mb: of one answer.
        split: ``train``, ``val`` or ``test``.

    Raises:
        ValueError: an option out of range, nobody listens, or it is no server of games.
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
        game = health(self._link)
        require_whole("max_solution", game.get("max_solution", 1), 1)
        self.max_solution, self.instances = game.get("max_solution", 1), game.get("instances")
        if self.instances is not None:
            require_whole("instances", self.instances, 1)
        self._knows = [each for each in _KNOWN if each in list_in(game, "knows")]
        self.has_state = "state" in self._knows
        self._session: str | None = None
        self._is_running = False
        self._begun: dict[str, Any] = {}  # what the episode was begun with
        self._opening: tuple[str, str] | None = None  # its first observation and instance_id
        self._since: list[
            tuple[str, dict[str, Any], str]
        ] = []  # what has changed it, and what it showed then
        self._number = 0  # steps of this session
        self._seen = ""
        self._now: dict[str, Any] = {}
        self._tools: tuple[ToolSpec, ...] = ()

    @classmethod
    def identity(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """What is served, wherever; the url where the server does not say."""
        link = Link(options["url"], timeout_s=options["timeout_s"], max_mb=options["max_mb"])
        try:
            return {"served": str(health(link).get("identity") or options["url"]), "split": options["split"]}
        finally:
            link.close()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        given = {"noise_seed": seed, **(options or {})}
        unknown = sorted(set(given) - {"noise_seed"})
        require(not unknown, "options", unknown, "empty, or {noise_seed: number}")
        for name, value in (("seed", seed), ("noise_seed", given["noise_seed"])):
            is_whole = isinstance(value, int | np.integer) and value >= 0
            require(bool(is_whole), name, value, "a whole number >= 0: it addresses the draws")
        self._leave()
        assert seed is not None
        self._begun = {"split": self.split, "seed": int(seed), "noise_seed": int(given["noise_seed"])}
        self._opening, self._since = None, []
        answer = self._waited(self._begin)
        self._seen, self._is_running = text_in(answer, "observation"), True
        return self._seen, object_in(answer, "info")

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if not self._is_running:
            raise ResetNeeded("step: no game is running; call reset(seed=...) first")
        answer = self._changed("/step", {"action": action})
        reward, terminated, truncated = (
            answer.get(key, False) for key in ("reward", "terminated", "truncated")
        )
        require_number("reward", reward, "a finite number")
        for name, value in (("terminated", terminated), ("truncated", truncated)):
            require(isinstance(value, bool), name, value, "true or false")
        self._is_running = not (terminated or truncated)
        return self._seen, float(reward), terminated, truncated, object_in(answer, "info")

    def close(self) -> None:
        self._leave()
        self._link.close()

    @property
    def rules(self) -> str:
        return str(self._now.get("rules") or "")

    @property
    def system_text(self) -> str | None:
        text = self._now.get("system_text")
        return None if text is None else str(text)

    def action_names(self) -> list[str] | None:
        names = self._now.get("names")
        return None if names is None else [str(name) for name in names]

    def tools(self) -> Sequence[ToolSpec]:
        return self._tools

    def action_format(self) -> Format:
        found: Format | None = self._now.get("format")
        return super().action_format() if found is None else found

    def random_action(self, rng: np.random.Generator) -> str | None:
        if "random" not in self._knows:
            return super().random_action(rng)
        answer = self._asked("/random", {"rng": rng.bit_generator.state})
        rng.bit_generator.state = rng_of(answer.get("rng")).bit_generator.state
        action = answer.get("action")
        return None if action is None else str(action)

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        require_whole("horizon", horizon, 1)
        if "best" not in self._knows:
            return None
        plan = self._asked("/best", {"horizon": horizon}).get("actions")
        return None if plan is None else [str(action) for action in plan]

    def state_key(self) -> int:
        return int(self._now.get("state_key", 0))

    def rekey(self, noise_seed: int) -> None:
        if "rekey" in self._knows:
            self._changed("/rekey", {"noise_seed": int(noise_seed)})

    def state_dict(self) -> dict[str, Any]:
        """The state of the game there, and whether it is over."""
        game = object_in(self._asked("/state", {}), "state")
        return {"game": game, "is_running": self._is_running, "seen": self._seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._since, self._seen = [], str(state["seen"])  # what was before does not matter any more
        self._changed("/load", {"state": state["game"]})
        self._is_running = bool(state["is_running"])

    def __getstate__(self) -> dict[str, Any]:
        state = json.dumps(self.state_dict()) if self._session is not None else None
        return {"options": self._options, "split": self.split, "begun": self._begun, "state": state}

    def __setstate__(self, saved: Mapping[str, Any]) -> None:
        self.__init__(**saved["options"], split=saved["split"])  # type: ignore[misc]
        if saved["state"] is not None:
            begun = saved["begun"]
            self.reset(seed=begun["seed"], options={"noise_seed": begun["noise_seed"]})
            self.load_state_dict(json.loads(saved["state"]))

    def _begin(self) -> dict[str, Any]:
        """Begin the episode, on whatever server is there now, and bring it to where it was; its first answer."""
        self._session, self._number, self._now = None, 0, {}
        first = self._link.ask("/reset", self._begun)
        session, opening = (
            text_in(first, "session"),
            (text_in(first, "observation"), str(object_in(first, "info").get("instance_id", ""))),
        )
        self._take(first)
        is_same = self._opening in (None, opening)
        for path, body, seen in self._since:
            is_same = is_same and self._send(session, path, body).get("observation", seen) == seen
        if not is_same:
            raise ValueError(
                f"the game at {self._link.url} has lost the episode, and played again it shows something else"
            )
        self._session, self._opening = session, opening
        return first

    def _send(self, session: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        number = {"number": self._number + 1} if path == "/step" else {}  # a step is not played twice
        answer = self._link.ask(path, {"session": session, **number, **body})
        self._number += len(number)
        self._take(answer)
        return answer

    def _asked(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of the episode's server, which may have gone and come back in between."""

        def ask() -> dict[str, Any]:
            if self._session is None:
                self._begin()
                _recoveries.tell(f"the game at {self._link.url}")
            assert self._session is not None
            return self._send(self._session, path, body)

        if not self._begun:
            raise ResetNeeded(f"{path[1:]}: no game is running; call reset(seed=...) first")
        return self._waited(ask)

    def _changed(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self._asked(path, body)
        if "observation" in answer:
            self._seen = text_in(answer, "observation")
        self._since.append((path, body, self._seen))
        return answer

    def _waited(self, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Ask until there is an answer.

        Raises:
            ValueError: there is none in time, or it makes no sense.
        """
        ends = time.monotonic() + self._patience_s
        while True:
            try:
                return ask()
            except Late:  # what hangs would also keep whoever says goodbye
                self._session = None
                raise
            except (Lost, Unreachable) as error:
                is_lost = isinstance(error, Lost)
                self._session = None if is_lost else self._session
                if time.monotonic() >= ends:
                    reason = "it forgets its episodes" if is_lost else str(error)
                    raise ValueError(
                        f"the game at {self._link.url} is gone ({reason}), and was waited for "
                        f"patience_s={self._patience_s:g}"
                    ) from None
                time.sleep(0.0 if is_lost else PAUSE_S)

    def _take(self, answer: Mapping[str, Any]) -> None:
        """What has changed of what can be done."""
        now = object_in(answer, "now")
        if "format" in now:
            require(now["format"] in FORMATS, "format", now["format"], f"one of {', '.join(FORMATS)}")
        if "names" in now and now["names"] is not None:
            list_in(now, "names")
        if "state_key" in now:
            require_whole("state_key", now["state_key"], 0, 2**63 - 1)
        if "tools" in now:
            self._tools = tools_of(list_in(now, "tools"))
        self._now = {**self._now, **now}

    def _leave(self) -> None:
        """Give the session back; a server that is gone has none."""
        session, self._session, self._is_running = self._session, None, False
        self._now, self._tools = {}, ()
        if session is not None:
            try:
                self._link.ask("/close", {"session": session})
            except (Lost, Unreachable, ValueError):
                self._link.close()
