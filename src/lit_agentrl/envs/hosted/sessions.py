"""The episodes of a served game, one session each, and the environments they are played in."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Mapping
from typing import Any

from lit_agentrl.envs.base import Task
from lit_agentrl.envs.hosted import asked
from lit_agentrl.envs.hosted.asked import Refused, Session
from lit_agentrl.envs.hosted.wire import PROTOCOL, packed, told
from lit_agentrl.envs.levels import make_game_key
from lit_agentrl.envs.splits import SPLITS
from lit_agentrl.envs.world import World

_log = logging.getLogger(__name__)
_BUSY_S = 60.0  # that a request waits for another one of its session


class Sessions:
    """The episodes of one game that are played at the same time, and the environments they are played in.

    Args:
        task: the game; its limits and hosting are those of whoever plays.
        most: sessions at a time.
        idle_s: a session that is asked nothing for so long is closed.
    """

    def __init__(self, task: Task, *, most: int, idle_s: float) -> None:
        self._task, self._most, self._idle_s = task, most, idle_s
        self._of_id: dict[str, Session] = {}
        self._spare: dict[str, list[World]] = {split: [] for split in SPLITS}
        self._begun = 0  # sessions whose environment is not ready yet
        self._guard = threading.Lock()
        self.episodes = self.expired = 0
        env = task.make("train")
        self._spare["train"].append(env)
        knows = {
            "random": type(env).random_action is not World.random_action,
            "best": type(env).optimal_actions is not World.optimal_actions,
            "rekey": type(env).rekey is not World.rekey,
            "state": env.has_state,
        }
        self._game = {
            "name": task.name,
            "identity": make_game_key(task),
            "max_solution": env.max_solution,
            "instances": env.instances,
            "knows": [name for name, is_known in knows.items() if is_known],
        }

    def answer(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Carry a request out.

        Raises:
            Refused: it makes no sense, the session is unknown, all are in use, or the game has failed.
        """
        if path == "/health":
            counts = {"sessions": len(self._of_id), "episodes": self.episodes, "expired": self.expired}
            return {"protocol": PROTOCOL, "game": self._game, "most": self._most, **counts}
        if path == "/reset":
            return self._reset(asked.split(body), asked.whole(body, "seed"), asked.whole(body, "noise_seed"))
        if path not in {*asked.KNOWN, "/close"}:
            raise Refused(
                404, f"there is no {path[:40]}; there are /health, /reset, /close, {', '.join(asked.KNOWN)}"
            )
        name = body.get("session")
        session = self._of_id.get(name) if isinstance(name, str) else None
        if session is None:
            raise Refused(404, "this session is not known (any more)", session="unknown")
        if path == "/close":
            return self._close(name)  # type: ignore[arg-type]  # it is a text
        if not session.lock.acquire(timeout=_BUSY_S):
            raise Refused(409, "another request of this session is still carried out")
        try:
            session.used = time.monotonic()
            return asked.KNOWN[path](session, body)
        except Refused:
            raise
        except (Exception, SystemExit) as error:  # a game of a user's, whose episode fails alone
            session.is_broken = True
            raise Refused(500, f"{type(error).__name__}: {error}") from error
        finally:
            session.used = time.monotonic()
            session.lock.release()
            if session.is_left:
                _end(session.env)

    def sweep(self) -> None:
        """Close the sessions that were asked nothing for long."""
        before = time.monotonic() - self._idle_s
        for name, session in list(self._of_id.items()):
            if session.used < before and not session.lock.locked():
                self.expired += 1
                self._close(name)

    def close(self) -> None:
        """Close all environments."""
        for name in list(self._of_id):
            self._close(name)
        for spare in self._spare.values():
            while spare:
                _end(spare.pop())

    def _reset(self, split: str, seed: int, noise_seed: int) -> dict[str, Any]:
        with self._guard:
            if len(self._of_id) + self._begun >= self._most:
                raise Refused(
                    503, f"all {self._most} sessions are in use; lit-agentrl serve-env --sessions has more"
                )
            self._begun += 1
            env = self._spare[split].pop() if self._spare[split] else None
        try:
            env = self._task.make(split) if env is None else env
            observation, info = env.reset(seed=seed, options={"noise_seed": noise_seed})
            session = Session(env, time.monotonic(), now=told(env))
            answer = {"observation": observation, "info": asked.plain(info), "now": session.now}
            packed(answer)
        except (Exception, SystemExit) as error:
            if env is not None:
                _end(env)
            raise Refused(500, f"{type(error).__name__}: {error}") from error
        finally:
            with self._guard:
                self._begun -= 1
        name = secrets.token_urlsafe(16)  # which nobody guesses
        with self._guard:
            self.episodes += 1
            self._of_id[name] = session
        return {"session": name, **answer}

    def _close(self, name: str) -> dict[str, Any]:
        with self._guard:
            session = self._of_id.pop(name, None)
        if session is None:
            return {}
        if session.lock.locked():
            session.is_left = True
        elif session.is_broken:
            _end(session.env)
        else:
            self._spare[session.env.split].append(session.env)
        return {}


def _end(env: World) -> None:
    try:
        env.close()
    except Exception as error:
        _log.warning("a game of class %s could not be closed: %s", type(env).__name__, error)
