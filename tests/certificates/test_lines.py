"""The stored lines, which the table of the docs shows, are those that the command makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from lit_agentrl.certificates.certificate import MEMBERS, Certificate, measure_direction
from lit_agentrl.certificates.estimator import Estimator
from lit_agentrl.certificates.lines import read_cosines, read_lines
from lit_agentrl.certificates.shipped import GAMES, LENGTHS
from lit_agentrl.config.groups import describe_algorithm
from lit_agentrl.paths import list_options
from tests.rl.ragged import fresh


def test_every_shipped_algorithm_has_a_line() -> None:
    assert sorted(read_lines()) == sorted(file.stem for file in list_options("algo"))


QUICK = {"stop"}
REST = {game.name for game in GAMES} - QUICK


@pytest.mark.parametrize(
    "games", [QUICK, pytest.param(REST, marks=(pytest.mark.slow, pytest.mark.sweep))], ids=["quick", "rest"]
)
@pytest.mark.parametrize("name", sorted(read_cosines()))
def test_the_stored_cosines_are_found_again(name: str, games: set[str]) -> None:
    stored, objective = read_cosines()[name], fresh(name)
    is_ordered = Estimator(objective, LENGTHS).is_ordered(MEMBERS)
    for game in GAMES:
        if game.name in games:
            found = measure_direction(objective, game, is_ordered=is_ordered)
            assert found.cosine == pytest.approx(stored[game.name], abs=2e-6), game.name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rloo", "grpo", "bradley_terry"])
def test_a_line_is_what_the_command_finds(name: str) -> None:
    objective = fresh(name)
    if name == "bradley_terry":
        assert read_lines()[name] == Certificate(name, missing="trains a reward model").line
    else:
        found = Certificate(name, [measure_direction(objective, game) for game in GAMES])
        assert read_lines()[name] == found.line


def test_help_describes_an_algorithm_and_shows_its_line(tmp_path: Path) -> None:
    shown = describe_algorithm("gspo").splitlines()
    assert shown[0] == "algo=gspo" and shown[1].startswith("  GSPO, arXiv 2507.18071. ")
    assert not [line for line in shown if "|" in line], "the table of runs is left out"
    assert shown[-1] == f"  Certificate: {read_lines()['gspo']} (`lit-agentrl certify algo=gspo`)."
    (tmp_path / "algo").mkdir()
    (tmp_path / "algo" / "gspo.yaml").write_text("# It's mine.\nname: gspo\n")
    assert describe_algorithm("gspo", [tmp_path]).splitlines() == [
        "algo=gspo", "  It's mine.", "  Certificate: `lit-agentrl certify algo=gspo`.",
    ]  # fmt: skip
    assert describe_algorithm("no_such") == ""
