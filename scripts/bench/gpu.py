"""All tests, benchmarks and runs that need a GPU, in slices by value.

    make gpu                               # at most 360 s; a second call runs what failed or is missing
    make gpu WHEELS=wheels                 # installs these wheels to outputs/gpu/site first; make gpu-wheels packs them
    make gpu ARGS=--list                   # list the slices
    make gpu ARGS=--cpu-smoke              # the same code on tiny shapes, on a CPU
    python -m scripts.bench.gpu --only decode trl --again --budget-s 200

Slices run in order of their value, and an interrupted call can be continued.  Any Python that has the packages will do,
and no network is needed.  Results are written to ``outputs/gpu/results.json`` after each slice, and copied with the
logs to the folder that the variable OUT names.  Slices that cannot run here, or that the budget leaves no time for, are
listed with the reason.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BUDGET_S = 360
LIMIT_S, SMOKE_LIMIT_S = 120, 400  # of a slice
TAIL = 20  # lines of a log that results.json has
MODEL = "LIT_AGENTRL_MODEL"  # names the folder of a pretrained model
BASE = (
    "hydra",
    "omegaconf",
    "gymnasium",
    "jsonschema",
    "rich",
    "lightning",
    "transformers",
    "torchmetrics",
    "psutil",
)
SHAPE = "24,896,14,2,4864,151936"  # shape of Qwen2.5-0.5B
RANDOM = "model._target_=scripts.bench.trl_games.policy +model.dtype=bfloat16 +model.model="
RUN = (
    "train.py algo=grpo env=sokoban val.episodes=8 test.episodes=0 trainer.max_epochs=3 rollout.max_reply_tokens=16 "
    "env.max_turns=3 ~callbacks.last trainer.accelerator=gpu hydra.run.dir=OUT/run "
)
TINY = (
    "train.py experiment=quick env=bandit trainer.max_epochs=1 trainer.accelerator=cpu val.episodes=2 test.episodes=0 "
    "hydra.run.dir=OUT/run "
)
TESTS = (
    "tests/engines/test_window.py tests/engines/test_prefill.py tests/models/test_packing.py "
    "tests/models/test_token_scores.py tests/update/test_forms.py"
)
TIMES = {name: f"run.time/{name}" for name in ("rollout", "update")}


@dataclass(frozen=True)
class Slice:
    """A test, benchmark or run that is done separately.

    Attributes:
        what: description of what it shows.
        seconds: about how long it takes; it is not started if less of the budget is left.
        command: arguments of Python on a GPU; ``OUT`` stands for the slice's folder, ``MODEL`` for a local model.
        smoke: the same for a CPU.
        shown: names and places of the figures that its line shows.
        needs: packages that it imports in addition to `BASE`.
        continues: whether it keeps its folder, in which its command goes on where it was cut off.
    """

    what: str
    seconds: int
    command: str
    smoke: str
    shown: Mapping[str, str]
    needs: tuple[str, ...] = ()
    continues: bool = False


def _make_update_slice(form: str, value: str) -> Slice:
    script = "-m scripts.bench.update_speed --out OUT/figures.json update.packing=" + value
    return Slice(
        f"the update beside bare passes, rows {form}",
        45,
        f"{script} --model 0.5b-random --precision bf16-mixed --episodes 64 --reply-tokens 16 --repeats 2 "
        "--budget 8192",
        f"{script} --model tiny-random --episodes 8 --repeats 1",
        {"seconds": "seconds.ours.median", "share of bare speed": "ratio.median"},
    )


SLICES: Mapping[str, Slice] = {
    "decode": Slice(
        "a decode step: milliseconds, kernels, waits, share of the memory limit",
        30,
        "-m scripts.bench.decode_step --model 0.5b-random --dtype bfloat16 --rows 128 --out OUT/figures.json",
        "-m scripts.bench.decode_step --model tiny-random --rows 4 --context 160 --repeats 1 --out OUT/figures.json",
        {
            f"{name} (window {window})": f"windows.{window}.{place}"
            for window in ("0", "8", "8 copy")
            for name, place in {
                "ms": "ms.median",
                "kernels": "kernels",
                "operators a layer": "operators_a_layer",
                "share": "share",
            }.items()
        },
    ),
    "rollouts": Slice(
        "rollouts beside generate, generate_batch and, where installed, vLLM, at the shape of 0.5B",
        60,
        "-m scripts.bench.rollout_speed --device cuda --model 0.5b-random --dtype bfloat16 --reply-tokens 16 --turns 5 "
        "--repeats 2 --peers generate generate_batch vllm --out OUT/figures.json",
        "-m scripts.bench.rollout_speed --model tiny-random --episodes 2 --reply-tokens 4 --turns 2 --repeats 1 "
        "--peers generate generate_batch --out OUT/figures.json",
        {
            "window": "window",
            "tokens/s": "rates.ours.median",
            "over generate": "ratio.generate.median",
            "over generate_batch": "ratio.generate_batch.median",
            "over vLLM": "ratio.vllm.median",
        },
    ),
    "trl": Slice(
        "rollouts, update and iterations beside TRL, at the shape of 0.5B",
        60,
        "-m scripts.bench.vs_trl_multi_turn --device cuda --model 0.5b-random --precision bfloat16-true "
        "--warmups 1 --repeats 2 --out OUT/figures.json",
        "-m scripts.bench.vs_trl_multi_turn --model tiny-random --turns 2 --prompts 2 --members 2 --trl-micro-batch 4 "
        "--warmups 0 --repeats 1 --out OUT/figures.json",
        {f"{part} over TRL": f"ratios.ours.{part}.median" for part in ("rollout", "update", "whole")},
        ("trl", "datasets"),
    ),
    "tests": Slice(
        "graphs of windows, packed prompts, packed kernels and shared rows on CUDA equal what is computed without",
        40,
        f"-m pytest -q -m gpu {TESTS}",
        f"-m pytest -q -m gpu --collect-only {TESTS}",
        {},
        ("pytest", "hypothesis"),
    ),
    "update-packed": _make_update_slice("packed", "true"),
    "real": Slice(
        f"a pretrained model imitates best play, then GRPO; {MODEL} names its folder",
        90,
        "-m scripts.real --games reverse_text --model MODEL --folder OUT",
        "-m scripts.real --games reverse_text --smoke --folder OUT",
        {
            f"{policy} {name}": f"reverse_text.{policy}, best T.{column}"
            for policy, column, name in (
                ("start", "success", "success"),
                ("imitation", "success", "success"),
                ("RL", "success", "success"),
                ("RL", "iteration_s", "s/iteration"),
            )
        },
        continues=True,
    ),
    "checkpoints": Slice(
        "iterations of 128 episodes x 5 turns x 96 tokens at the shape of SmolLM2-135M, and the share of checkpoints",
        75,
        "-m scripts.bench.checkpoint_cost --device cuda --model 135m-random --reply-tokens 96 --repeats 4 "
        "--out OUT/figures.json",
        "-m scripts.bench.checkpoint_cost --model tiny-random --prompts 2 --members 2 --turns 1 --out OUT/figures.json",
        {
            "s held": "held_s",
            "s an iteration": "iteration_s",
            "before": "before",
            "share": "share",
            "every": "every",
        },
    ),
    "resume": Slice(
        "numbers that differ after a kill and its resume, and between two equal runs",
        60,
        "-m scripts.bench.resume --device cuda --out OUT/figures.json",
        "-m scripts.bench.resume --iterations 3 --out OUT/figures.json",
        {"differ after a kill": "differ_resumed", "between equal runs": "differ_repeated"},
    ),
    "update-auto": _make_update_slice("as by default", "auto"),
    "update-tree": Slice(
        "an update of a tree, 8 turns by 8 episodes, at the shape of 0.5B: shared rows beside padded ones",
        40,
        "-m scripts.bench.update_step --model 0.5b-random --dtype mixed --out OUT/figures.json",
        "-m scripts.bench.update_step --turns 3 --members 3 --repeats 1 --out OUT/figures.json",
        {
            "over padded": "ratio.padded.median",
            "over before": "ratio.before.median",
            "operators a layer": "counts.shared.operators",
            "waits": "counts.shared.waits",
        },
    ),
    "lora": Slice(
        "adapters on the shape of 0.5B train and are exported",
        40,
        f"{RUN} {RANDOM}0.5b-random model/lora=default",
        f"{TINY} {RANDOM}tiny-random model/lora=default",
        TIMES,
        ("peft",),
    ),
    "fsdp": Slice(
        "weights cut up by FSDP2 train",
        40,
        f"{RUN} {RANDOM}0.5b-random strategy=fsdp",
        f"{TINY} strategy=fsdp",
        TIMES,
    ),
    "memory": Slice(
        "the memory planner beside the allocator",
        20,
        f"scripts/plan_memory.py --shape {SHAPE} --precision mixed --tokens 4096 --slots 64 --context 1024 "
        "--measure",
        "scripts/plan_memory.py --model nano --tokens 256 --slots 4 --context 256 --measure",
        {},
    ),
    "vllm": Slice(
        "iterations with vLLM in the process, and its log-probs are those of the trainer",
        60,
        f"{RUN} engine=vllm engine.max_sync_gap=0.5 algo/correction=truncated",
        f"{TINY} engine=vllm",
        TIMES,
        ("vllm",),
    ),
}


def find_reason_against(chosen: Slice, *, is_smoke: bool, model: str | None) -> str | None:
    """Return the reason why a slice cannot run here, or None."""
    if missing := [name for name in chosen.needs if importlib.util.find_spec(name) is None]:
        return f"no {', '.join(missing)} in this Python"
    if is_smoke:
        return None
    if "MODEL" in chosen.command and not model:
        return f"no model: --model FOLDER or {MODEL}"
    import torch

    return None if torch.cuda.is_available() else "no CUDA device"


def install_wheels(wheels: Path, site: Path) -> None:
    """Install all wheels of a folder to another, without resolving or downloading."""
    files = sorted(map(str, wheels.glob("*.whl")))
    if not files:
        raise SystemExit(f"error: --wheels {wheels} has no wheels; make gpu-wheels packs them")
    options = ["--no-index", "--find-links", str(wheels), "--no-deps", "--upgrade", "--no-compile", "--quiet"]
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", *options]
    subprocess.run([*pip, "--target", str(site), *files], check=True)


def make_environment(site: Path) -> dict[str, str]:
    """Return environment variables with which a slice imports this checkout and the wheels."""
    places = [str(ROOT / "src"), str(ROOT), *([str(site)] if site.exists() else [])]
    places += [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places), "PYTHONUNBUFFERED": "1"}


def run_slice(text: str, out: Path, limit: float, environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """Run a slice for at most ``limit`` seconds; return how it ended, and its command."""
    command = [sys.executable, *(part.replace("OUT", str(out)) for part in text.split())]
    with (out / "log.txt").open("w") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=log, stderr=log, env=dict(environment), start_new_session=True
        )
        try:
            code = process.wait(timeout=limit)
            return ("passed" if code == 0 else f"failed ({code})"), command
        except subprocess.TimeoutExpired:
            return f"cut off after {limit:.0f} s", command
        finally:  # ends the processes that the slice started too, even after an interruption
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def read_figures(out: Path) -> dict[str, Any] | None:
    """Return a slice's own figures, or the last iteration of its run.

    There are none if their file is cut off.
    """
    with suppress(ValueError, TypeError):  # a limit may end a slice while it writes
        if (own := out / "figures.json").exists():
            return dict(json.loads(own.read_text()))
        if (metrics := out / "run" / "metrics.csv").exists():
            lines = metrics.read_text().splitlines(keepends=True)
            rows = list(csv.DictReader(line for line in lines if line.endswith("\n")))
            return (
                {"run": {name: float(value) for name, value in rows[-1].items() if value}} if rows else None
            )
    return None


def read_tail(path: Path) -> list[str]:
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return [line for line in lines if line.strip()][-TAIL:]


def choose_line(tail: Sequence[str]) -> str:
    """Return the first error in the tail of a log, or its last line."""
    errors = [line for line in tail if "error:" in line.lower()]
    return (errors or [*tail[-1:], ""])[0].strip()[:120]


def show_figures(chosen: Slice, figures: Mapping[str, Any] | None) -> str:
    """Format the figures of a slice's line."""
    parts = []
    for name, place in chosen.shown.items():
        value: Any = figures
        for key in place.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, int | float):
            parts.append(f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}")
    return ", ".join(parts)


