"""Agent functions for tests that fork, or read their input; without heavy imports, because each starts anew."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import Any


def fork_and_die(task: Any, client: Any) -> None:
    """End in the middle of an episode, and leave a process that holds every open file."""
    if os.fork() == 0:
        os.setsid()
        time.sleep(60)
    os.kill(os.getpid(), signal.SIGKILL)


def read_input(task: Any, client: Any) -> float:
    """Read what is on the standard input, as a program that was started without a thought would."""
    return float(len(subprocess.run(["cat"], capture_output=True, check=True).stdout) + 1)


def linger(task: Any, client: Any) -> None:
    """Make a call, start a child and a process of another session, note all numbers, and stay."""
    client.ask([{"role": "user", "content": "go"}])
    others = [subprocess.Popen(["sleep", "120"], start_new_session=is_apart) for is_apart in (False, True)]
    with open(os.environ["LINGERING"], "a") as file:
        file.write(" ".join(str(number) for number in (os.getpid(), *(each.pid for each in others))) + "\n")
    time.sleep(120)
