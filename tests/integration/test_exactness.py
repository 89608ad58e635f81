"""Equal seeds give equal bits, also of a run that is made longer; kills: `test_kills`."""

from __future__ import annotations

from pathlib import Path

import pytest

from lit_agentrl.cli.train import main as main_train
from tests.integration.conftest import TINY, assert_equal_runs, outcome


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize(
    "option",
    [
        "algo=starpo",
        "algo=svpo",
        "algo=xpo",
        "algo=nash_md",
        "update.lanes=2",
        "engine.window=4 engine.play_copy=true",
        pytest.param("algo=dapo", marks=pytest.mark.long),
    ],
)
def test_same_seed_same_bits_and_resume_after_a_finished_run(option: str, tmp_path: Path) -> None:
    """Two iterations straight equal one, then a longer target through resume=.

    Also with a critic, and with waves.
    """
    straight, extended = tmp_path / "straight", tmp_path / "extended"
    tiny = [
        "val.every=1" if each.startswith("val.every=") else each for each in TINY
    ]  # the last one always is
    for folder, iterations in ((straight, 2), (extended, 1)):
        length = f"trainer.max_epochs={iterations}"
        main_train([*tiny, *option.split(), length, f"hydra.run.dir={folder}"])
    main_train([f"resume={extended}", "trainer.max_epochs=2"])
    assert_equal_runs(straight, extended)
    assert len(outcome(straight)[1]) == 3
