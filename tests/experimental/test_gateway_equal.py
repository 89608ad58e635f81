"""Games as programs are the games to the bit: one and four at a time, with kills of the trainer and of a program."""

from __future__ import annotations

import random
import shutil
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.games.sokoban import Sokoban
from lit_agentrl.envs.hosting import Hosting
from lit_agentrl.episode import EndReason, Episode
from lit_agentrl.experimental.gateway.context import Calls
from lit_agentrl.experimental.gateway.task import ProgramTask
from lit_agentrl.experimental.gateway.world import AgentProgram
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import EpisodeSpec, Scheduler, Wave
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.context import FULL
from lit_agentrl.text.prompts import Prompt
from tests.conftest import nano_tokenizer, tiny_policy
from tests.experimental.test_gateway_runs import CLOCKS, OF_THE_GAME, PROGRAM, RUN, train
from tests.integration.conftest import command
from tests.integration.killed_run import Reference, Running
from tests.integration.kills import difference, fire

PARAMS = SamplingParams(max_reply_tokens=24, max_context_tokens=600)
LIMITS: dict[str, Any] = {
    "max_turns": 5,
    "max_actions_per_turn": 5,
    "max_actions": 10,
    "invalid_penalty": -0.1,
}
AGENTS = "env.game.function=tests.experimental.gateway_agents."
TEN = ["trainer.max_epochs=10", "val.every=5"]
# the limit is of the clock, and no program may reach it on a busy machine, where runs are to be equal too
MORTAL = [
    *PROGRAM, "env.name=sokoban", f"{AGENTS}play_mortal_sokoban", "rollout.max_failed_share=0.8",
    "env.game.timeout_s=600",
]  # fmt: skip
# by game: the options of its native form, and those of both forms
GAMES = {
    "sokoban": (["env=sokoban"], []),
    "pocket": (
        ["env=pocket", "env.game.levels=[0]", "env.max_turns=6"],
        ["model=nano_tools", "dialect=tool_call", "rollout.max_reply_tokens=48"],
    ),
}
OF_PROGRAMS = {"sokoban": [], "pocket": ["context.show_tools=false"]}
KILLS = 4
LONG_S = 3 * 3600.0  # of the clock, for runs on a busy machine


def play(task: Task, context: Any = FULL, slots: int = 4) -> list[Episode]:
    rules = Rules(
        tasks=[task], prompt=Prompt(style="compact"), chat=ChatRenderer(nano_tokenizer()), context=context,
        engine=partial(NativeEngine, num_slots=slots), max_context_tokens=600,
    )  # fmt: skip
    specs = tuple(EpisodeSpec(0, group, member, 0, 7 + group) for group in range(2) for member in range(3))
    policy = tiny_policy()
    with closing(Scheduler(rules, rules.open_engine(policy.network))) as scheduler:
        return scheduler.play(Wave("train", 0, PARAMS, specs))


def play_program(function: str, workers: int, slots: int = 4) -> list[Episode]:
    world = partial(
        AgentProgram,
        mode="function",
        function=f"tests.experimental.gateway_agents.{function}",
        timeout_s=60.0,
    )
    limits = {"max_turns": 10, "max_actions_per_turn": 1, "max_actions": 10, "invalid_penalty": 0.0}
    hosting = Hosting(where="thread", workers=workers)
    return play(ProgramTask("sokoban", world, **limits, hosting=hosting), Calls(), slots)


def tokens(episode: Episode) -> list[tuple[list[int], list[int], list[float]]]:
    return [
        (turn.prefix_tokens.tolist(), turn.reply_tokens.tolist(), turn.reply_logps.tolist())
        for turn in episode.turns
    ]


def test_sokoban_as_four_programs_has_the_tokens_of_the_game() -> None:
    native, played = play(Task("sokoban", Sokoban, **LIMITS)), play_program("play_sokoban", 4)
    assert [tokens(episode) for episode in played] == [tokens(episode) for episode in native]
    returns = [[sum(turn.reward for turn in e.turns) for e in each] for each in (native, played)]
    assert returns[0] == returns[1]


