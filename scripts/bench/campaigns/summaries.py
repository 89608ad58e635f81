"""Campaign of summaries that the loss includes or leaves out.

    python -m scripts.bench.campaigns.summaries --folder outputs/summaries --csv docs/findings/summaries.csv

The question is whether the policy learns to write summaries.  The protocol was fixed before the runs of seeds 1 to 5;
seed 0 was the pilot, on which the settings were chosen.  The game is a T-maze of three steps.  After two of them the
policy is asked for a summary, and everything before it is forgotten: only the summary can tell which way is right.
Each seed begins with an imitation of demonstrations whose summaries name a random way, and whose later turns follow the
summary, so that it solves half of the games.  From these weights two runs of GRPO differ in
`algo.structure.train_summaries` alone.  A run ends with the iteration in which its sampled tokens reach the budget,
about 26 iterations.  The weights at the start and the last ones play 512 test games at temperature 1 and at 0, the same
for all.  The measure is success at temperature 1 of the trained arm less that of the masked arm, paired by seed, with a
95 % t interval; a gain has its interval above 0, a loss below.  Temperature 0 shows whether a policy only became more
certain.  The folder stores finished work; the same command continues from there.
"""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

from lit_agentrl.api import Result
from lit_agentrl.experimental.summaries.t_maze import TMaze
from lit_agentrl.files import write_atomic
from lit_agentrl.report.statistics import compute_mean_interval
from scripts.bench.campaigns.cells import Outcome, finish_run, make_campaign_parser, read_or_measure
from scripts.bench.campaigns.structures import run_to_budget

SEEDS = (1, 2, 3, 4, 5)
PILOT = (0,)
LENGTH, TURNS = 3, 5
BEFORE_SUMMARY = 2  # turns of the first row
GAME = (
    "env=t_maze",
    f"env.game.length={LENGTH}",
    f"env.max_turns={TURNS}",
    "context=summary",
    "algo/structure=summary",
    "algo.structure.tokens=50",
)
IMITATION = ("algo=sft", "data=demonstrations", "data.batch=32", "optim.lr=1e-3", "trainer.max_epochs=60")
EPISODES = 1024  # demonstrations of a seed
REINFORCEMENT = ("algo=grpo", "rollout.prompts=8", "rollout.members=8")
BUDGET = 60_000
TEMPERATURES = (1.0, 0.0)
START, TRAINED, MASKED = "start", "trained", "masked"
ARMS = {TRAINED: "true", MASKED: "false"}
Cell = tuple[str, int]  # policy, seed


def demonstrate(game: TMaze, seed: int, named: str) -> tuple[list[str], list[str]]:
    """Return the texts of an episode up to its summary, and those after it.

    The summary names the way ``named``.

    The turns before the summary plan for the right way, those after it for the named one.
    """
    seen, _ = game.reset(seed=seed)
    right = (game.optimal_actions(horizon=LENGTH + 1) or [])[-1]
    first, second = list[str](), list[str]()
    for turn in range(LENGTH + 1):
        dialogue, way = (first, right) if turn < BEFORE_SUMMARY else (second, named)
        message = f"turns {TURNS - turn} actions {TURNS - turn}\n{seen}"
        if turn > 0:
            message = f"reward +0.0\n{message}"
        if turn == BEFORE_SUMMARY:
            message = f"Your notes:\n<answer> {named} </answer>\n{message}"
        if turn in (0, BEFORE_SUMMARY):
            message = f"t_maze\n{message}"
        thought = " ".join(["Up"] * (LENGTH - turn) + [way])
        action = way if turn == LENGTH else "Up"
        dialogue += [message, f"<think> {thought} </think> <answer> {action} </answer>"]
        seen = game.step(action)[0]
    first += ["notes ?", f"<think> ? </think> <answer> {named} </answer>"]
    return first, second


def write_demonstrations(path: Path, seed: int, episodes: int = EPISODES) -> None:
    """Write both dialogues of each demonstrated episode; its summary names a random way."""
    rng = random.Random(seed)
    game = TMaze(length=LENGTH)
    lines = []
    for _ in range(episodes):
        dialogues = demonstrate(game, rng.getrandbits(32), rng.choice(("Left", "Right")))
        lines += [json.dumps({"messages": as_messages(texts)}) for texts in dialogues]
    write_atomic(path, "\n".join(lines) + "\n")


def as_messages(texts: Sequence[str]) -> list[dict[str, str]]:
    """Return messages of the user and the assistant in turn."""
    return [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(texts)]


def measure(run: Result, games: int) -> dict[str, object]:
    """Return the solved test games of the last weights at each temperature."""
    scores = {
        str(each): run.evaluate(
            checkpoint="last", episodes=games, temperature=each, seed=0, trust_run=True
        ).records[0]
        for each in TEMPERATURES
    }
    return {"solved": {name: each["solved"] for name, each in scores.items()}}


