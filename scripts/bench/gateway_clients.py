"""CPU time of agent programs told apart: server, client, and start of a process.

    python -m scripts.bench.gateway_clients [--repeats 5] [--episodes 40] [--starts 5]

An engine answers at once, and one program plays at a time.  CPU times are those of the trainer's process and of the
program's own process, both without the other.  A start is that of a process as `env=program` starts it, until it has
ended; its trainer is small here, and a large one takes longer to fork.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from lit_agentrl.experimental.gateway.exchange import Exchange, ProgramEnd
from lit_agentrl.experimental.gateway.processes import Process
from lit_agentrl.experimental.gateway.programs import Function
from scripts.bench.common import Measured, alternate, format_table, make_parser, parse, summarise, write_json
from scripts.bench.gateway_overhead import make_native, make_program, measure, open_scheduler

CLIENTS = {
    "urllib, a connection a call": "count_urllib",
    "http.client, a connection an episode": "count_http",
    "openai SDK, one client": "count_openai",
}
ADDRESS = "http://127.0.0.1:9/v1"
SCRIPTS = {
    "python alone": "pass",
    "python with urllib": "import json, urllib.request",
    "python with the openai SDK": f"from openai import OpenAI; OpenAI(base_url={ADDRESS!r}, api_key='none')",
}
NATIVE, WORKER = "native game", "mode=function, its worker"
NOT_INSTALLED = "openai is not installed, so its rows are left out: pip install openai"


def start_script(script: str) -> None:
    """Start a program as ``mode=command`` does, and wait for its end."""
    if code := Process([sys.executable, "-c", script], {}).wait():
        raise RuntimeError(f"python -c {script!r} exited with code {code}")


def start_worker() -> None:
    """Start the worker of ``mode=function``, wait for one result, and end it."""
    exchange, program = Exchange(is_parallel=False), Function("scripts.bench.gateway_agents.end_at_once")
    program.start(exchange, "{}", ADDRESS, "none")
    try:
        end = exchange.take_next(300.0)
        if not isinstance(end, ProgramEnd) or end.problem:
            raise RuntimeError(f"the worker failed: {end}")
    finally:
        program.close()


def measure_starts(start: Callable[[], None], number: int, repetition: int) -> Measured:
    """Start processes; return the milliseconds of one.

    ``program`` and ``trainer`` are CPU times of the program and of this process, ``clock`` is wall time.
    """
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    began, clock = time.process_time(), time.perf_counter()
    for _ in range(number):
        start()
    own, elapsed = time.process_time() - began, time.perf_counter() - clock
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - children.ru_utime - children.ru_stime
    return {
        name: 1000 * value / number
        for name, value in (("program", used), ("trainer", own), ("clock", elapsed))
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure calls and starts, and print both tables."""
    parser = make_parser(__file__, __doc__, repeats=5)
    parser.add_argument("--episodes", type=int, default=40, help="of a repetition")
    parser.add_argument("--starts", type=int, default=5, help="of a repetition")
    options = parse(parser, arguments)
    has_sdk = find_spec("openai") is not None
    clients = {name: function for name, function in CLIENTS.items() if has_sdk or "openai" not in function}
    starts = {
        name: partial(start_script, script)
        for name, script in SCRIPTS.items()
        if has_sdk or "openai" not in script
    }
    with ExitStack() as stack:
        tasks = {
            NATIVE: make_native(),
            **{name: make_program(each, workers=1) for name, each in clients.items()},
        }
        calls = {
            name: partial(measure, stack.enter_context(closing(open_scheduler(task, 1))), options.episodes)
            for name, task in tasks.items()
        }
        rounds = alternate(calls, repeats=options.repeats)
    started = alternate(
        {
            name: partial(measure_starts, each, options.starts)
            for name, each in {**starts, WORKER: start_worker}.items()
        },
        repeats=options.repeats,
    )
    rows = [
        [
            name,
            summarise(rounds, name, "ms").show(2),
            "" if name == NATIVE else summarise(rounds, name, "return").show(2),
        ]
        for name in calls
    ]
    print(format_table(["CPU ms a call", "trainer", "program"], rows))
    print()
    names = ("program", "trainer", "clock")
    rows = [[side, *(summarise(started, side, name).show(1) for name in names)] for side in started[0]]
    print(format_table(["ms a start", "CPU of the program", "CPU of the trainer", "clock"], rows))
    if not has_sdk:
        print(NOT_INSTALLED)
    write_json(Path(options.out), {"calls": rounds, "starts": started}, options)


if __name__ == "__main__":
    main()
