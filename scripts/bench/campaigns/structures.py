"""Campaign of rollout structures at an equal budget of sampled tokens, with five seeds.

    python -m scripts.bench.campaigns.structures --folder outputs/structures --csv docs/findings/structures.csv

The protocol was fixed before any run: all runs are ``algo=grpo``, and differ only in the structure.  A run ends with
the iteration in which its sampled tokens reach the budget of its environment, after about 21 iterations in Sokoban and
14 in FrozenLake: about 170 and 80 seconds of a core.  Cells run in the order of `STAGES`, and a kill loses one
iteration at most.  The first three stages are the protocol, 60 runs; ``--stages`` selects the others.  The last weights
play 512 test rooms at temperature 1, the same rooms with the same noise for all.  For each structure and environment
the table has success, and its difference from the base of equal seed: the mean over seeds, with a 95 % t interval over
the seeds.  A gain has its interval above 0; no other seeds, budgets or options are tried until a structure has one.
The base of ``replay`` has the same number of instances.  The folder stores finished work; the same command continues
from there.
"""

from __future__ import annotations

import csv
import io
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lit_agentrl.api import Result, RunError
from lit_agentrl.batch import StepBatch
from lit_agentrl.files import write_atomic
from lit_agentrl.report.statistics import compute_mean_interval
from scripts.bench.campaigns.cells import Outcome, finish_run, make_campaign_parser, read_or_measure

SEEDS = (0, 1, 2, 3, 4)
WORLDS = {  # options, and the budget of sampled tokens of a run
    "hard": ("env=sokoban env.game.lengths=uniform", 240_000),
    "frozen_lake": ("env=frozen_lake", 75_000),  # its replies and runs are half as long
    "sokoban": ("env=sokoban", 240_000),
}
BASE = "refill"
STRUCTURES = {  # options, and the base for comparison
    BASE: ("algo/structure=refill", BASE),
    "hint": ("algo/structure=hint", BASE),
    "refill, 64 instances": ("algo/structure=refill rollout.instances=64", BASE),
    "replay": ("algo/structure=replay rollout.instances=64", "refill, 64 instances"),
    "branch": ("algo/structure=branch", BASE),
    "tree": ("algo/structure=tree", BASE),
    "mcts": ("algo/structure=mcts", BASE),
    "forget": ("algo/structure=forget", BASE),
}
FIRST = (BASE, "hint", "refill, 64 instances", "replay")
STAGES = (  # the most informative first
    ("hard", FIRST[:2]),
    ("hard", FIRST),
    ("frozen_lake", tuple(STRUCTURES)),
    ("hard", tuple(STRUCTURES)),
    ("sokoban", tuple(STRUCTURES)),
)
PROTOCOL = 3  # number of stages in the protocol
Cell = tuple[str, str, int]  # environment, structure, seed


class Budget(Callback):
    """A callback that ends a run when its sampled tokens reach a budget.

    The run ends after that iteration, and a resumed run continues to count.
    """

    def __init__(self, tokens: int) -> None:
        self.tokens, self.sampled = tokens, 0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: StepBatch, batch_idx: int
    ) -> None:
        """Count all sampled tokens, including those not used for training."""
        played = [*batch.episodes, *batch.greedy_episodes]
        self.sampled += sum(episode.num_sampled for episode in played)
        trainer.should_stop = self.sampled >= self.tokens

    def state_dict(self) -> dict[str, Any]:
        return {"sampled": self.sampled}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.sampled = state_dict["sampled"]


def run_to_budget(folder: Path, options: Sequence[str], budget: int) -> Result:
    """Train until the sampled tokens reach the budget; only the last weights are measured, later."""
    with tempfile.TemporaryDirectory() as home:
        conf = Path(home) / "callbacks"
        conf.mkdir()
        (conf / "budget.yaml").write_text(
            "defaults: [default, _self_]\n"
            f"budget: {{_target_: scripts.bench.campaigns.structures.Budget, tokens: {budget}}}\n"
        )
        fixed = [
            "callbacks=budget",
            "trainer.max_epochs=100000",
            "test.episodes=0",
            "val.every=1000",
            "val.episodes=16",
        ]
        return finish_run(folder, [*fixed, *options], config_dir=home)


