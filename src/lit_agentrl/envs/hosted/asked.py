"""What may be asked of an episode that is served, and how it is answered; what arrives is data."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lit_agentrl.checks import escape_unprintable, require_whole
from lit_agentrl.envs.hosted.wire import packed, rng_of, told
from lit_agentrl.envs.splits import SPLITS
from lit_agentrl.envs.world import World


class Refused(Exception):
    """A request that is not carried out: its status and why."""

    def __init__(self, status: int, message: str, **further: str) -> None:
        super().__init__(message)
        self.status, self.answer = status, {"error": escape_unprintable(message), **further}


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


def step(session: Session, body: Mapping[str, Any]) -> dict[str, Any]:
    """Play one action; the last one again gives the same answer again."""
    number, action = whole(body, "number"), body.get("action")
    if not isinstance(action, str):
        raise Refused(400, "action must be a text")
    if number == session.number and number:
        return session.last  # the answer was lost on its way
    if number != session.number + 1:
        raise Refused(409, f"number={number} does not follow on step {session.number}")
    observation, reward, terminated, truncated, info = session.env.step(action)
    answer = {
        "observation": observation, "reward": float(reward), "terminated": bool(terminated),
        "truncated": bool(truncated), "info": plain(info), "now": _changes(session),
    }  # fmt: skip
    packed(answer)  # else the step would be told as one that was played
    session.number, session.last = number, answer
    return answer


def best(session: Session, body: Mapping[str, Any]) -> dict[str, Any]:
    """Best play from here."""
    return {"actions": session.env.optimal_actions(horizon=whole(body, "horizon"))}


def random(session: Session, body: Mapping[str, Any]) -> dict[str, Any]:
    """A random action, and the generator after it."""
    try:
        rng = rng_of(body.get("rng"))
    except ValueError as error:
        raise Refused(400, str(error)) from error
    return {"action": session.env.random_action(rng), "rng": rng.bit_generator.state}


def state(session: Session, body: Mapping[str, Any]) -> dict[str, Any]:
    """The state."""
    return {"state": session.env.state_dict()}


def load(session: Session, body: Mapping[str, Any]) -> dict[str, Any]:
    """Go on from a state."""
    found = body.get("state")
    if not isinstance(found, dict):
        raise Refused(400, "state must be an object")
    session.env.load_state_dict(found)
    return {"now": _changes(session)}


def rekey(session: Session, body: Mapping[str, Any]) -> dict[str, Any]:
    """Key what is random from now on."""
    session.env.rekey(whole(body, "noise_seed"))
    return {"now": _changes(session)}


def _changes(session: Session) -> dict[str, Any]:
    """What is no longer as it was told."""
    before, session.now = session.now, told(session.env)
    return {key: value for key, value in session.now.items() if value != before[key]}


def whole(body: Mapping[str, Any], key: str) -> int:
    """A whole number >= 0."""
    value = body.get(key)
    try:
        require_whole(key, value, 0)
    except ValueError as error:
        raise Refused(400, str(error)) from error
    return value  # type: ignore[return-value]


def split(body: Mapping[str, Any]) -> str:
    """The split."""
    found = next((split for split in SPLITS if split == body.get("split")), None)
    if found is None:
        raise Refused(400, f"split must be one of {', '.join(SPLITS)}")
    return found


def plain(info: Mapping[str, Any]) -> dict[str, Any]:
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


KNOWN: dict[str, Callable[[Session, Mapping[str, Any]], dict[str, Any]]] = {
    "/step": step,
    "/best": best,
    "/random": random,
    "/state": state,
    "/load": load,
    "/rekey": rekey,
}
