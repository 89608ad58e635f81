"""Whole runs: the first iteration's trajectories are the same tokens on one process and on two."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import sampled
from tests.integration.conftest import command, outcome, run

GAMES = [
    "env=frozen_lake", "rollout.prompts=4", "rollout.members=4", "rollout.max_context_tokens=320",
    "val.every=1", "test.episodes=0", "engine.num_slots=16", "callbacks.transcripts.every=1",
    "callbacks.transcripts.episodes=1000", "trainer.accelerator=cpu", "trainer.max_epochs=1", "val.episodes=2",
]  # fmt: skip
ALGORITHMS = {  # options, and the strategies; others' losses are compared on recorded batches (test_parity, test_fsdp)
    "grpo": (["algo=grpo", "filter.ratio=0.25"], ["fsdp"]),  # one group is kept: a rank has none
    "dapo": (["algo=dapo", "algo.structure.max_waves=3"], ["ddp"]),
}


def _played(folder: Path) -> dict[tuple[int, ...], list[list[int]]]:
    """Sampled tokens of each turn, by the address of the episode."""
    lines = (folder / "transcripts" / "train.jsonl").read_text().splitlines()
    episodes = [json.loads(line)["episode"] for line in lines]
    return {
        tuple(e[name] for name in ("iteration", "wave", "group", "member")): [
            turn["reply_tokens"] for turn in e["turns"]
        ]
        for e in episodes
    }


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", sampled(ALGORITHMS, ("grpo",)))
def test_first_trajectories_are_those_of_one_process(algorithm: str, tmp_path: Path) -> None:
    """The step that follows has the same loss and gradient norm, to 1e-4."""
    options, strategies = ALGORITHMS[algorithm]
    layouts = {name: [f"strategy={name}", "trainer.devices=2"] for name in strategies}
    for name, layout in {"one": ["strategy=single"], **layouts}.items():
        done = run(command(*GAMES, *options, f"hydra.run.dir={tmp_path / name}", *layout))
        assert done.returncode == 0, done.stderr
    played = _played(tmp_path / "one")
    lengths = {sum(map(len, turns)) for turns in played.values()}
    assert len(played) >= 16 and max(lengths) > 2 * min(lengths)
    _, rows = outcome(tmp_path / "one")
    for name in strategies:
        assert _played(tmp_path / name) == played
        _, others = outcome(tmp_path / name)
        for column in ("train/loss", "train/grad_norm", "rollout/return_mean"):
            mine, other = (float(found[1][column]) for found in (rows, others))
            assert other == pytest.approx(mine, abs=1e-4), (name, column)
            print(f"{algorithm} {name} {column}: {abs(other - mine):.1e}")
