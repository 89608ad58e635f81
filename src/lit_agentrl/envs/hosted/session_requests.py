"""Requests about a served episode and their answers; requests are untrusted data."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lit_agentrl.checks import escape_unprintable, require_whole
from lit_agentrl.envs.hosted.wire import describe_state, restore_rng, serialize
from lit_agentrl.envs.splits import SPLITS
from lit_agentrl.envs.world import World


class RequestError(Exception):
    """A refused request; it has the HTTP status and the answer with the reason."""

    def __init__(self, status: int, message: str, **entries: str) -> None:
        super().__init__(message)
        self.status, self.answer = status, {"error": escape_unprintable(message), **entries}


@dataclass
class Session:
    """A served episode."""

    env: World
    used_at: float  # time of the last request, in seconds of time.monotonic
    num_steps: int = 0
    # to the last step; a player may request it again
    last_answer: dict[str, Any] = field(default_factory=dict)
    description: dict[str, Any] = field(default_factory=dict)  # the last one sent to the player
    is_broken: bool = False
    is_left: bool = False  # closed by its player, or idle too long
    is_ended: bool = False  # its environment is closed or has another user
    lock: threading.Lock = field(default_factory=threading.Lock)


def step(session: Session, body: Mapping[str, Any]) -> dict[str, Any]:
    """Play one action; the same request sent twice gets the same answer."""
    number, action = get_whole(body, "number"), body.get("action")
    if not isinstance(action, str):
        raise RequestError(400, "action must be a text")
    if number == session.num_steps and number:
        return session.last_answer  # the answer was lost on its way
    if number != session.num_steps + 1:
        raise RequestError(409, f"number={number} does not follow on step {session.num_steps}")
    observation, reward, terminated, truncated, info = session.env.step(action)
    answer = {
        "observation": observation, "reward": float(reward), "terminated": bool(terminated),
        "truncated": bool(truncated), "info": keep_json(info), "now": _list_changes(session),
    }  # fmt: skip
    serialize(answer)  # raises before the step counts as played
    session.num_steps, session.last_answer = number, answer
    return answer


def find_best(session: Session, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the best play from here."""
    return {"actions": session.env.optimal_actions(horizon=get_whole(body, "horizon"))}


def choose_random(session: Session, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a random action, and the state of the generator after it."""
    try:
        rng = restore_rng(body.get("rng"))
    except ValueError as error:
        raise RequestError(400, str(error)) from error
    return {"action": session.env.random_action(rng), "rng": rng.bit_generator.state}


def get_state(session: Session, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of the game."""
    return {"state": session.env.state_dict()}


def load(session: Session, body: Mapping[str, Any]) -> dict[str, Any]:
    """Restore a state of the game."""
    state = body.get("state")
    if not isinstance(state, dict):
        raise RequestError(400, "state must be an object")
    session.env.load_state_dict(state)
    return {"now": _list_changes(session)}


def rekey(session: Session, body: Mapping[str, Any]) -> dict[str, Any]:
    """Seed everything random from now on."""
    session.env.rekey(get_whole(body, "noise_seed"))
    return {"now": _list_changes(session)}


def _list_changes(session: Session) -> dict[str, Any]:
    """Return what has changed since the last description."""
    earlier, session.description = session.description, describe_state(session.env)
    return {key: value for key, value in session.description.items() if value != earlier[key]}


def get_whole(body: Mapping[str, Any], key: str) -> int:
    """Return a whole number >= 0 of a request."""
    value = body.get(key)
    try:
        require_whole(key, value, 0)
    except ValueError as error:
        raise RequestError(400, str(error)) from error
    return value  # type: ignore[return-value]


def get_split(body: Mapping[str, Any]) -> str:
    """Return the split of a request."""
    split = next((name for name in SPLITS if name == body.get("split")), None)
    if split is None:
        raise RequestError(400, f"split must be one of {', '.join(SPLITS)}")
    return split


def keep_json(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that are JSON."""
    entries = {}
    for key, value in info.items():
        value = value.item() if isinstance(value, np.generic) else value
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            continue
        entries[str(key)] = value
    return entries


HANDLERS: dict[str, Callable[[Session, Mapping[str, Any]], dict[str, Any]]] = {
    "/step": step,
    "/best": find_best,
    "/random": choose_random,
    "/state": get_state,
    "/load": load,
    "/rekey": rekey,
}
