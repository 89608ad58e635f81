"""Run folders as runs leave them, without a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from lit_agentrl.report import outcomes, summary
from lit_agentrl.report.statistics import compute_wilson_interval

MakeRun = Callable[..., Path]


def score(successes: int, n: int, iteration: int | None) -> Any:
    estimate = summary.to_estimate(compute_wilson_interval(successes, n))
    return {"iteration": iteration, "success": estimate, "return": None}


@pytest.fixture(autouse=True)
def coarse_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes most of a report's time, and no test counts the pixels."""
    monkeypatch.setattr("lit_agentrl.report.page.drawing._DPI", 50)


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    def make(
        name: str, seed: int = 0, solved: Sequence[int] | None = (2, 6, 4), *, n: int = 8, status: str = "completed",
        env: str = "bandit", curve: Sequence[float] = (0.25, 0.5), error: str | None = None, **options: Any,
    ) -> Path:  # fmt: skip
        folder = tmp_path / name
        (folder / ".hydra").mkdir(parents=True)
        config = {"seed": seed, "run_dir": "${x}", "env": {"name": env}, "algo": options or {"lr": 1}}
        (folder / ".hydra" / "config.yaml").write_text(yaml.safe_dump(config))
        words = [f"env={env}", *(f"{key}={value}" for key, value in options.items()), f"seed={seed}"]
        (folder / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(words))
        stages = dict.fromkeys(summary.STAGES) if solved is None else {
            stage: score(count, n, 0) for stage, count in zip(summary.STAGES, solved, strict=True)
        }  # fmt: skip
        game = {
            "name": env,
            "split": "test",
            "chance": score(1, 8, None),
            "oracle": score(8, 8, None),
            **stages,
        }
        if solved is None:
            game["start"] = score(2, n, 0)
        report: Any = {
            "version": 1, "status": status, "error": error, "warnings": [], "command": f"train seed={seed}",
            "seed": seed, "versions": {}, "git_revision": None, "games": [game], "held_out": {},
            "monitored": None, "iterations": 2,
            "planned_iterations": 2, "episodes": 1, "action_tokens": 1, "prefilled_tokens": 1, "seconds": {},
            "engine": {}, "saves": None, "peak_memory_bytes": 1, "threads": 2,
        }  # fmt: skip
        summary.write(folder / "summary.json", report)
        rows = "".join(f"{at},{value},{value / 2}\n" for at, value in enumerate(curve))
        (folder / "metrics.csv").write_text(f"iteration,val/success,rollout/entropy\n{rows}")
        if solved is not None:
            hits = [number < solved[2] for number in range(n)]
            outcomes.write(folder / outcomes.FILE, {(env, "test", "last"): hits})
        return folder

    return make


def edit(path: Path, **fields: Any) -> None:
    """Change fields of a file of JSON."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
