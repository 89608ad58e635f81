"""A command in a process that has imported its libraries already: most of a short run's time is spent on that."""

from __future__ import annotations

import atexit
import importlib
import os
import pkgutil
import runpy
import signal
import sys
import threading
import traceback
from functools import cache
from pathlib import Path

import lit_agentrl
from tests.integration.kill_hook.sitecustomize import install

FURTHER = ("peft", "torch.utils.tensorboard", "transformers.models.llama.modeling_llama")


class Forked:
    """Like ``subprocess.Popen``, as far as a `Running` asks."""

    def __init__(self, arguments: list[str], *, cwd: Path, env: dict[str, str], output: Path) -> None:
        warm()
        sys.stdout.flush()
        sys.stderr.flush()
        self._code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _become(arguments, cwd, env, output)

    def poll(self) -> int | None:
        """The exit code, negative of a signal; None while it runs."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self) -> int:
        """Wait for its end."""
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code


@cache
def warm() -> None:
    """Import what a run imports."""
    for found in pkgutil.walk_packages(lit_agentrl.__path__, "lit_agentrl."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    for name in FURTHER:
        importlib.import_module(name)


def _become(arguments: list[str], cwd: Path, env: dict[str, str], output: Path) -> None:
    """Run the command in this process, and end it."""
    code: int = 1
    try:
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        for number, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)):
            opened = os.open(os.devnull if number == 0 else output, flags, 0o666)
            os.dup2(opened, number)
        os.dup2(1, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = arguments[1:]
        install()
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(code)
