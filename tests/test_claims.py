"""What a campaign was to show: pairs by hand, verdicts, and that the claims name cells of their grids."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from lit_agentrl.paths import CONFIG_DIR
from lit_agentrl.report.page.runs import Run
from lit_agentrl.report.table import Metrics
from tests.conftest import load_script

script = load_script("claims")
CLAIMS = yaml.safe_load(script.CLAIMS.read_text())


def played(options: str, seed: int, last: float, start: float = 0.5) -> Any:
    return script.Played(tuple(sorted(options.split())), seed, start, last, 1.0)


def claim(**options: Any) -> Any:
    return script.Claim(says="it helps", expected="above", least=0.1, **({"measure": "last"} | options))


def test_a_seed_is_one_observation() -> None:
    sides = claim(first=["x=1"], second=["x=2"])
    runs = [
        played("x=1 env=a", 0, 0.9), played("x=2 env=a", 0, 0.5), played("x=1 env=b", 0, 0.4),
        played("x=2 env=b", 0, 0.2), played("x=1 env=a", 1, 0.5), played("x=2 env=a", 1, 0.4),
        played("x=1 env=b", 1, 0.7), played("x=3 env=a", 1, 0.0),
    ]  # fmt: skip
    assert script.compute_gaps(sides, runs) == pytest.approx(
        [(0.4 + 0.2) / 2, 0.1]
    )  # seed 1 has no partner in b
    assert script.compute_gaps(claim(measure="gain"), runs[:2]) == pytest.approx([(0.4 + 0.0) / 2])
    rows = script.format_table([sides._replace(each=["env"])], runs).splitlines()[2:]
    assert ["+0.250" in rows[0], "+0.200" in rows[1], len(rows)] == [True, True, 2]


def test_best_against_best(tmp_path: Path) -> None:
    (tmp_path / "evaluations").mkdir()
    for stage, values in (("start", [0.2, 0.4]), ("last", [0.5, 0.3])):
        rows = [{"success": {"mean": value}} for value in values]
        (tmp_path / f"evaluations/{stage}_test_game_seed0.json").write_text(json.dumps({"results": rows}))
    assert script.compute_sharp_gain(tmp_path) == pytest.approx(0.1)
    (tmp_path / "evaluations/last_test_game_seed0.json").unlink()
    unplayed = played("", 1, 0.9)._replace(sharp=script.compute_sharp_gain(tmp_path))
    assert script.compute_gaps(
        claim(measure="sharp"), [played("", 0, 0.9)._replace(sharp=0.1), unplayed]
    ) == [0.1]


@pytest.mark.parametrize(
    ("values", "expected", "told"),
    [
        ([0.2, 0.21, 0.19], "above", "reproduced"),
        ([0.02, 0.021, 0.019], "above", "reproduced"),  # small, and clear of 0
        ([0.0, 0.02, -0.01], "above", "not reproduced"),  # smaller than what matters
        ([-0.3, -0.2, -0.25], "above", "not reproduced"),
        ([-0.3, -0.2, -0.25], "below", "reproduced"),
        ([0.5, -0.5, 0.3], "above", "undecided"),
        ([0.5], "above", "undecided"),
    ],
)
def test_verdicts(values: list[float], expected: str, told: str) -> None:
    found = script.compare_paired(values, [0.0] * len(values))
    assert script.state_verdict(claim()._replace(expected=expected), found) == told


def test_how_long_a_run_has_kept_its_success() -> None:
    def kept(*values: float | None) -> float:
        rows: list[dict[str, float | None]] = [
            {"iteration": float(at), "val/success": value} for at, value in enumerate(values)
        ]
        return float(script.compute_kept_share(Run(None, "run", "completed", metrics=Metrics(rows))))  # type: ignore[arg-type]

    assert (
        kept(0.5, 0.2, None, 0.2, 0.1, 0.1, 0.0, 0.0, 0.0) == 4 / 8
    )  # the third value below half of the peak
    assert kept(0.5, 0.2, 0.2, 0.3, 0.2) == 1.0


@pytest.mark.parametrize("name", CLAIMS)
def test_claims_name_cells_of_their_grid(name: str) -> None:
    grid = yaml.safe_load((CONFIG_DIR / "experiment/grid" / f"{name}.yaml").read_text())
    params = grid["hydra"]["sweeper"]["params"]

    def values(option: str) -> list[str]:
        text = str(params[option])
        parts = (
            [f"{{{each}}}" for each in text.strip("{}").split("},{")]
            if text.startswith("{")
            else text.split(",")
        )
        return [str(each).strip() for each in parts]

    for each in (script.Claim(**made) for made in CLAIMS[name]):
        for word in itertools.chain(each.first, each.second):
            option, value = word.split("=", 1)
            assert value in values(option), word
        assert set(each.each) <= set(params) and each.expected in ("above", "below")
        assert each.measure in ("last", "gain", "kept", "sharp") and bool(each.first) == bool(each.second)


@pytest.mark.slow
def test_the_pictures_are_drawn_from_the_committed_runs() -> None:
    """Each is what its runs give, to the letter; a claim at a place is a row, under the verdict of the table."""
    pictures = load_script("claim_pictures")
    for name, told in CLAIMS.items():
        claims = [pictures.Claim(**each) for each in told]
        runs = pictures.read(script.CLAIMS.with_name(f"{name}.csv"))
        rows = list(pictures.list_rows(claims, runs))
        table = script.format_table(claims, runs)
        assert rows and all(f"{row.mean:+.3f} [{row.low:+.3f}, {row.high:+.3f}]" in table for row in rows)
        assert script.CLAIMS.with_name(f"{name}.svg").read_text() == pictures.draw_picture(name, rows)


@pytest.mark.slow
def test_the_picture_of_learning_stands_between_chance_and_oracle() -> None:
    made = load_script("learning_picture")
    panels = made.read_panels()
    for panel in panels:
        means = [sum(values) / len(panel.seeds) for values in zip(*panel.seeds, strict=True)]
        assert len(panel.seeds) == 5 and panel.chance <= means[0] < means[-1] < panel.oracle
    assert (made.DOCS / "images" / "learning.svg").read_text(encoding="utf-8") == made.draw(panels)
