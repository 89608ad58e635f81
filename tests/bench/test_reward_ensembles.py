"""Ensembles as guards: the table by hand."""

from __future__ import annotations

from scripts.bench.campaigns.reward_ensembles import format_table


def test_each_side_stands_beside_the_one_model_and_the_start() -> None:
    def solves(*rooms: int) -> dict[str, list[bool]]:
        return {"solved": [room in rooms for room in range(4)]}

    found = {
        "alone": {6: {"last": solves(0), "start": solves(0, 1)}, 7: {"last": solves(), "start": solves(0)}},
        "least": {6: {"last": solves(0, 1, 2)}, 7: {"last": solves(0)}},
    }
    *_, alone, least = format_table(found).splitlines()
    assert alone == "| alone | 0.375 | 0.250, 0.000 | +0.000 [+0.000, +0.000] | -0.250 [-0.709, +0.209] |"
    assert least.startswith("| least | 0.375 | 0.750, 0.250 | +0.375 [") and "| +0.125 [" in least
