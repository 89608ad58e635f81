"""The thread-safe exchange of requests and answers between a program and its episode."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import fsum
from typing import Any

from lit_agentrl.experimental.gateway.messages import BadRequest, ChatRequest, shorten
from lit_agentrl.experimental.gateway.rewards import MOST_REWARDS, PostedReward

_EXIT_S = 2.0  # wait after a dropped connection, so that the exit code of the program can be reported
Settle = Callable[[int, Mapping[str, Any]], None]  # takes the status and the body of the answer to a request


class Over(Exception):
    """An error that refuses a request after the end of its episode."""


@dataclass(eq=False)
class Pending:
    """A request that waits for its reply; ``settle`` answers it in the server's thread."""

    request: ChatRequest
    settle: Settle
    is_dropped: bool = False


@dataclass(frozen=True)
class ProgramEnd:
    """The end of a program.

    Attributes:
        result: The reward that the program reports; None if it reports none.
        problem: Why the program failed; empty if it did not.
    """

    result: Any = None
    problem: str = ""


@dataclass(eq=False)
class Exchange:
    """The requests of one program in the order of their arrival, and its end.

    Attributes:
        is_parallel: Whether several requests may wait at once.
    """

    is_parallel: bool

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Pending] = deque()
        self._current: Pending | None = None  # returned by `take_next`, and not answered yet
        self._num_undelivered = 0  # answers that the server has not taken over yet
        self._end: ProgramEnd | None = None
        self._broken = ""  # why the episode is not trained on; empty: it is whole
        self._is_dropped = False  # whether the episode is broken because the program dropped a connection
        self._is_closed = False
        self._rewards: dict[str, list[float]] = {}  # by the id of the reply, in the order of the replies
        self._num_rewards = 0
        # by reward_id: what was posted, and for which reply
        self._named: dict[str, tuple[PostedReward, str]] = {}

    def post(self, pending: Pending) -> None:
        """Queue a request.

        Raises:
            Over: The episode has ended.
            BadRequest: Another request waits for its reply, and the program may only make one at a time.
        """
        with self._changed:
            if self._is_closed or self._end is not None:
                raise Over
            if not self.is_parallel and (self._current is not None or self._waiting):
                self._broken = "the program made two calls at once; set env.game.parallel=true if it may"
                self._changed.notify_all()
                raise BadRequest(self._broken)
            self._waiting.append(pending)
            self._changed.notify_all()

    def add_reward(self, posted: PostedReward) -> tuple[str, float]:
        """Record a reward; return the id of its reply, and the reply's sum of rewards.

        A reward that repeats an earlier one with the same ``reward_id`` changes nothing.

        Raises:
            Over: The episode has ended.
            BadRequest: The reward names no reply of the episode, there are too many rewards, or its ``reward_id`` was
                used for another reward.
        """
        with self._changed:
            if self._is_closed or self._end is not None or self._broken:
                raise Over
            if posted.reward_id is not None and posted.reward_id in self._named:
                reply_id = self._find_repeated(posted, *self._named[posted.reward_id])
                return reply_id, fsum(self._rewards[reply_id])
            reply_id = self._find_credited(posted.completion_id)
            if self._num_rewards == MOST_REWARDS:
                raise BadRequest(f"an episode may post at most {MOST_REWARDS} rewards")
            self._num_rewards += 1
            self._rewards[reply_id].append(posted.reward)
            if posted.reward_id is not None:
                self._named[posted.reward_id] = posted, reply_id
            return reply_id, fsum(self._rewards[reply_id])

    def _find_repeated(self, posted: PostedReward, first: PostedReward, reply_id: str) -> str:
        """Return the id of the reply for which the same reward was posted before."""
        if posted.reward != first.reward or posted.completion_id not in (first.completion_id, reply_id):
            raise BadRequest(
                f"reward_id={shorten(posted.reward_id)} was posted with reward={first.reward:g} for {reply_id}, and "
                "now with another; use another reward_id"
            )
        return reply_id

    def _find_credited(self, reply_id: str | None) -> str:
        if reply_id is not None:
            if reply_id not in self._rewards:
                raise BadRequest(f"completion_id={shorten(reply_id)} belongs to no reply of this episode")
            return reply_id
        if not self._rewards:
            raise BadRequest("no call has had its reply yet, so there is none to reward")
        if self.is_parallel or self._waiting or self._current is not None:
            raise BadRequest("several calls may wait at once: name the completion_id that the reward is for")
        return next(reversed(self._rewards))

    def sum_rewards(self) -> dict[str, float]:
        """Return the sum of the rewards of each reply, exact in any order."""
        with self._changed:
            return {reply_id: fsum(rewards) for reply_id, rewards in self._rewards.items() if rewards}

    def drop(self, pending: Pending) -> None:
        """Record that the program closed the connection before the reply came."""
        with self._changed:
            pending.is_dropped = True
            if not self._is_closed and not self._broken:
                self._broken = "the program dropped a connection before the reply came"
                self._is_dropped = True
                self._changed.notify_all()

    def record_delivery(self) -> None:
        """Record that the server has received an answer, which it sends to the program."""
        with self._changed:
            self._num_undelivered -= 1
            self._changed.notify_all()

    def finish(self, end: ProgramEnd) -> None:
        """Record the end of the program."""
        with self._changed:
            self._end = end
            self._changed.notify_all()

    def take_next(self, timeout_s: float) -> Pending | ProgramEnd:
        """Wait for the next request, or for the end of the program.

        Raises:
            TimeoutError: Neither came in time.
            ValueError: The episode is not whole: a reply was lost, two calls were made at once, or it was closed.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._waiting
                    or self._broken
                    or self._is_closed
                    or (self._end is not None and not self._num_undelivered)
                ),
                max(0.0, deadline - time.monotonic()),
            )
            if self._is_closed:
                raise ValueError("the run has ended the episode")
            if self._broken:
                raise ValueError(self._explain())
            if self._waiting:  # before the end: a request that was made counts
                self._current = self._waiting.popleft()
                return self._current
            if self._end is None:
                raise TimeoutError(
                    f"env.game.timeout_s={timeout_s:g} passed without a call or the end of the program"
                )
            return self._end

    def answer(self, status: int, body: Mapping[str, Any]) -> None:
        """Answer the request that `take_next` returned, if the episode is still whole."""
        with self._changed:
            if self._broken or self._is_closed:  # the next `take_next` says why
                return
            pending, self._current = self._current, None
            self._num_undelivered += 1
            if status == 200:
                self._rewards[body["id"]] = []
        assert pending is not None
        pending.settle(status, body)

    def _explain(self) -> str:
        """Return why the episode is not whole; if the program left, how it ended."""
        if not self._is_dropped:
            return self._broken
        self._changed.wait_for(lambda: self._end is not None, _EXIT_S)
        return (self._end.problem if self._end is not None else "") or self._broken

    def close(self) -> None:
        """End the episode: requests that wait or come later are refused."""
        with self._changed:
            self._is_closed = True
            unanswered = [*self._waiting, *([self._current] if self._current is not None else [])]
            self._waiting.clear()
            self._current = None
            self._changed.notify_all()
        for pending in unanswered:
            pending.settle(410, {"error": {"message": "the episode has ended", "type": "over"}})