def test_a_killed_program_changes_no_other_episode() -> None:
    """In one slot, because log-probs depend in their last bit on what is computed beside them."""
    native = play(Task("sokoban", Sokoban, **LIMITS), slots=1)
    played = play_program("play_mortal_sokoban", 4, slots=1)
    assert 0 < sum(episode.failed for episode in played) < len(played)
    for episode, other in zip(played, native, strict=True):
        if episode.failed:
            assert episode.end is EndReason.ERROR and "killed by signal 9" in episode.error
        else:
            assert tokens(episode) == tokens(other)


@pytest.mark.parametrize(
    "game", [pytest.param("sokoban", marks=pytest.mark.slow), pytest.param("pocket", marks=pytest.mark.long)]
)
def test_ten_iterations_of_a_program_are_those_of_the_game(game: str, tmp_path: Path) -> None:
    """With one program and with four at a time."""
    options, both = GAMES[game]
    rows, weights = train(tmp_path / "game", *options, *both, *TEN, timeout=LONG_S)
    assert len(rows) >= 10
    compared = {
        key
        for key in rows[0]
        if not key.startswith((*CLOCKS, "rollout/count_", "val/count_"))
        and key.rpartition("/")[2] not in OF_THE_GAME
    }
    assert len(compared) > 40
    for workers in (1, 4):
        others, other_weights = train(
            tmp_path / f"programs_{workers}", *PROGRAM, f"env.name={game}", f"{AGENTS}play_{game}",
            f"env.hosting.workers={workers}", *OF_PROGRAMS[game], *both, *TEN, timeout=LONG_S,
        )  # fmt: skip
        for key in compared:
            assert [row[key] for row in rows] == [row[key] for row in others], (workers, key)
        assert len(others) == len(rows) and weights.keys() == other_weights.keys()
        assert all(torch.equal(weights[name], other_weights[name]) for name in weights)


@pytest.mark.long
def test_killed_programs_are_counted_and_change_nothing_else(tmp_path: Path) -> None:
    """Ten iterations with one and with four at a time: equal, and each killed program is in ``rollout/failed``."""
    runs = [
        train(
            tmp_path / f"programs_{workers}", *MORTAL, f"env.hosting.workers={workers}", *TEN, timeout=LONG_S
        )
        for workers in (1, 4)
    ]  # fmt: skip
    (rows, weights), (others, other_weights) = runs
    failed = [float(row["rollout/failed"]) for row in rows if row["rollout/failed"]]
    assert sum(failed) > 0
    for key in rows[0]:
        if not key.startswith(CLOCKS):
            assert [row[key] for row in rows] == [row[key] for row in others], key
    assert all(torch.equal(weights[name], other_weights[name]) for name in weights)


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found in /proc")
@pytest.mark.parametrize("seed", range(KILLS))
def test_a_trainer_is_killed_at_random_and_resumed(seed: int, reference: Reference, tmp_path: Path) -> None:
    """All its processes, or the trainer alone, whose programs then end with it; every second resume is killed too."""
    draws, folder, fell = random.Random(seed), tmp_path / "run", None
    mode = "at random" if seed % 2 else "driver"
    while fell is None:
        shutil.rmtree(folder, ignore_errors=True)
        fell = fire(make_command(folder), folder, mode, reference, draws, fork=False)
    again = [] if seed % 2 else [fire(resume(folder), folder, "at random", reference, draws, False, 0.3)]
    print(f"{mode}: {fell}; {again}")
    running = Running(resume(folder), folder)
    running.dies()
    assert running.code == 0, running.printed()
    assert difference(reference.folder, folder) is None


def make_command(folder: Path) -> list[str]:
    """Ten iterations of Sokoban, four programs at a time, of which some are killed."""
    return command(
        *MORTAL, "env.hosting.workers=4", *RUN, *TEN,
        "callbacks.transcripts.every=1", f"hydra.run.dir={folder}",
    )  # fmt: skip


def resume(folder: Path) -> list[str]:
    begun = (folder / ".hydra" / "overrides.yaml").exists()
    return command(f"resume={folder}", "trust_run=true") if begun else make_command(folder)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """The run that nobody kills."""
    folder = tmp_path_factory.mktemp("reference") / "run"
    return Reference.play(make_command(folder), folder, fork=False)