def make_table(results: Mapping[str, Any]) -> str:
    """Format a table with a row for each slice."""

    from scripts.bench.common import format_table

    rows = [
        [
            name,
            f"{found['seconds']:.0f}" if "seconds" in found else "–",
            found["ended"],
            found.get("shown", ""),
        ]
        for name, found in results.items()
    ]
    return format_table(["slice", "seconds", "ended", "figures"], rows)


class Record:
    """The results of all slices so far, on disk after each of them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "results.json"
        self.slices: dict[str, Any] = {}
        # the file does not exist yet, or was cut off
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            self.slices = json.loads(self.path.read_text())["slices"]

    def write(self, name: str, **found: Any) -> None:

        from scripts.bench.common import describe_machine

        self.slices[name] = found
        ordered = {each: self.slices[each] for each in SLICES if each in self.slices}
        text = json.dumps({"machine": describe_machine(), "slices": ordered}, indent=2) + "\n"
        self.path.write_text(text)
        if out := os.environ.get("OUT"):
            (Path(out) / "results.json").write_text(text)
            if (log := Path(found.get("log", "-"))).exists() and found["ended"] != "interrupted":
                with (Path(out) / "logs.txt").open("a") as logs:
                    logs.write(f"==== {name}: {found['ended']}\n{log.read_text(errors='replace')}\n")


def run_all(options: argparse.Namespace, folder: Path, site: Path) -> Record:
    """Run the slices that the budget has time for; print a line after each."""
    record, environment = Record(folder), make_environment(site)
    began = time.monotonic()
    for name in options.only:
        chosen = SLICES[name]
        if record.slices.get(name, {}).get("ended") == "passed" and not options.again:
            print(f"{name}: passed before", flush=True)
            continue
        left = options.budget_s - (time.monotonic() - began)
        reason = find_reason_against(chosen, is_smoke=options.cpu_smoke, model=options.model)
        if not reason and left < chosen.seconds:
            reason = f"needs about {chosen.seconds} s, and {max(left, 0):.0f} s are left of the budget"
        if reason:
            record.write(name, ended=f"skipped: {reason}")
            print(f"{name}: skipped: {reason}", flush=True)
            continue
        out = folder / name / ("run" if chosen.continues else time.strftime("%Y-%m-%d_%H-%M-%S"))
        if options.again or not chosen.continues:
            shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True, exist_ok=True)
        log = str(out / "log.txt")
        text = chosen.smoke if options.cpu_smoke else chosen.command.replace("MODEL", str(options.model))
        record.write(name, ended="interrupted", log=log)  # unless the end is written
        started = time.monotonic()
        ended, command = run_slice(
            text, out, min(left, SMOKE_LIMIT_S if options.cpu_smoke else LIMIT_S), environment
        )
        figures = read_figures(out)
        found = {
            "ended": ended, "seconds": time.monotonic() - started, "shown": show_figures(chosen, figures),
            "command": " ".join(command), "log": log, "figures": figures,
        }  # fmt: skip
        if not found["shown"] or ended != "passed":
            found["tail"] = read_tail(out / "log.txt")
            found["shown"] = found["shown"] or choose_line(found["tail"])
        record.write(name, **found)
        print(f"{name}: {ended}, {found['seconds']:.0f} s: {found['shown']}", flush=True)
    return record


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="print the slices, and run none")
    parser.add_argument("--cpu-smoke", action="store_true", help="tiny shapes, on a CPU")
    parser.add_argument("--again", action="store_true", help="also what has passed before")
    parser.add_argument("--only", nargs="+", choices=SLICES, default=list(SLICES), metavar="SLICE")
    parser.add_argument(
        "--budget-s", type=float, help=f"seconds in all; default {BUDGET_S}, a smoke has 1800"
    )
    parser.add_argument("--wheels", type=Path, help="folder of wheels to install first")
    parser.add_argument("--model", default=os.environ.get(MODEL), help="folder of a pretrained model")
    parser.add_argument(
        "--folder", type=Path, help="of the results; default outputs/gpu or outputs/gpu-smoke"
    )
    options = parser.parse_args()
    options.budget_s = options.budget_s or (1800 if options.cpu_smoke else BUDGET_S)
    folder = options.folder or ROOT / "outputs" / ("gpu-smoke" if options.cpu_smoke else "gpu")
    site = ROOT / "outputs" / "gpu" / "site"
    if options.wheels:
        install_wheels(options.wheels, site)
    sys.path[:0] = [str(ROOT / "src"), *([str(site)] if site.exists() else [])]
    importlib.invalidate_caches()
    if missing := [name for name in ("torch", *BASE) if importlib.util.find_spec(name) is None]:
        sys.exit(f"error: {sys.executable} lacks {', '.join(missing)}; give WHEELS=folder, see docs/gpu.md")
    if options.list:
        for name, each in SLICES.items():
            reason = find_reason_against(each, is_smoke=options.cpu_smoke, model=options.model)
            print(f"{name:14} {each.seconds:3} s  {reason or 'can run':42} {each.what}")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    record = run_all(options, folder.resolve(), site)
    print(make_table({name: record.slices[name] for name in options.only}))
    print(f"written to {record.path}")
    if any(found["ended"].startswith(("failed", "cut off")) for found in record.slices.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
