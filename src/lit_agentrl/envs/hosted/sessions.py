"""The episodes of a served game, one session each, and their environments."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Mapping
from typing import Any

from lit_agentrl.envs.base import Task
from lit_agentrl.envs.hosted.session_requests import (
    HANDLERS,
    RequestError,
    Session,
    get_split,
    get_whole,
    keep_json,
)
from lit_agentrl.envs.hosted.wire import PROTOCOL, describe_state, serialize
from lit_agentrl.envs.levels import make_game_key
from lit_agentrl.envs.splits import SPLITS
from lit_agentrl.envs.world import World

_log = logging.getLogger(__name__)
_BUSY_S = 60.0  # seconds that a request waits for another one of its session


class Sessions:
    """The concurrent episodes of one game, and their environments.

    Args:
        task: the game; the player applies the task's limits and hosting.
        most: how many sessions may be open.
        idle_s: seconds after which a session without requests is closed.
    """

    def __init__(self, task: Task, *, most: int, idle_s: float) -> None:
        self._task, self._max_sessions, self._idle_s = task, most, idle_s
        self._sessions_by_id: dict[str, Session] = {}
        self._spare_envs: dict[str, list[World]] = {split: [] for split in SPLITS}
        self._num_starting = 0  # sessions whose environment is not ready yet
        self._guard = threading.Lock()
        self.episodes = self.expired = 0
        env = task.make("train")
        self._spare_envs["train"].append(env)
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
        """Execute a request and return the answer.

        Raises:
            RequestError: the request is invalid, the session is unknown, all are in use, or the game has failed.
        """
        if path == "/health":
            counts = {
                "sessions": len(self._sessions_by_id),
                "episodes": self.episodes,
                "expired": self.expired,
            }
            return {"protocol": PROTOCOL, "game": self._game, "most": self._max_sessions, **counts}
        if path == "/reset":
            return self._reset(
                get_split(body),
                get_whole(body, "seed"),
                get_whole(body, "noise_seed"),
            )
        if path not in {*HANDLERS, "/close"}:
            raise RequestError(
                404,
                f"there is no {path[:40]}; there are /health, /reset, /close, {', '.join(HANDLERS)}",
            )
        name = body.get("session")
        session = self._sessions_by_id.get(name) if isinstance(name, str) else None
        unknown = RequestError(404, "this session is not known (any more)", session="unknown")
        if session is None:
            raise unknown
        if path == "/close":
            return self._close(name)  # type: ignore[arg-type]  # it is a text
        if not session.lock.acquire(timeout=_BUSY_S):
            raise RequestError(409, "another request of this session is still carried out")
        try:
            if session.is_left:  # closed while this request waited
                raise unknown
            session.used_at = time.monotonic()
            return HANDLERS[path](session, body)
        except RequestError:
            raise
        except (Exception, SystemExit) as error:  # a user's game; only this episode fails
            session.is_broken = True
            raise RequestError(500, f"{type(error).__name__}: {error}") from error
        finally:
            session.used_at = time.monotonic()
            with self._guard:
                session.lock.release()
                must_end = session.is_left and not session.is_ended
                session.is_ended |= must_end
            if must_end:
                _end(session.env)

    def close_idle(self) -> None:
        """Close the sessions that had no request for ``idle_s`` seconds."""
        before = time.monotonic() - self._idle_s
        for name, session in list(self._sessions_by_id.items()):
            if session.used_at < before and not session.lock.locked():
                self.expired += 1
                self._close(name)

    def close(self) -> None:
        """Close all environments."""
        for name in list(self._sessions_by_id):
            self._close(name)
        for spare in self._spare_envs.values():
            while spare:
                _end(spare.pop())

    def _reset(self, split: str, seed: int, noise_seed: int) -> dict[str, Any]:
        with self._guard:
            if len(self._sessions_by_id) + self._num_starting >= self._max_sessions:
                raise RequestError(
                    503,
                    f"all {self._max_sessions} sessions are in use; lit-agentrl serve-env --sessions has more",
                )
            self._num_starting += 1
            env = self._spare_envs[split].pop() if self._spare_envs[split] else None
        try:
            env = self._task.make(split) if env is None else env
            observation, info = env.reset(seed=seed, options={"noise_seed": noise_seed})
            session = Session(env, time.monotonic(), description=describe_state(env))
            answer = {
                "observation": observation,
                "info": keep_json(info),
                "now": session.description,
            }
            serialize(answer)
        except (Exception, SystemExit) as error:
            if env is not None:
                _end(env)
            raise RequestError(500, f"{type(error).__name__}: {error}") from error
        finally:
            with self._guard:
                self._num_starting -= 1
        name = secrets.token_urlsafe(16)  # cannot be guessed
        with self._guard:
            self.episodes += 1
            self._sessions_by_id[name] = session
        return {"session": name, **answer}

    def _close(self, name: str) -> dict[str, Any]:
        with self._guard:
            session = self._sessions_by_id.pop(name, None)
            if session is None:
                return {}
            session.is_left = True  # before the lock is read, so that a later request finds it set
            if session.lock.locked():  # the request at work ends the environment
                return {}
            session.is_ended = True
            if not session.is_broken:
                self._spare_envs[session.env.split].append(session.env)
        if session.is_broken:
            _end(session.env)
        return {}


def _end(env: World) -> None:
    try:
        env.close()
    except Exception as error:
        _log.warning("a game of class %s could not be closed: %s", type(env).__name__, error)
