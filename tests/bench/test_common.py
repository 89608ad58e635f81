"""What the benchmarks share, without timing anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from scripts.bench import common


def test_sides_alternate_in_an_order_that_is_reversed_each_time() -> None:
    called = []

    def side(name: str):
        return lambda number: called.append((number, name)) or {"whole": 1.0}

    rounds = common.alternate({"ours": side("ours"), "trl": side("trl")}, repeats=3, warmups=1)
    assert called == [
        (-1, "trl"), (-1, "ours"), (0, "ours"), (0, "trl"), (1, "trl"), (1, "ours"), (2, "ours"), (2, "trl"),
    ]  # fmt: skip
    assert rounds == [{"ours": {"whole": 1.0}, "trl": {"whole": 1.0}}] * 3


def test_a_ratio_is_taken_within_repetitions() -> None:
    rounds = [{"ours": {"s": a}, "trl": {"s": b}} for a, b in ((1.0, 2.0), (10.0, 40.0), (4.0, 12.0))]
    ratio = common.compute_ratio(rounds, "s", of="trl", to="ours")
    # the ratio of medians would be 12 / 4 = 3 as well; of means 54 / 15 = 3.6
    assert (ratio.median, ratio.low, ratio.high) == (3.0, 2.0, 4.0)
    lopsided = [{"ours": {"s": a}, "trl": {"s": b}} for a, b in ((1.0, 1.0), (2.0, 10.0), (9.0, 9.0))]
    assert common.compute_ratio(lopsided, "s", of="trl", to="ours").median == 1.0  # of medians: 4.5
    assert ratio.show(1) == "3.0 (2.0–4.0)"
    assert "3.00 (2.00–4.00)" in common.format_seconds(rounds, ["s"], ours="ours", peer="trl")


def test_a_spread_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        common.Summary.of([])
    with pytest.raises(ValueError, match="repeats=0"):
        common.alternate({"ours": lambda number: {}}, repeats=0)


def test_columns_of_a_table_are_aligned() -> None:
    lines = common.format_table(["name", "s"], [["a", 1.5], ["longer", 12]]).splitlines()
    assert lines == ["name      s", "------  ---", "a       1.5", "longer   12"]


def test_a_stopwatch_adds_up() -> None:
    into = {"s": 100.0}
    with common.time_block(into, "s"):
        pass
    assert 100.0 < into["s"] < 160.0


def test_the_record_holds_options_machine_and_figures(tmp_path: Path, capsys) -> None:
    threads = torch.get_num_threads()
    path = tmp_path / "new" / "figures.json"
    options = common.parse(common.make_parser("figures.py", "What it does."), ["--out", str(path)])
    assert torch.get_num_threads() == threads  # left alone unless --threads is given
    common.write_json(
        path, {"ratio": common.Summary(2.0, 1.0, 3.0), "rounds": [{"ours": {"s": 1.0}}]}, options
    )
    record = json.loads(path.read_text())
    assert record["ratio"] == {"median": 2.0, "low": 1.0, "high": 3.0}
    assert record["rounds"] == [{"ours": {"s": 1.0}}]
    assert record["options"] == {"repeats": 5, "threads": None, "out": str(path)}
    assert record["machine"]["threads"] == threads and record["machine"]["packages"]["torch"]
    assert str(path) in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--repeats=0", "--threads=0"])
def test_an_option_out_of_range_is_refused(option: str, capsys) -> None:
    with pytest.raises(SystemExit):
        common.parse(common.make_parser("figures.py", None), [option])
    assert "must be >= 1" in capsys.readouterr().err


def test_a_disturbed_repetition_is_run_again_but_not_for_ever() -> None:
    shares = iter([0.0, 0.5, 0.0, 0.5, 0.5, 0.5])  # the first belongs to the warm-up

    def side(number: int) -> dict[str, float]:
        return {"whole": 1.0, "foreign_share": next(shares)}

    rounds = common.alternate({"ours": side}, repeats=2, warmups=1, keep=common.is_undisturbed)
    assert [measured["ours"]["foreign_share"] for measured in rounds] == [
        0.0,
        0.5,
    ]  # one was replaced by none better
    assert common.is_undisturbed({"ours": {"whole": 1.0}})  # where nothing is known of other programs


def test_what_is_given_to_a_benchmark_takes_the_place_of_its_own_options() -> None:
    found = common.keep_last(["algo=grpo", "env=sokoban", "seed=0", "env=bandit", "algo.clip=a=b"])
    assert found == ["algo=grpo", "env=bandit", "seed=0", "algo.clip=a=b"]
