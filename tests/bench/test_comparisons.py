"""The comparison of methods that learn from recorded episodes: its rule and its table by hand."""

from __future__ import annotations

import pytest
from hydra import compose

from lit_agentrl.config.composition import initialize_hydra
from scripts.bench.campaigns.comparisons import (
    FOURTH,
    choose_rate,
    compute_gains,
    format_gains_over_control,
    format_table,
)


def rooms(solved: str, invalid: float = 0.0) -> dict[str, object]:
    return {"solved": [mark == "x" for mark in solved], "invalid": invalid}


def test_the_rule_takes_the_best_rate_that_breaks_no_replies_and_the_lower_of_equals() -> None:
    assert choose_rate({1e-5: rooms("x..."), 2e-5: rooms("xx.."), 4e-5: rooms("xxx.", 0.031)}) == 2e-5
    assert choose_rate({1e-5: rooms("x..."), 2e-5: rooms(".x..", 0.03)}) == 1e-5
    assert choose_rate({1e-5: rooms("xxxx", 0.1)}) is None


def test_the_table_by_hand() -> None:
    """Gains of the rooms 1/2, 1, 0 and -1/2 over two seeds: mean 1/4, s = 0.645, 3.182 s / 2 = 1.027."""
    starts = {0: rooms("...x"), 1: rooms("x..x")}
    found = {0: rooms("xx.x"), 1: rooms("xx..")}
    assert compute_gains(list(found.values()), list(starts.values())) == [0.5, 1.0, 0.0, -0.5]
    tried = {1e-4: rooms("x..."), 3e-4: rooms("xx..", 0.02)}
    (line,) = format_table({"sft": tried}, {"sft": found}, starts).splitlines()[2:]
    assert line.startswith("| sft | 0.0001: 0.250, 0.000, **0.0003**: 0.500, 0.020 | 2 | 0.375 | 0.750 [")
    assert line.endswith("| +0.250 [-0.777, +1.277] (n = 4) | 0.000 |")


def test_what_is_above_the_control_by_hand() -> None:
    """Differences of the rooms 1, 0, 0 and 1: mean 1/2, s = 0.577, 3.182 s / 2 = 0.919; other seeds are left out."""
    found = {"control": {0: rooms("..x.")}, "orpo": {0: rooms("x.xx")}, "dpo": {1: rooms("xxxx")}}
    assert format_gains_over_control(found) == ["\norpo less control: +0.500 [-0.419, +1.419] (n = 4)"]
    assert format_gains_over_control({"orpo": {0: rooms("x")}}) == []


@pytest.mark.slow
def test_the_experiment_is_the_setting_of_the_fourth_look() -> None:
    options, (rate,) = FOURTH["online_dpo"]
    with initialize_hydra():
        typed = compose("train", [*options.split(), f"optim.lr={rate}", "env=sokoban"])
        named = compose("train", ["experiment=sokoban_online_dpo"])
    assert named == typed and named.algo.nll.of == "pairs"
