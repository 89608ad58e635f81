"""A stand-in for AppWorld, of its shape: one task per process, code that is run, tests at the end."""

from __future__ import annotations

import contextlib
import datetime
import io
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SIZES = {"train": 6, "dev": 3, "test_normal": 3, "test_challenge": 3}
WORDS = ["milk", "rice", "soap", "tea", "salt", "jam"]


def load_task_ids(
    dataset_name: str = "train",
    difficulty: int | None = None,
    num_tasks_per_scenario: int | None = None,
    only_tagged: list[str] | None = None,
) -> list[str]:
    """The ids of the tasks of a data set."""
    return [f"{dataset_name[-4:]}{number // 3}_{number % 3 + 1}" for number in range(SIZES[dataset_name])]


class AppWorld:
    """A list of things to buy: the task asks for one more, and for nothing else."""

    open_worlds = 0

    def __init__(
        self, task_id: str, experiment_name: str = "default", timeout_seconds: int | None = 100
    ) -> None:
        assert not AppWorld.open_worlds, "one task per process"
        AppWorld.open_worlds += 1
        self.task_id, self.timeout_seconds = task_id, timeout_seconds
        self.output_directory = os.path.join(
            os.environ["APPWORLD_ROOT"], "experiments", "outputs", experiment_name, "tasks", task_id
        )
        Path(self.output_directory).mkdir(parents=True)
        self.wanted = WORDS[sum(map(ord, task_id)) % len(WORDS)]
        self.task = SimpleNamespace(
            id=task_id, instruction=f"Put {self.wanted} on my list.", datetime=datetime.datetime(2023, 5, 18, 12),
            supervisor={"first_name": "Ida", "last_name": "Roe", "email": "ida@mail.example", "phone_number": "12"},
            app_descriptions={"supervisor": "Whose task it is.", "list": "What to buy."},
        )  # fmt: skip
        self.things: list[str] = []
        self.is_complete = False
        supervisor = SimpleNamespace(complete_task=self._complete)
        apis = SimpleNamespace(list=SimpleNamespace(add=self.things.append), supervisor=supervisor)
        self.names: dict[str, Any] = {"apis": apis, "sleep": time.sleep, "end": os._exit}

    def execute(self, code: str) -> str:
        """What the code prints; what it raises is told."""
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(code, self.names)
        except Exception as error:
            return f"Execution failed. Traceback:\n{type(error).__name__}: {error}"
        return printed.getvalue() or "Execution successful."

    def task_completed(self) -> bool:
        return self.is_complete

    def evaluate(self, suppress_errors: bool = True) -> Any:
        """The tests: the thing is there, and nothing else."""
        passes = [self.wanted in self.things, set(self.things) <= {self.wanted}]
        return SimpleNamespace(success=all(passes), pass_count=sum(passes), num_tests=2)

    def close(self) -> None:
        AppWorld.open_worlds -= 1

    def _complete(self, answer: object = None, status: str = "success") -> None:
        self.is_complete = True
