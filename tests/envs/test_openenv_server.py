"""A real server of OpenEnv, which lives in an environment of its own: `make test-openenv`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from lit_agentrl.envs.base import Task
from lit_agentrl.envs.checker import check_env
from lit_agentrl.envs.hosted.openenv import OpenEnv
from lit_agentrl.envs.levels import measure
from tests.conftest import ROOT
from tests.envs.started import started
from tests.integration.conftest import assert_the_same_twice

PYTHON = Path(os.environ.get("OPENENV_PYTHON", ROOT / ".venv-openenv/bin/python"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.sweep,
    pytest.mark.skipif(not PYTHON.exists(), reason="openenv is not installed (make test-openenv)"),
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with started([str(PYTHON), "examples/own_openenv/server.py"]) as found:
        yield found


def test_it_keeps_the_contract_and_chance_is_known(url: str) -> None:
    make = partial(OpenEnv, url=url)
    check_env(lambda split: make(split=split), episodes=4)
    task = Task("corridor", make, max_turns=16, max_actions_per_turn=1, max_actions=16)
    found = measure(task, "test", 40, 0)
    assert found.oracle_success is None and 0 < (found.chance_success or 0) < 1


def test_a_run_is_the_same_twice_and_nothing_of_it_fails(url: str, tmp_path: Path) -> None:
    given = [
        "experiment=quick", "env=openenv", "env.name=corridor", f"env.game.url={url}", "engine.num_slots=16",
        "trainer.accelerator=cpu",
    ]  # fmt: skip
    assert_the_same_twice(given, tmp_path)
