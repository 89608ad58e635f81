"""The episodes of a served game: one session each; what arrives is data, and nothing of it is executed."""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lit_agentrl.checks import one_line, require_whole
from lit_agentrl.envs.adapters.wire import PROTOCOL, packed, rng_of, told
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.levels import game_key
from lit_agentrl.envs.splits import SPLITS
from lit_agentrl.envs.world import World

_log = logging.getLogger(__name__)
_BUSY_S = 60.0  # that a request waits for another one of its session


class Refused(Exception):
    """A request that is not carried out: its status and why."""

    def __init__(self, status: int, message: str, **further: str) -> None:
        super().__init__(message)
        self.status, self.answer = status, {"error": one_line(message), **further}


@dataclass
class Session:
    """An episode that is played."""

    env: World
    used: float
    number: int = 0  # steps so far
    last: dict[str, Any] = field(
        default_factory=dict
    )  # the answer to the last one, which may be asked for again
    now: dict[str, Any] = field(default_factory=dict)  # what was told of the state
    is_broken: bool = False
    is_left: bool = False  # closed while the game was still at work
    lock: threading.Lock = field(default_factory=threading.Lock)


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
            "identity": game_key(task),
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
            return self._reset(_split(body), _whole(body, "seed"), _whole(body, "noise_seed"))
        known: dict[str, Callable[[Session, Mapping[str, Any]], dict[str, Any]]] = {
            "/step": _step, "/best": _best, "/random": _random, "/state": _state, "/load": _load, "/rekey": _rekey,
        }  # fmt: skip
        if path not in {*known, "/close"}:
            raise Refused(
                404, f"there is no {path[:40]}; there are /health, /reset, /close, {', '.join(known)}"
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
            return known[path](session, body)
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
            answer = {"observation": observation, "info": _plain(info), "now": session.now}
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


def _step(session: Session, body: Mapping[str, Any]) -> dict[str, Any]:
    number, action = _whole(body, "number"), body.get("action")
    if not isinstance(action, str):
        raise Refused(400, "action must be a text")
    if number == session.number and number:
        return session.last  # the answer was lost on its way
    if number != session.number + 1:
        raise Refused(409, f"number={number} does not follow on step {session.number}")
    observation, reward, terminated, truncated, info = session.env.step(action)
    answer = {
        "observation": observation, "reward": float(reward), "terminated": bool(terminated),
        "truncated": bool(truncated), "info": _plain(info), "now": _changes(session),
    }  # fmt: skip
    packed(answer)  # else the step would be told as one that was played
    session.number, session.last = number, answer
    return answer


def _best(session: Session, body: Mapping[str, Any]) -> dict[str, Any]:
    return {"actions": session.env.optimal_actions(horizon=_whole(body, "horizon"))}


def _random(session: Session, body: Mapping[str, Any]) -> dict[str, Any]:
    try:
        rng = rng_of(body.get("rng"))
    except ValueError as error:
        raise Refused(400, str(error)) from error
    return {"action": session.env.random_action(rng), "rng": rng.bit_generator.state}


def _state(session: Session, body: Mapping[str, Any]) -> dict[str, Any]:
    return {"state": session.env.state_dict()}


def _load(session: Session, body: Mapping[str, Any]) -> dict[str, Any]:
    state = body.get("state")
    if not isinstance(state, dict):
        raise Refused(400, "state must be an object")
    session.env.load_state_dict(state)
    return {"now": _changes(session)}


def _rekey(session: Session, body: Mapping[str, Any]) -> dict[str, Any]:
    session.env.rekey(_whole(body, "noise_seed"))
    return {"now": _changes(session)}


def _changes(session: Session) -> dict[str, Any]:
    """What is no longer as it was told."""
    before, session.now = session.now, told(session.env)
    return {key: value for key, value in session.now.items() if value != before[key]}


def _whole(body: Mapping[str, Any], key: str) -> int:
    value = body.get(key)
    try:
        require_whole(key, value, 0)
    except ValueError as error:
        raise Refused(400, str(error)) from error
    return value  # type: ignore[return-value]


def _split(body: Mapping[str, Any]) -> str:
    found = next((split for split in SPLITS if split == body.get("split")), None)
    if found is None:
        raise Refused(400, f"split must be one of {', '.join(SPLITS)}")
    return found


def _plain(info: Mapping[str, Any]) -> dict[str, Any]:
    """Those of its entries that are JSON."""
    found = {}
    for key, value in info.items():
        value = value.item() if isinstance(value, np.generic) else value
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            continue
        found[str(key)] = value
    return found


def _end(env: World) -> None:
    try:
        env.close()
    except Exception as error:
        _log.warning("a game of class %s could not be closed: %s", type(env).__name__, error)
