"""A worker of a slow game that is killed, hangs or grows harms one episode of a run; and workers pay off."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from lit_agentrl.cli.train import main as main_train
from lit_agentrl.envs.hosting import Hosting
from scripts.bench.slow_worlds import EPISODES, TURNS, list_tokens, play, play_vector
from tests.integration.conftest import assert_equal_runs, outcome

PROMPTS, MEMBERS = 4, 4
VICTIM, NOBODY = PROMPTS + 2, 10_000  # a group of the second iteration
RUN = [
    "env=frozen_lake", "env.max_turns=3", f"rollout.prompts={PROMPTS}", f"rollout.members={MEMBERS}", "seed=0",
    "rollout.max_reply_tokens=20", "rollout.max_context_tokens=300", "val.episodes=4", "test.episodes=0",
    "engine.num_slots=16", "optim.lr=1e-3", "trainer.accelerator=cpu", "trainer.max_epochs=3",
    "env.game._target_=tests.integration.faulty.FaultyLake",
]  # fmt: skip
PLACES = {
    "raise": [],
    "kill": ["env.hosting.where=process", "env.hosting.workers=2"],
    "hang": ["env.hosting.where=process", "env.hosting.workers=2", "env.hosting.step_timeout_s=4"],
    "grow": ["env.hosting.where=process", "env.hosting.workers=2", "env.hosting.max_memory_mb=1024"],
}
TOLD = {"kill": r"died \(exit code -9\)", "hang": r"hung \(exit code -9\)"}


def play_to_the_end(folder: Path, how: str, victim: int) -> None:
    main_train(
        [
            *RUN,
            *PLACES[how],
            f"+env.game.how={how}",
            f"+env.game.victim={victim}",
            f"hydra.run.dir={folder}",
        ]
    )


@pytest.mark.slow
@pytest.mark.sweep
def test_a_worker_that_is_lost_costs_its_episode_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    play_to_the_end(tmp_path / "raise", "raise", VICTIM)
    _, rows = outcome(tmp_path / "raise")
    assert [float(row["rollout/failed"]) for row in rows if row["rollout/failed"]] == [0.0, 1.0, 0.0]
    for how in ("kill", "hang", "grow"):
        caplog.clear()
        play_to_the_end(tmp_path / how, how, VICTIM)
        assert_equal_runs(tmp_path / "raise", tmp_path / how)  # which leaves that episode out
        told = re.findall(r"a worker of game frozen_lake (.*) and is replaced \((\d) of", caplog.text)
        # what grows is refused the memory, and its process lives on
        assert len(told) == (how in TOLD), caplog.text
        assert all(re.match(TOLD[how], why) and number == "1" for why, number in told)
    play_to_the_end(tmp_path / "calm", "raise", NOBODY)
    weights, rows = outcome(tmp_path / "calm")
    assert not any(float(row["rollout/failed"] or 0) for row in rows)
    others, _ = outcome(tmp_path / "raise")
    assert any(
        not torch.equal(weight, others[name]) for name, weight in weights.items()
    )  # the episode counts


@pytest.mark.slow
def test_sixteen_workers_take_an_eighth_of_the_time_of_one() -> None:
    """Steps take longer than in the benchmark: on a busy machine, what the policy computes weighs less."""
    seconds = 0.2
    expected, _ = play(Hosting(), seconds=0.0)
    found = [play(Hosting(where="thread", workers=16), seconds=seconds) for _ in range(3)]
    assert all(list_tokens(episodes) == list_tokens(expected) for episodes, _ in found)
    of_one_worker = EPISODES * TURNS * seconds  # at least: one step after the other
    assert min(took for _, took in found) <= of_one_worker / 8
    in_lockstep, _ = play_vector(seconds=0.001)
    assert list_tokens(in_lockstep) == list_tokens(expected)
