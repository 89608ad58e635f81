"""Java processes for games of other libraries: shared, and replaced after a death."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from lit_agentrl.envs.adapters.base import make_missing_error

_log = logging.getLogger(__name__)
T = TypeVar("T")
_START_S = 60.0  # seconds until a process must have started
_END_S = 5.0  # seconds to wait for a process to end, and for its exit code
_RESTARTS = 10  # most deaths of the processes of one library in one Python process
# These options make games play alike in every process and on every machine: they fix the size of the stack, the
# encoding, and the order of sets of objects, which would otherwise depend on addresses (hashCode).  They also leave no
# file in /tmp, and end a process that is out of memory at once, because its state would be unknown.
_OPTIONS = (
    "-Xss1m",
    "-Dfile.encoding=UTF-8",
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError",
)


def find_java() -> str:
    """Return the path of ``java`` in ``JAVA_HOME``, else on the ``PATH``.

    Raises:
        ValueError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    path = (shutil.which("java", path=f"{home}/bin") if home else None) or shutil.which("java")
    if path is None:
        where = f"JAVA_HOME={home} and PATH have" if home else "PATH has"
        raise ValueError(
            f"this game needs a Java runtime (8 or later), and {where} no java; install one "
            "(Debian: apt install default-jre-headless) or set JAVA_HOME to its folder"
        )
    return path


class JavaRuntime:
    """A Java process with the classes of a library, started at the first call.

    It ends when its standard input ends, so it ends with this Python process even if that is killed.  A
    process that dies is replaced; the games repeat their calls in the new one.

    Args:
        jar: file of the library's classes; the process runs in its folder.
        memory_mb: most memory of its objects, MB.

    Attributes:
        starts: how many processes were started.
        deaths: how many of them have died.
        last_user: the game that made the last call.
        lock: held during the calls of one game.
    """

    def __init__(self, jar: Path, *, memory_mb: int) -> None:
        self._jar, self._memory_mb = jar, memory_mb
        self._process: subprocess.Popen[bytes] | None = None
        self._gateway: Any = None
        self.starts = self.deaths = 0
        self.last_user: object = None
        self.lock = threading.RLock()

    @property
    def pid(self) -> int | None:
        """Number of the present process; None before the first call."""
        return self._process.pid if self._process is not None else None

    def connect(self) -> Any:
        """Return the classes of the process, which is started if there is none.

        Raises:
            RuntimeError: it does not start.
        """
        if self._gateway is None:
            self._start()
        return self._gateway.jvm

    def replace(self, error: Exception) -> None:
        """Count a process that died in a call; the next call starts another.

        Raises:
            RuntimeError: it did not die, or too many have died.
        """
        assert self._process is not None
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"Java: {' '.join(str(error).split())[:300]}") from error
        self.close()
        self.deaths += 1
        if self.deaths > _RESTARTS:
            raise RuntimeError(
                f"{self.deaths} Java processes of {self._jar.stem} died, the last with exit code {code}; raise "
                f"env.game.memory_mb={self._memory_mb}"
            )
        _log.warning(
            "the Java process of %s died (exit code %d) and is replaced (%d of %d); its games are replayed",
            self._jar.stem, code, self.deaths, _RESTARTS,
        )  # fmt: skip

    def close(self) -> None:
        """End the process; the next call starts another."""
        if self._gateway is not None:
            self._gateway.close()
            self._gateway = None
        if self._process is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()  # the process ends where its input does
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def _start(self) -> None:
        try:
            from py4j.java_gateway import GatewayParameters, JavaGateway, find_jar_path
        except ImportError as error:
            raise make_missing_error("py4j", self._jar.stem.replace("-", "_"), error) from error
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        logging.getLogger().addFilter(_is_wanted)
        command = [
            find_java(), f"-Xmx{self._memory_mb}m", *_OPTIONS, "-classpath", f"{find_jar_path()}:{self._jar}",
            "py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0",
        ]  # fmt: skip
        with tempfile.TemporaryFile() as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd=self._jar.parent,
                start_new_session=True,  # Ctrl-C ends this Python process in order, and Java after it
            )  # fmt: skip
            timer = threading.Timer(_START_S, self._process.kill)
            timer.start()
            assert self._process.stdout is not None
            port, token = (self._process.stdout.readline().decode().strip() for _ in range(2))
            timer.cancel()
            if not port.isdigit():
                errors.seek(0)
                reason = " ".join(errors.read().decode(errors="replace").split())[:300]
                self.close()
                raise RuntimeError(
                    f"Java did not start ({reason or 'no answer'}); env.game.memory_mb={self._memory_mb} must fit "
                    "into the memory of this machine"
                )
        parameters = GatewayParameters(port=int(port), auth_token=token)
        self._gateway = JavaGateway(gateway_parameters=parameters)
        java = self._gateway.jvm.java
        for name in ("setOut", "setErr"):  # libraries print much, and a full pipe would stop them
            getattr(java.lang.System, name)(java.io.PrintStream(java.io.FileOutputStream(os.devnull)))
        self.starts += 1


