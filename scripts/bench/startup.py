"""Start-up times of imports, ``--help``, mistaken commands and the first iteration.

    python -m scripts.bench.startup [--repeats 5] [--parts import,commands,run] [--job 'experiment=quick']

Every figure is the wall time of a whole new process, from its start to its end, with files in the disk cache (a first
round is discarded).  *import*: the imports of lit_agentrl in a run, compared with
``import lightning.pytorch, transformers`` alone, and with the same imports while the garbage collector is on (a run
turns it off for its imports); they alternate, and the figures are medians of paired ratios.  *commands*: commands that
need not wait for torch, and a value that is only refused by the object that receives it.  *run*: time to the line of
the first iteration of ``python train.py JOB``, before which the untrained policy is measured on val and test.  The
figures are seconds from the start of the process, seconds from the line after the imports, and the CPU part (user and
system) of the latter, which depends less on other programs on the machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import psutil

from scripts.bench.common import (
    ROOT,
    Measured,
    Round,
    Summary,
    alternate,
    compute_ratio,
    format_table,
    make_parser,
    parse,
    summarise,
    write_json,
)

WHOLE = "import lit_agentrl.runs.jobs, lit_agentrl.runs.training, lit_agentrl.evaluate.evaluation"
IMPORTS = {
    "python": "pass",
    "torch": "import torch",
    "lightning + transformers": "import lightning.pytorch, transformers",
    "lit_agentrl, the collector on": WHOLE,
    "lit_agentrl": f"from lit_agentrl.config import signatures; signatures.load_libraries(); {WHOLE}",  # as a run does
}
COMMANDS = {  # arguments of train.py, and the exit code that they must have
    "--help": 0,
    "--cfg job": 0,
    "algo=grppo": 1,
    "filter.ratoi=0.5": 1,
    "filter.ratio=1.3": 1,  # only the filter itself refuses it, so everything is imported
}
PARTS = ("import", "commands", "run")
IMPORTED = "building the policy"  # message of a run when its libraries are imported


def measure_process(arguments: list[str], code: int, number: int = 0) -> Measured:
    """Measure the seconds of a whole Python process."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=make_environment(), capture_output=True, text=True
    )
    seconds = time.perf_counter() - started
    if done.returncode != code:
        raise RuntimeError(f"{arguments} ended with {done.returncode}: {done.stderr[-500:]}")
    return {"seconds": seconds}


def measure_first_iteration(job: list[str], number: int) -> Measured:
    """Measure the seconds until ``train.py`` prints the line of its first iteration.

    The measurements are the total, the seconds after the imports, and the CPU seconds after the imports.

    Args:
        job: options of ``train.py``.
        number: number of the repetition.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-u", "train.py", *job, f"hydra.run.dir={folder}/run"]
        started, imported, computed = time.perf_counter(), 0.0, 0.0
        with subprocess.Popen(
            command,
            cwd=ROOT,
            env=make_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as child:
            assert child.stdout is not None
            for line in child.stdout:
                now = time.perf_counter()
                if line.startswith(IMPORTED):
                    imported, computed = now, read_cpu_seconds(child.pid)
                if line.startswith("iteration 1/"):
                    found = {
                        "seconds": now - started, "after_imports": now - imported,
                        "computed": read_cpu_seconds(child.pid) - computed,
                    }  # fmt: skip
                    child.kill()
                    return found
    raise RuntimeError(f"{' '.join(command)} printed no first iteration")


def read_cpu_seconds(process: int) -> float:
    """Read the user and system time of a running process."""
    times = psutil.Process(process).cpu_times()
    return times.user + times.system


def make_environment() -> dict[str, str]:
    """Return an environment in which this checkout is imported, even if another is installed."""
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def format_rounds(title: str, rounds: list[Round]) -> str:
    names = list(next(iter(rounds[0].values())))
    rows = [[side, *(summarise(rounds, side, name).show() for name in names)] for side in rounds[0]]
    return format_table([title, *(f"{name.replace('_', ' ')} (least–greatest)" for name in names)], rows)


def main() -> None:
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {','.join(PARTS)}")
    parser.add_argument("--job", default="experiment=quick", help="options of the run")
    options = parse(parser)
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--parts={min(unknown)} is unknown; valid: {', '.join(PARTS)}")
    result: dict[str, list[Round] | Summary] = {}
    if "import" in parts:
        sides = {name: partial(measure_process, ["-c", code], 0) for name, code in IMPORTS.items()}
        result["import"] = rounds = alternate(sides, repeats=options.repeats)
        *_, libraries, plain, ours = IMPORTS
        print(format_rounds("import", rounds))
        for other in (libraries, plain):
            result[f"over {other}"] = ratio = compute_ratio(rounds, "seconds", of=ours, to=other)
            print(f"{ours} over {other}: {ratio.show()}")
    if "commands" in parts:
        sides = {
            text: partial(measure_process, [str(Path("train.py")), *text.split()], code)
            for text, code in COMMANDS.items()
        }
        result["commands"] = rounds = alternate(sides, repeats=options.repeats)
        print(format_rounds("train.py", rounds), "\n")
    if "run" in parts:
        sides = {options.job: partial(measure_first_iteration, options.job.split())}
        result["run"] = rounds = alternate(sides, repeats=options.repeats)
        print(format_rounds("train.py", rounds))
    write_json(options.out, result, options)


if __name__ == "__main__":
    main()