def measure(folder: Path, options: Sequence[str], budget: int, rooms: int) -> Outcome:
    """Run to the end, and return the ``solved`` rooms and sampled ``tokens``."""
    run = run_to_budget(folder, ["algo=grpo", *options], budget)
    (scores,) = run.evaluate(episodes=rooms, temperature=1.0, seed=0, trust_run=True).records
    return {"solved": scores["solved"], "tokens": run.summary["action_tokens"]}


def compute_success(outcome: Outcome) -> float:
    """Compute the share of solved test rooms."""
    return fmean(map(float, outcome["solved"]))


def format_table(found: Mapping[Cell, Outcome]) -> str:
    """Format success by environment and structure, and the difference from the base.

    The difference is over the seeds that both have.
    """
    lines = ["| world | structure | seeds | tokens | success | against | difference |", "|---" * 7 + "|"]
    for world in WORLDS:
        for name, (_, base) in STRUCTURES.items():
            own = {seed: found[world, name, seed] for seed in SEEDS if (world, name, seed) in found}
            if not own:
                continue
            gaps = [
                compute_success(each) - compute_success(found[world, base, seed])
                for seed, each in own.items()
                if (world, base, seed) in found
            ]
            difference = "–"
            if base != name and len(gaps) > 1:
                gap = compute_mean_interval(gaps)
                difference = f"{gap.mean:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]"
            mean, tokens = (
                fmean(map(of, own.values())) for of in (compute_success, lambda each: each["tokens"])
            )
            lines.append(
                f"| {world} | {name} | {len(own)} | {tokens:.0f} | {mean:.3f} | {base} | {difference} |"
            )
    return "\n".join(lines)


def as_csv(found: Mapping[Cell, Outcome]) -> str:
    """Format a CSV line for each run."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["world", "structure", "seed", "tokens", "rooms", "success"])
    for (world, name, seed), each in found.items():
        rows.writerow(
            [world, name, seed, int(each["tokens"]), len(each["solved"]), round(compute_success(each), 6)]
        )
    return text.getvalue()


def list_cells(
    worlds: Sequence[str], structures: Sequence[str], seeds: Sequence[int], stages: int = len(STAGES)
) -> list[Cell]:
    """List the cells in order: all structures of a seed, then the next seed.

    An interruption then leaves whole pairs.
    """
    wanted = [
        (world, name, seed)
        for world, names in STAGES[:stages]
        for seed in seeds
        for name in names
        if world in worlds and name in structures
    ]
    return list(dict.fromkeys(wanted))


def main() -> int:
    """Run all unfinished cells, and write the table after each."""
    parser = make_campaign_parser("Structures at an equal budget of sampled tokens.", SEEDS)
    parser.add_argument(
        "--csv", type=Path, help="file for a line per run; default: structures.csv in --folder"
    )
    parser.add_argument("--stages", type=int, choices=range(1, len(STAGES) + 1), default=PROTOCOL)
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=list(WORLDS))
    parser.add_argument("--structures", nargs="+", choices=STRUCTURES, default=list(STRUCTURES))
    parser.add_argument("--budget", type=int, help="sampled tokens of a run; by default those of its world")
    parser.add_argument("--rooms", type=int, default=512, help="of the test")
    given = parser.parse_args()
    found: dict[Cell, Outcome] = {}
    failed = 0
    for world, name, seed in list_cells(given.worlds, given.structures, given.seeds, given.stages):
        folder = given.folder.resolve() / f"{world}_{name.replace(', ', '_').replace(' ', '_')}_{seed}"
        options, budget = WORLDS[world]
        fixed = [*options.split(), *STRUCTURES[name][0].split(), f"seed={seed}", *given.options]
        run = partial(measure, folder, fixed, given.budget or budget, given.rooms)
        try:
            found[world, name, seed] = read_or_measure(folder.with_suffix(".json"), run)
        except RunError as error:  # other runs may succeed, and the command can be repeated
            failed += 1
            print(f"{folder.name} failed: {error}", file=sys.stderr)
            continue
        write_atomic(given.folder / "table.md", format_table(found) + "\n")
        write_atomic(given.csv or given.folder / "structures.csv", as_csv(found))
    print(format_table(found))
    return min(failed, 1)


if __name__ == "__main__":
    raise SystemExit(main())
