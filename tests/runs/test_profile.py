"""``debug=profile``: where the time of an iteration goes, and the numbers of the run as they are without it."""

from __future__ import annotations

import gzip
import json
import shlex
from pathlib import Path

import pytest

from lit_agentrl.cli.train import main
from lit_agentrl.report.table import Metrics
from tests.commands import SMALL, Refused

# metrics of clocks, of servers and of workers; all others are bit-equal in runs of one config and seed
CLOCK_PREFIXES = ("time/", "speed/", "engine/", "worker/")


@pytest.mark.slow
def test_a_table_and_a_trace_are_left_and_the_numbers_stay(in_empty_folder: Path) -> None:
    asked = [*shlex.split(SMALL), "trainer.max_epochs=3"]
    asked.remove("trainer.max_epochs=2")
    main([*asked, "hydra.run.dir=plain"])
    main([*asked, "debug=profile", "trainer.profiler.row_limit=40", "hydra.run.dir=run"])
    plain, profiled = (Metrics.read(f"{name}/metrics.csv") for name in ("plain", "run"))
    for name in plain.columns:
        assert name.startswith(CLOCK_PREFIXES) or plain[name] == profiled[name]
    table = Path("run/profile/fit-operators.txt").read_text(encoding="utf-8")
    assert "RolloutCallback" in table and "aten::" in table
    names: set[str] = set()
    for file in Path("run/profile").glob("*.pt.trace.json.gz"):
        with gzip.open(file, "rt") as trace:
            names |= {str(each.get("name")) for each in json.load(trace)["traceEvents"]}
    assert {"[pl][profile]run_training_batch", "aten::mm"} <= names
    main(["resume=run", "trainer.max_epochs=4"])
    assert len(Metrics.read("run/metrics.csv")) == 5


@pytest.mark.slow
def test_options_of_before_name_those_of_today(refused: Refused, in_empty_folder: Path) -> None:
    told = refused("debug=profile callbacks.profile.iteration=3")
    assert "callbacks.profile.iteration was removed; write trainer.profiler.schedule.wait=" in told
