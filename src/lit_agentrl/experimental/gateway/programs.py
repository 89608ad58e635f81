"""Programs of users in processes of their own: commands and functions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Protocol

from lit_agentrl.experimental.gateway.exchange import Exchange, ProgramEnd
from lit_agentrl.experimental.gateway.folders import ProgramFolder
from lit_agentrl.experimental.gateway.processes import Process
from lit_agentrl.experimental.gateway.remote import Remote

_TAIL = 65_536  # last bytes of an output that are kept
_SHOWN = 300  # last characters of an error output that messages quote
_MOST_TASK = 100_000  # bytes of a task, which is passed as a variable of the environment
_RUN = (
    "import sys; sys.path[:] = {path!r}; from lit_agentrl.experimental.gateway.runner import main; "
    "main({name!r}, {file})"
)


class Program(Protocol):
    """A program that plays one episode after another."""

    def start(self, exchange: Exchange, task: str, url: str, token: str) -> None:
        """Start an episode; its end is written to ``exchange``."""

    def stop(self) -> None:
        """Stop the current episode, if any; kill its process if necessary."""

    def close(self) -> None:
        """Stop all processes."""


class _Tail(threading.Thread):
    """A thread that reads a pipe and keeps its last bytes."""

    def __init__(self, pipe: IO[bytes]) -> None:
        super().__init__(daemon=True, name="program output")
        self._pipe, self._data = pipe, b""
        self.start()

    def run(self) -> None:
        with self._pipe:
            while part := os.read(self._pipe.fileno(), _TAIL):
                self._data = (self._data + part)[-_TAIL:]

    def read(self) -> str:
        """Wait at most a second for the pipe to close, and return the text."""
        self.join(1.0)
        return self._data.decode(errors="replace")


def _describe_failure(code: int, errors: str) -> str:
    last = " ".join(errors.split())[-_SHOWN:]
    how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
    return f"the program {how}{': ' + last if last else ''}"


class Command:
    """A program that is started once for each episode.

    The program finds its task in ``LIT_AGENTRL_TASK``, and the endpoint in ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY``.
    Its result is what it writes to the file ``LIT_AGENTRL_RESULT``, or else the last line of its output.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._process: Process | None = None
        self._folder: ProgramFolder | None = None

    def start(self, exchange: Exchange, task: str, url: str, token: str) -> None:
        """See `Program`.

        Raises:
            ValueError: The command cannot be started, or the task is too large.
        """
        if len(task.encode()) > _MOST_TASK:
            raise ValueError(f"a task has more than {_MOST_TASK} bytes; name a file in it instead")
        try:
            folder = ProgramFolder()
        except OSError as error:
            raise ValueError(
                f"the folder of a program cannot be made ({error}); free space, or set TMPDIR to another folder"
            ) from error
        result = folder.path / "result.json"
        env = {
            "LIT_AGENTRL_TASK": task, "LIT_AGENTRL_RESULT": str(result), "OPENAI_BASE_URL": url,
            "OPENAI_API_KEY": token,
        }  # fmt: skip
        try:
            process = Process(
                self._command, env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except OSError as error:
            folder.close()
            raise ValueError(f"command={self._command} cannot be started ({error})") from error
        self._process, self._folder = process, folder
        assert process.stdout is not None and process.stderr is not None
        output, errors = _Tail(process.stdout), _Tail(process.stderr)

        def watch() -> None:
            code = process.wait()
            if code:
                end = ProgramEnd(problem=_describe_failure(code, errors.read()))
            else:
                end = _read_result(result, output.read())
            folder.close()
            exchange.finish(end)

        threading.Thread(target=watch, daemon=True, name="program").start()

    def stop(self) -> None:
        """See `Program`."""
        if self._process is not None and self._folder is not None:
            self._process.kill()
            self._folder.close()  # the watching thread closes it too, but perhaps not before this process ends
            self._process = self._folder = None

    close = stop


def _read_result(path: Path, output: str) -> ProgramEnd:
    lines = output.strip().splitlines()
    try:
        text = lines[-1] if lines else ""
        if path.is_file():
            with path.open(encoding="utf-8") as file:
                text = file.read(_TAIL)
            if not text.strip():
                return ProgramEnd(problem="the file LIT_AGENTRL_RESULT is empty; its disk may be full")
        return ProgramEnd(json.loads(text))
    except OSError as error:
        return ProgramEnd(problem=f"the file LIT_AGENTRL_RESULT cannot be read ({error})")
    except (ValueError, RecursionError):
        return ProgramEnd(
            problem='the program names no reward; print {"reward": 1.0} as its last line, or write that to the file '
            "LIT_AGENTRL_RESULT"
        )


class Function:
    """A Python function in a process that several episodes share, one after another."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._process: Process | None = None
        self._exchange: Exchange | None = None  # that of the current episode
        self._lock = threading.Lock()

    def start(self, exchange: Exchange, task: str, url: str, token: str) -> None:
        """See `Program`."""
        if self._process is None or not self._process.is_alive:
            self._open()
        assert self._process is not None and self._process.stdin is not None
        self._exchange = exchange
        job = {"task": json.loads(task), "base_url": url, "api_key": token}
        try:
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the thread that reads the results reports how the process ended

    def _open(self) -> None:
        """Start the process, with threads that wait for its results and its end.

        Processes that it leaves behind are killed at its end, since they may hold the pipe of results open.
        """
        reader, writer = os.pipe()
        run = _RUN.format(path=sys.path, name=self._name, file=writer)
        process = Process(
            [sys.executable, "-c", run], {}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            pass_fds=[writer],
        )  # fmt: skip
        os.close(writer)
        assert process.stdout is not None
        errors, self._process = _Tail(process.stdout), process
        threading.Thread(target=process.wait, daemon=True, name="agent's end").start()
        threading.Thread(target=self._read, args=(process, reader, errors), daemon=True, name="agent").start()

    def _read(self, process: Process, reader: int, errors: _Tail) -> None:
        with os.fdopen(reader) as results:
            for line in results:
                plain = json.loads(line)
                self._finish(process, ProgramEnd(plain.get("result"), plain.get("problem", "")))
        code = process.wait()
        self._finish(process, ProgramEnd(problem=_describe_failure(code, errors.read())))

    def _finish(self, process: Process, end: ProgramEnd) -> None:
        exchange = None
        with self._lock:
            if process is self._process:
                exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.finish(end)

    def stop(self) -> None:
        """See `Program`."""
        if self._exchange is not None:
            self.close()

    def close(self) -> None:
        """See `Program`."""
        with self._lock:
            process, self._process, self._exchange = self._process, None, None
        if process is not None:
            process.kill()


def make_program(
    mode: str, *, command: Sequence[str] | str | None, function: str | None, url: str | None, timeout_s: float
) -> Callable[[], Program]:
    """Return the constructor of a program.

    Raises:
        ValueError: The mode is unknown, its option is missing or invalid, or the option of another mode is given.
    """
    options = {"command": command, "function": function, "url": url}
    needed = "url" if mode == "remote" else mode
    if needed not in options or mode == "url":
        raise ValueError(f"mode={mode} must be command, function or remote")
    if others := [name for name, value in options.items() if name != needed and value is not None]:
        raise ValueError(f"{others[0]}={options[others[0]]} has no effect with mode={mode}; leave it out")
    if mode == "remote":
        Remote(url, timeout_s)  # an invalid url fails now, not in every episode
        return lambda: Remote(url, timeout_s)
    if mode == "function":
        if not isinstance(function, str) or "." not in function:
            raise ValueError(f"function={function} must be the dotted name of a function")
        return lambda: Function(function)
    parts = [command] if isinstance(command, str) else [str(part) for part in command or ()]
    if not parts:
        raise ValueError(f"command={command} must be [PROGRAM, ARGUMENT, …]")
    return lambda: Command(parts)