def _is_wanted(record: logging.LogRecord) -> bool:
    """Return False for a death's traceback, which py4j logs to the root logger."""
    return record.module != "java_gateway"


_RUNTIMES: dict[tuple[int, Path, int], JavaRuntime] = {}  # by process, so that a fork starts its own
_LOCK = threading.Lock()


def share_runtime(jar: Path, *, memory_mb: int) -> JavaRuntime:
    """Return the runtime that all games of a library in this Python process share."""
    key = (os.getpid(), jar, memory_mb)
    with _LOCK:
        if key not in _RUNTIMES:
            _RUNTIMES[key] = JavaRuntime(jar, memory_mb=memory_mb)
        return _RUNTIMES[key]


class JavaGame:
    """An object of a library's interface, whose calls are repeated where its state was lost.

    State is lost when the process dies.  Where games of the library share parts of their state, it is also lost when
    another game has been called in between.

    Args:
        runtime: the process.
        make: creates the object from the classes, and calls what needs to be called once.
        shares_state: True if games share parts of their state; this game is then restored after calls of another.
    """

    def __init__(
        self, runtime: JavaRuntime, make: Callable[[Any], Any], *, shares_state: bool = False
    ) -> None:
        self._runtime, self._make, self._shares_state = runtime, make, shares_state
        self._object: Any = None
        self._process_number = 0  # of the process that holds the object
        self._history: list[Callable[[Any], Any]] = []

    def begin(self, call: Callable[[Any], T]) -> T:
        """Call a function that starts the game from nothing, and forget earlier calls."""
        self._history = []
        return self.ask(call)

    def ask(self, call: Callable[[Any], T]) -> T:
        """Call a function with the object, which may change its state.

        Raises:
            RuntimeError: the library raised an error, or its process died twice.
        """
        value = self._run(call)
        self._history.append(call)
        return value

    def look(self, call: Callable[[Any, Any], T]) -> T:
        """Call a function with the classes and the object, without changing the object's state.

        It may change what games share, so that each game restores its state before its next call.
        """
        value = self._run(lambda game: call(self._runtime.connect(), game))
        if self._shares_state:
            self._runtime.last_user = None
        return value

    def _run(self, call: Callable[[Any], T]) -> T:
        from py4j.protocol import Py4JError, Py4JJavaError

        with self._runtime.lock:
            for attempt in range(2):
                try:
                    self._restore()
                    return call(self._object)
                except Py4JJavaError as error:
                    reason = str(error.java_exception)
                    raise RuntimeError(f"Java: {' '.join(reason.split())[:300]}") from None
                except (Py4JError, OSError) as error:
                    self._runtime.replace(error)
                    if attempt:
                        raise RuntimeError("the Java process died twice in the same action") from None
        raise AssertionError

    def _restore(self) -> None:
        runtime = self._runtime
        classes = runtime.connect()
        is_new = self._process_number != runtime.starts
        if is_new:
            self._object, self._process_number = self._make(classes), runtime.starts
        if is_new or (self._shares_state and runtime.last_user is not self):
            for call in self._history:
                call(self._object)
        runtime.last_user = self
