"""An agent in the dialect of Anthropic behind the capture proxy of OpenEnv: `make test-openenv`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.experimental.gateway_once import assert_whole_and_rewarded, train_once

PYTHON = Path(os.environ.get("OPENENV_PYTHON", ROOT / ".venv-openenv/bin/python"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="openenv is not installed (make test-openenv)"),
]


def test_an_agent_of_another_dialect_is_trained_through_a_proxy(tmp_path: Path) -> None:
    program = f"env.game.command=[{PYTHON},{ROOT / 'examples/agent_anthropic/episode.py'}]"
    assert_whole_and_rewarded(train_once(tmp_path, program))
