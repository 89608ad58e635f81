"""A world whose observations are a program's requests, and whose actions are replies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache, partial
from math import fsum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lit_agentrl.checks import require, require_number, require_whole
from lit_agentrl.envs.adapters.base import make_missing_error
from lit_agentrl.envs.splits import keyed_rng, stable_hash
from lit_agentrl.envs.tasks.rows import Files, divide_into_splits, find_files, hash_contents
from lit_agentrl.envs.world import World
from lit_agentrl.experimental.gateway.exchange import Exchange, Pending
from lit_agentrl.experimental.gateway.programs import Program, make_program
from lit_agentrl.experimental.gateway.rewards import read_result

_ROW = 91  # purpose key


class TaskRow(NamedTuple):
    """A row of a file of tasks: its columns as JSON, and its location."""

    question: str
    location: str


@lru_cache(maxsize=16)
def _read_tasks(files: Files) -> Mapping[str, tuple[TaskRow, ...]]:
    def check(columns: Mapping[str, Any], location: str) -> TaskRow:
        return TaskRow(json.dumps(columns, sort_keys=True), location)

    return divide_into_splits(files, check, "the row")


class AgentProgram(World):
    """A user's agent program, which requests replies from a chat endpoint.

    The program runs in its own process, once per episode.  It reads its task, calls the endpoint any number of times,
    and ends with a reward.  A program that crashes, hangs, drops a call or names no reward fails its episode.

    Args:
        mode: ``command`` starts a program for each episode; ``function`` calls a Python function; ``remote`` sends
            each task to a service.
        command: Program and arguments.
        function: Dotted name of ``agent(task, client)``, plain or async, which returns the reward.
        url: Address of the service, with ``mode=remote``.
        host: Address of this machine at which the endpoint listens; with ``mode=remote``, the service calls it.
        path: File of tasks, one JSON object per row, or a file for each split; None if the seed alone is the task.
        timeout_s: Seconds that the program may take between two calls, and before the first.
        parallel: Whether the program may make several calls at once.
        max_calls: Largest number of calls in an episode.
        max_mb: Largest size of a request in MiB.
        split: ``train``, ``val`` or ``test``.

    Raises:
        ValueError: An option is out of range, a file cannot be used, or the extra ``gateway`` is missing.
    """

    def __init__(
        self,
        *,
        mode: str,
        command: Any = None,
        function: str | None = None,
        url: str | None = None,
        host: str = "127.0.0.1",
        path: str | Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        parallel: bool = False,
        max_calls: int = 20,
        max_mb: float = 8.0,
        split: str = "train",
    ) -> None:
        super().__init__(split=split)
        require_number("timeout_s", timeout_s, "a number > 0", lambda seconds: seconds > 0)
        require_number("max_mb", max_mb, "a number > 0", lambda size: size > 0)
        require(isinstance(parallel, bool), "parallel", parallel, "true or false")
        require_whole("max_calls", max_calls, 1)
        self._make = make_program(mode, command=command, function=function, url=url, timeout_s=timeout_s)
        if mode != "remote" and host != "127.0.0.1":
            raise ValueError(
                f"host={host} has no effect with mode={mode}, whose programs run here; leave it out"
            )
        try:
            from lit_agentrl.experimental.gateway.server import open_gateway
        except ImportError as error:
            raise make_missing_error("starlette and uvicorn", "gateway", error) from error
        self._open_gateway = partial(open_gateway, host)
        self._tasks = None if path is None else _read_tasks(find_files(path))[split]
        self.instances = None if self._tasks is None else len(self._tasks)
        self._timeout_s, self._is_parallel = timeout_s, parallel
        self._max_calls, self._max_bytes = max_calls, int(max_mb * 2**20)
        self._program: Program | None = None
        self._exchange: Exchange | None = None
        self._token = ""
        self._number = 0  # calls of this episode
        self._is_interrupted = False

    @classmethod
    def home(cls, options: Mapping[str, Any]) -> Path:
        """See `World`; the current folder, where the program is started."""
        return Path.cwd() / "program.jsonl"

    @classmethod
    def identity(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options with the hash of the tasks in place of their file."""
        path = options.get("path")
        return {**options, "path": None if path is None else hash_contents(path)}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start the program, and return its first request."""
        self._end_episode()
        seed = self.choose_seed(seed)
        noise_seed = int((options or {}).get("noise_seed", seed))
        require(isinstance(seed, int | np.integer) and seed >= 0, "seed", seed, "a whole number >= 0")
        task: dict[str, Any] = {"seed": int(seed), "noise_seed": noise_seed, "split": self.split}
        name = f"{self.split}-{seed}"
        if self._tasks is not None:
            row = self._tasks[int(keyed_rng(int(seed), 0, _ROW).integers(len(self._tasks)))]
            task = {**task, **json.loads(row.question)}
            name = f"{stable_hash(row.question):016x}"
        if self._program is None:
            self._program = self._make()
        gateway = self._open_gateway()
        self._exchange = Exchange(self._is_parallel)
        self._token = gateway.open(self._exchange, max_bytes=self._max_bytes)
        self._number = 0
        if self._is_interrupted:  # the interruption came before there was an exchange to close
            self._exchange.close()
        self._program.start(self._exchange, json.dumps(task), gateway.url, self._token)
        observation, _, is_over, _ = self._wait()
        if is_over:
            raise ValueError("the program ended without a call")
        return observation, {"instance_id": name}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Answer the request that waits, and return the next one or the end."""
        if self._exchange is None:
            raise ValueError("no program runs; call reset")
        answer = json.loads(action)
        if "refusal" in answer:
            error = {
                "message": answer["refusal"],
                "type": "invalid_request_error",
                "code": "context_length_exceeded",
            }
            self._exchange.answer(400, {"error": error})
        else:
            self._exchange.answer(200, {**answer["reply"], "id": _make_reply_id(self._number)})
        observation, reward, is_over, info = self._wait()
        return observation, reward, is_over, False, info

    def _wait(self) -> tuple[str, float, bool, dict[str, Any]]:
        """Wait for the next request, or for the end with its reward.

        The end contains the posted rewards: pairs of the number of a call, from 1, and the sum of its rewards.
        """
        exchange = self._exchange
        assert exchange is not None
        try:
            event = exchange.take_next(self._timeout_s)
        except (TimeoutError, ValueError):
            self._end_episode()
            raise
        if isinstance(event, Pending):
            self._number += 1
            if self._number <= self._max_calls:
                return json.dumps({"request": event.request.to_plain()}), 0.0, False, {}
        self._end_episode()
        sums = exchange.sum_rewards()
        posted = [
            (n, sums[_make_reply_id(n)]) for n in range(1, self._number + 1) if _make_reply_id(n) in sums
        ]
        if isinstance(event, Pending):
            return json.dumps({"end": {"reason": "calls", "posted": posted}}), 0.0, True, {"success": False}
        if event.problem:
            raise ValueError(event.problem)
        reward, info = read_result(event.result, fsum(sums.values()))
        return json.dumps({"end": {"reason": "result", "posted": posted}}), reward, True, info

    def _end_episode(self) -> None:
        """Refuse further calls of the program, and end it if it still runs."""
        if self._exchange is None:
            return
        self._open_gateway().close(self._token)
        self._exchange = None
        if self._program is not None:
            self._program.stop()

    def interrupt(self) -> None:
        """See `World`; the episode stops waiting for the program."""
        self._is_interrupted = True
        if (exchange := self._exchange) is not None:
            exchange.close()

    def close(self) -> None:
        """End the program and its process."""
        self._end_episode()
        if self._program is not None:
            self._program.close()
            self._program = None


def _make_reply_id(number: int) -> str:
    """Return the id of the reply to the call ``number``, from 1."""
    return f"chatcmpl-{number}"
