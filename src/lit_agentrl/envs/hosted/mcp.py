"""The tools of an MCP server as an environment, with tasks from a file."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.error import ResetNeeded

from lit_agentrl.actions import BadCall, ToolCall, ToolSpec, read_call
from lit_agentrl.checks import require, require_number, require_whole
from lit_agentrl.envs.hosted.mcp_session import Gone, Session
from lit_agentrl.envs.hosted.mcp_tasks import McpTask, match_results, read_tasks
from lit_agentrl.envs.splits import keyed_rng, stable_hash
from lit_agentrl.envs.tasks.rows import hash_contents, resolve_files
from lit_agentrl.envs.world import World
from lit_agentrl.schemas import compile_search, list_patterns

_log = logging.getLogger(__name__)
_recoveries = itertools.count(1)
_ROW = 71  # purpose key
_LONGEST_SCHEMA = 65_536  # characters


class Mcp(World):
    """One task per episode, played with a server's tools in its own session.

    The policy calls the server's tools, and ends the episode with the tool ``finish``.  The task is solved if the calls
    of its column ``check`` then return the expected results, and the answer equals that of its column ``answer``, apart
    from white space and case: reward 1, else 0.

    Messages of the server are used as text only.  If it hangs, the episode ends (``TimeoutError``).  If it has ended,
    it is started again and the calls so far are repeated, at most once per call; their results must be the same.

    Args:
        command: program and arguments of a server that uses its standard input and output; None: ``url`` is set.
        url: address of a server, such as ``http://127.0.0.1:8000/mcp``; None: ``command`` is set.
        path: file of tasks, or one for each split, as with ``env=dataset``; see `mcp_tasks`.
        tools: names of the tools that the policy may call; None: all.
        finish: name of the tool that ends the episode.
        timeout_s: seconds for one call, and for the start of a session.
        max_chars: characters of a result that are shown.
        split: ``train``, ``val`` or ``test``.

    Raises:
        ValueError: an option is out of range, a file or row cannot be used, or the library is missing.
    """

    def __init__(
        self,
        *,
        path: str | Mapping[str, str],
        command: Sequence[str] | None = None,
        url: str | None = None,
        tools: Sequence[str] | None = None,
        finish: str = "finish",
        timeout_s: float = 30.0,
        max_chars: int = 4000,
        split: str = "train",
    ) -> None:
        super().__init__(split=split)
        require((command is None) != (url is None), "command", command, "given, or url, and not both")
        require(command is None or bool(list(command)), "command", command, "a program and its arguments")
        if url is not None:
            is_url = isinstance(url, str) and url.isprintable() and url.startswith(("http://", "https://"))
            require(is_url, "url", url, "http://HOST:PORT/PATH")
        require_number("timeout_s", timeout_s, "a number > 0", lambda seconds: seconds > 0)
        require_whole("max_chars", max_chars, 1)
        require(
            isinstance(finish, str) and bool(finish.strip()), "finish", repr(finish), "the name of a tool"
        )
        self._allowed = None if tools is None else set(tools)
        self._finish_name = finish
        server = [str(part) for part in command or ()] if url is None else url
        self._session = Session(server, timeout_s=timeout_s, max_chars=max_chars)
        self._tasks = read_tasks(path)[split]
        self.instances = len(self._tasks)
        self.max_solution = max(1 + len(task.solution) for task in self._tasks)
        self._task = self._tasks[0]
        self._listed_tools = ""  # the server's list from which the tools below were made
        self._specs: tuple[ToolSpec, ...] = ()
        self._calls: list[tuple[ToolCall, str]] = []  # calls of this episode, and their results
        self._is_running = False

    @classmethod
    def home(cls, options: Mapping[str, Any]) -> Path:
        return resolve_files(options["path"])["train"]

    @classmethod
    def identity(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options with the hash of the files' content in place of their names."""
        return {**options, "path": hash_contents(options["path"])}

    @property
    def rules(self) -> str:
        text = f"Solve the task with the tools. End it with {self._finish_name}.\nRewards: 1 for a task that is solved."
        return f"{text}\n{self._session.instructions}".rstrip()

    def tools(self) -> Sequence[ToolSpec]:
        return self._specs

    def action_format(self) -> Any:
        return "tools"

    def random_action(self, rng: np.random.Generator) -> str | None:
        """Return a call of a random task's solution; None if no task has one."""
        calls = [call for task in self._tasks for call in self._list_solution(task)]
        return (
            str(calls[int(rng.integers(len(calls)))]) if any(task.solution for task in self._tasks) else None
        )

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        """Return the rest of the solution; None: there is none, or the episode left it."""
        require_whole("horizon", horizon, 1)
        solution, earlier = self._list_solution(self._task), [str(call) for call, _ in self._calls]
        is_on_path = (
            bool(self._task.solution)
            and self._is_running
            and earlier == list(map(str, solution[: len(earlier)]))
        )
        if not is_on_path:
            return None
        return [str(call) for call in solution[len(earlier) :]][:horizon] or None

    def locate(self, seed: int) -> int:
        return int(keyed_rng(seed, 0, _ROW).integers(len(self._tasks)))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        unknown = sorted(set(options or {}) - {"noise_seed"})
        require(not unknown, "options", unknown, "empty, or {noise_seed: number}")
        seed = self.choose_seed(seed)
        is_whole = isinstance(seed, int | np.integer) and seed >= 0
        require(bool(is_whole), "seed", seed, "a whole number >= 0: it addresses the draws")
        self._is_running = False
        self._task = self._tasks[self.locate(int(seed))]
        self._calls = []
        self._begin()
        self._is_running = True
        return self._task.question, {
            "instance_id": f"{type(self).__name__}-{stable_hash(self._task.content):016x}"
        }

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if not self._is_running:
            raise ResetNeeded("step: no game is running; call reset(seed=...) first")
        call = read_call(action, self._specs)
        if isinstance(call, BadCall):
            return call.message, 0.0, False, False, {"success": False, "action_is_valid": False}
        if call.name == self._finish_name:
            self._is_running = False
            is_solved = self._is_solved(str(call.arguments["answer"]))
            shown = "The task is solved." if is_solved else "The task is not solved."
            return shown, float(is_solved), True, False, {"success": is_solved}
        shown, is_valid = self._ask(call)
        if is_valid:
            self._calls.append((call, shown))
        counts = {"failed_calls": float(not is_valid or shown.startswith("error: "))}
        return shown, 0.0, False, False, {"success": False, "action_is_valid": is_valid, "counts": counts}

    def close(self) -> None:
        """End the session, and the episode."""
        self._is_running = False
        self._session.close()

    def _list_solution(self, task: McpTask) -> list[ToolCall]:
        return [*task.solution, ToolCall(self._finish_name, {"answer": task.answer or "done"})]

    def _is_solved(self, answer: str) -> bool:
        matches = [match_results(self._ask(check.call)[0], check.result) for check in self._task.checks]
        answer_is_right = (
            self._task.answer is None or answer.casefold().split() == self._task.answer.casefold().split()
        )
        self._session.close()
        return answer_is_right and all(matches)

    def _ask(self, call: ToolCall) -> tuple[str, bool]:
        """Make a call; return its result and whether it was accepted.

        A server that has ended is started again, and the calls so far are repeated.
        """
        session = self._session
        try:
            return session.call(call)
        except Gone:
            self._begin()
        try:
            for earlier, shown in self._calls:
                if session.call(earlier)[0] != shown:
                    raise session.make_error(
                        f"ended, and started again shows something else to {earlier.name}"
                    )
            text = session.make_error("had ended in an episode, whose calls were made again")
            _log.warning("%s (%d so far)", text, next(_recoveries))
            return session.call(call)
        except Gone:
            raise session.make_error(f"ended twice at a call of {call.name}") from None

    def _begin(self) -> None:
        """Start a new session, and make the setup calls of the task."""
        self._session.open()
        listed = repr([(tool.name, tool.description, tool.input_schema) for tool in self._session.tools])
        if listed != self._listed_tools:
            self._specs, self._listed_tools = self._convert_tools(self._session.tools), listed
        for call in self._task.setup:
            try:
                shown, is_valid = self._session.call(call)
            except Gone:
                raise self._session.make_error(f"ended at the setup call {call.name}") from None
            if not is_valid:
                raise ValueError(
                    f"path={self._task.location}: the server refuses the setup call {call.name} ({shown})"
                )

    def _convert_tools(self, tools: Sequence[Any]) -> tuple[ToolSpec, ...]:
        names = [tool.name for tool in tools]
        require(
            self._finish_name not in names,
            "finish",
            self._finish_name,
            "a name that no tool of the server has",
        )
        if unknown := sorted((self._allowed or set()) - set(names)):
            raise self._session.make_error(
                f"has no tool {unknown[0]} (option tools); it has {', '.join(names)}"
            )
        chosen = [tool for tool in tools if self._allowed is None or tool.name in self._allowed]
        end = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
        try:
            specs = [
                ToolSpec(t.name, self._session.cut(t.description or ""), _remove_patterns(t.input_schema))
                for t in chosen
            ]
        except ValueError as error:
            raise self._session.make_error(f"has a tool that cannot be used: {error}") from error
        return *specs, ToolSpec(self._finish_name, "Ends the task, with its answer where it has one.", end)


def _remove_patterns(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the patterns that cannot be searched in bounded time; the server checks them itself."""
    if len(repr(schema)) > _LONGEST_SCHEMA:
        raise ValueError(f"its schema has more than {_LONGEST_SCHEMA} characters")
    bad = set()
    for pattern in list_patterns(schema):
        try:
            compile_search(pattern)
        except ValueError:
            bad.add(pattern)

    def clean(part: Any) -> Any:
        if isinstance(part, dict):
            return {
                k: clean(v)
                for k, v in part.items()
                if not (k == "pattern" and isinstance(v, str) and v in bad)
            }
        return [clean(item) for item in part] if isinstance(part, list) else part

    return clean(schema) if bad else dict(schema)
