"""The process that calls an agent function, once for each line of its input."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from lit_agentrl.experimental.gateway.client import Client


def load_function(name: str) -> Callable[..., Any]:
    """Return the function of a dotted name.

    Raises:
        ValueError: The name cannot be imported, or is not that of a function.
    """
    module, _, attribute = name.rpartition(".")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"function={name} cannot be imported ({error})") from error
    if not callable(function):
        raise ValueError(f"function={name} must be a function of (task, client)")
    loaded: Callable[..., Any] = function
    return loaded


def call_function(name: str, job: Mapping[str, Any]) -> Any:
    """Call a function, plain or async, with a job's task and endpoint; return its result."""
    result = load_function(name)(job["task"], Client(job["base_url"], job["api_key"]))
    return asyncio.run(_wait_for(result)) if inspect.isawaitable(result) else result


def main(name: str, results: int) -> None:
    """Call the function once for each line of input, and write its result as JSON.

    Processes that the function starts inherit neither the pipe of results nor the input, which they might read.

    Args:
        name: Dotted name of the function.
        results: File descriptor to which results are written.
    """
    os.set_inheritable(results, False)
    jobs = os.dup(0)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    with os.fdopen(results, "w") as output, os.fdopen(jobs) as lines:
        for line in lines:
            job = json.loads(line)
            try:
                text = json.dumps({"result": call_function(name, job)})
            except (Exception, SystemExit) as error:
                text = json.dumps({"problem": f"{type(error).__name__}: {error}"})
            output.write(text + "\n")
            output.flush()


async def _wait_for(result: Any) -> Any:
    return await result