def train_start(folder: Path, seed: int, games: int, options: Sequence[str]) -> Outcome:
    """Train on the demonstrations of a seed, and measure the weights."""
    rows = folder.with_suffix(".jsonl")
    if not rows.exists():
        write_demonstrations(rows, seed)
    fixed = [
        *IMITATION,
        *GAME,
        f"data.path={rows}",
        f"seed={seed}",
        "val.every=1000",
        "val.episodes=16",
        "test.episodes=0",
    ]
    return {**measure(finish_run(folder, [*fixed, *options]), games), "tokens": 0}


def train_arm(
    folder: Path, weights: Path, arm: str, seed: int, budget: int, games: int, options: Sequence[str]
) -> Outcome:
    """Run one arm to its budget from these weights, and measure the last ones."""
    fixed = [
        *REINFORCEMENT, *GAME, "model=hf", f"model.name={weights}", f"seed={seed}",
        f"algo.structure.train_summaries={ARMS[arm]}",
    ]  # fmt: skip
    run = run_to_budget(folder, [*fixed, *options], budget)
    return {**measure(run, games), "tokens": run.summary["action_tokens"]}


def compute_success(outcome: Outcome, temperature: float) -> float:
    """Compute the share of solved games at a temperature."""
    return fmean(map(float, outcome["solved"][str(temperature)]))


def format_table(found: Mapping[Cell, Outcome]) -> str:
    """Format success by policy and seed, and the difference between the arms at temperature 1."""
    seeds = sorted({seed for _, seed in found})
    lines = [
        "| policy | temperature | "
        + " | ".join(f"seed {seed}" for seed in seeds)
        + " | mean [95 % over seeds] |",
        "|---" * (3 + len(seeds)) + "|",
    ]
    for policy in (START, *ARMS):
        for temperature in TEMPERATURES:
            own = {
                seed: compute_success(found[policy, seed], temperature)
                for seed in seeds
                if (policy, seed) in found
            }
            lines.append(f"| {policy} | {temperature:g} | {format_row(own, seeds, '.3f')} |")
    gaps = {
        seed: compute_success(found[TRAINED, seed], 1.0) - compute_success(found[MASKED, seed], 1.0)
        for seed in seeds
        if all((arm, seed) in found for arm in ARMS)
    }
    return "\n".join([*lines, f"| trained less masked | 1 | {format_row(gaps, seeds, '+.3f')} |"])


def format_row(values: Mapping[int, float], seeds: Sequence[int], form: str) -> str:
    """Format the value of each seed, and their mean."""
    shown = [format(values[seed], form) if seed in values else "–" for seed in seeds]
    return " | ".join([*shown, format_mean([*values.values()], form)])


def format_mean(values: Sequence[float], form: str) -> str:
    """Format a mean with its Student interval over seeds."""
    if len(values) < 2:
        return "".join(format(each, form) for each in values)
    found = compute_mean_interval(values)
    return f"{found.mean:{form}} [{found.low:{form}}, {found.high:{form}}]"


def as_csv(found: Mapping[Cell, Outcome]) -> str:
    """Format a CSV line for each policy and temperature."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["policy", "seed", "tokens", "temperature", "games", "success"])
    for (policy, seed), each in found.items():
        for temperature in TEMPERATURES:
            games = len(each["solved"][str(temperature)])
            rows.writerow(
                [
                    policy,
                    seed,
                    int(each["tokens"]),
                    temperature,
                    games,
                    round(compute_success(each, temperature), 6),
                ]
            )
    return text.getvalue()


def main() -> int:
    """Run all unfinished cells, and write the table after each."""
    parser = make_campaign_parser("Summaries in the loss and out of it.", SEEDS, further=PILOT)
    parser.add_argument(
        "--csv", type=Path, help="file for a line per policy; default: summaries.csv in --folder"
    )
    parser.add_argument("--budget", type=int, default=BUDGET, help="sampled tokens of a run")
    parser.add_argument("--games", type=int, default=512, help="of the test")
    given = parser.parse_args()
    home = given.folder.resolve()
    found: dict[Cell, Outcome] = {}
    for seed in given.seeds:
        started = home / f"{START}_{seed}"
        steps = {START: partial(train_start, started, seed, given.games, given.options)} | {
            arm: partial(
                train_arm,
                home / f"{arm}_{seed}",
                started / "hf",
                arm,
                seed,
                given.budget,
                given.games,
                given.options,
            )
            for arm in ARMS
        }
        for policy, step in steps.items():
            found[policy, seed] = read_or_measure(home / f"{policy}_{seed}.json", step)
            write_atomic(home / "table.md", format_table(found) + "\n")
            write_atomic(given.csv or home / "summaries.csv", as_csv(found))
    print(format_table(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
