"""CPU time of a program's call of the chat endpoint against a native turn.

    python -m scripts.bench.gateway_overhead [--repeats 3] [--episodes 40]
    python -m scripts.bench.gateway_overhead --model 135m-random --episodes 16   # with a network of this shape

Both sides play equal dialogues.  Without ``--model`` an engine answers at once, so that everything except the policy is
measured: the CPU time of this process (scheduler, server, templates), without that of the program's own process.  Other
programs on the machine hardly change it.  With ``--model`` a network with random weights samples replies of
`REPLY_TOKENS` tokens, and wall time is measured.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from lit_agentrl.engines.base import Engine, SamplingParams
from lit_agentrl.engines.scripted import ScriptedEngine
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.hosting import Hosting
from lit_agentrl.envs.world import World
from lit_agentrl.experimental.gateway.context import Calls
from lit_agentrl.experimental.gateway.task import ProgramTask
from lit_agentrl.experimental.gateway.world import AgentProgram
from lit_agentrl.models.policy import load_nano
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import EpisodeSpec, Scheduler, Wave
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.prompts import Prompt
from scripts.bench import trl_games
from scripts.bench.common import (
    Measured,
    alternate,
    compute_ratio,
    format_table,
    make_parser,
    parse,
    summarise,
    write_json,
)
from scripts.bench.gateway_agents import BOARD, TURNS

REPLY_TOKENS = 32
PARAMS = SamplingParams(max_reply_tokens=REPLY_TOKENS, max_context_tokens=1000)


class Boards(World):
    """A game that shows the same board, and ends after some turns."""

    def __init__(self, *, turns: int, split: str = "train") -> None:
        super().__init__(split=split)
        self._turns = self._left = turns

    @property
    def rules(self) -> str:
        """See `World`."""
        return "Move."

    def action_names(self) -> list[str]:
        """See `World`."""
        return ["Up", "Down"]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Show the first board."""
        self._left = self._turns
        return BOARD, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Show the next board, or end."""
        self._left -= 1
        return BOARD, 0.0, not self._left, False, {"success": not self._left}


def make_native() -> Task:
    """Return the native game."""
    return Task(
        "boards", partial(Boards, turns=TURNS), max_turns=TURNS, max_actions_per_turn=1, max_actions=TURNS,
        invalid_penalty=0.0,
    )  # fmt: skip


def make_program(function: str, workers: int = 4) -> ProgramTask:
    """Return a function of `gateway_agents` as a game."""
    world = partial(
        AgentProgram, mode="function", function=f"scripts.bench.gateway_agents.{function}", max_calls=TURNS + 1,
        timeout_s=300.0,
    )  # fmt: skip
    return ProgramTask(
        "boards", world, max_turns=TURNS + 1, max_actions_per_turn=1, max_actions=TURNS + 1, invalid_penalty=0.0,
        hosting=Hosting(where="thread", workers=workers),
    )  # fmt: skip


def open_scheduler(task: Task, capacity: int = 4, model: str | None = None) -> Scheduler:
    """Return a scheduler of one game.

    Its engine always names the same action, or, with a model, samples replies of one length.
    """
    policy = load_nano() if model is None else trl_games.policy(model)
    chat = ChatRenderer(policy.tokenizer)
    engine: Engine
    if model is None:
        engine = ScriptedEngine(
            lambda *_: "<answer>Up</answer>",
            encode=lambda text: chat.tokenizer(text, add_special_tokens=False)["input_ids"],
            capacity=capacity,
        )
    else:
        engine = trl_games.make_fixed_length_engine(num_slots=capacity, network=policy.network)
    more: dict[str, Any] = {"context": Calls()} if isinstance(task, ProgramTask) else {}
    rules = Rules(
        tasks=[task], prompt=Prompt(style="bare"), chat=chat, engine=lambda *_: engine, max_context_tokens=1000, **more
    )  # fmt: skip
    return Scheduler(rules, engine)


def measure(scheduler: Scheduler, episodes: int, repetition: int) -> Measured:
    """Play episodes; return CPU milliseconds a call, wall seconds, calls, tokens and the mean return."""
    specs = tuple(EpisodeSpec(repetition, group, 0, 0, group) for group in range(episodes))
    started, clock = time.process_time(), time.perf_counter()
    played = scheduler.play(Wave("train", 0, PARAMS, specs))
    seconds, elapsed = time.process_time() - started, time.perf_counter() - clock
    if failed := [episode.error for episode in played if episode.failed]:
        raise RuntimeError(failed[0])
    calls = sum(len(episode.turns) for episode in played)
    tokens = sum(len(turn.prefix_tokens) + len(turn.reply_tokens) for each in played for turn in each.turns)
    total = sum(turn.reward for episode in played for turn in episode.turns)
    return {
        "ms": 1000 * seconds / calls,
        "seconds": elapsed,
        "calls": float(calls),
        "tokens": float(tokens),
        "return": total / len(played),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure both sides, and print the table."""
    parser = make_parser(__file__, __doc__, repeats=3)
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--model", choices=trl_games.SHAPES, help="shape of a network with random weights")
    options = parse(parser, arguments)
    capacity = 4 if options.model is None else options.episodes
    with (
        closing(open_scheduler(make_native(), capacity, options.model)) as native,
        closing(open_scheduler(make_program("play", workers=capacity), capacity, options.model)) as program,
    ):
        sides = {
            "native": partial(measure, native, options.episodes),
            "program": partial(measure, program, options.episodes),
        }
        rounds = alternate(sides, repeats=options.repeats)
    if any(measured["native"]["tokens"] != measured["program"]["tokens"] for measured in rounds):
        raise RuntimeError(
            "the two sides read and wrote different numbers of tokens, so they cannot be compared"
        )
    rows = [
        [side, summarise(rounds, side, "ms").show(2), summarise(rounds, side, "seconds").show(2)]
        for side in sides
    ]
    print(format_table(["side", "CPU ms a call", "seconds"], rows))
    for quantity in ("ms", "seconds"):
        print(f"{quantity}: ratio {compute_ratio(rounds, quantity, of='program', to='native').show(2)}")
    write_json(Path(options.out), {"rounds": rounds}, options)


if __name__ == "__main__":
    main()
