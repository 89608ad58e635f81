"""Start-up: importing the package, ``--help``, mistakes, and the time to the first iteration.

    python benchmarks/startup.py [--repeats 5] [--parts import,commands,run]

Every figure is the wall time of a whole new process, from its start to its end, with files in the disk cache (a
first round is thrown away).  *import*: what a run imports of lit_agentrl, beside ``import lightning.pytorch,
transformers`` alone; the two alternate and the figure is the median of the paired ratios.  *commands*: what need
not wait for torch, and a value that is refused only by the object that takes it.  *run*: from the start of
``python train.py experiment=quick`` to the line of its first iteration, before which the untrained policy is
measured on val and test.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from common import (
    ROOT,
    Measured,
    Round,
    Spread,
    alternate,
    paired_ratio,
    parse,
    parser_for,
    spread,
    table,
    write_json,
)

IMPORTS = {
    "python": "pass",
    "torch": "import torch",
    "lightning + transformers": "import lightning.pytorch, transformers",
    "lit_agentrl": "import lit_agentrl.entry.jobs, lit_agentrl.entry.training, lit_agentrl.entry.evaluation",
}
COMMANDS = {  # arguments of train.py, and the exit code that they must have
    "--help": 0,
    "--cfg job": 0,
    "algo=grppo": 1,
    "filter.ratoi=0.5": 1,
    "filter.ratio=1.3": 1,  # in the end told by the filter, so everything is imported
}
PARTS = ("import", "commands", "run")


def process(arguments: list[str], code: int, number: int = 0) -> Measured:
    """Seconds of a whole Python process."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment(), capture_output=True, text=True
    )
    seconds = time.perf_counter() - started
    if done.returncode != code:
        raise RuntimeError(f"{arguments} ended with {done.returncode}: {done.stderr[-500:]}")
    return {"seconds": seconds}


def first_iteration(number: int) -> Measured:
    """Seconds until ``train.py experiment=quick`` prints the line of its first iteration."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "train.py", "experiment=quick", f"hydra.run.dir={folder}/run"]
        started = time.perf_counter()
        with subprocess.Popen(
            command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as child:
            assert child.stdout is not None
            for line in child.stdout:
                if line.startswith("iteration 1/"):
                    seconds = time.perf_counter() - started
                    child.kill()
                    return {"seconds": seconds}
    raise RuntimeError(f"{' '.join(command)} printed no first iteration")


def environment() -> dict[str, str]:
    """This checkout is measured, whatever is installed."""
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def shown(title: str, rounds: list[Round]) -> str:
    found = {side: spread(rounds, side, "seconds") for side in rounds[0]}
    return table([title, "seconds (least–greatest)"], [[side, each.text()] for side, each in found.items()])


def main() -> None:
    parser = parser_for(__file__, __doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {','.join(PARTS)}")
    options = parse(parser)
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--parts={min(unknown)} is unknown; valid: {', '.join(PARTS)}")
    result: dict[str, list[Round] | Spread] = {}
    if "import" in parts:
        sides = {name: partial(process, ["-c", code], 0) for name, code in IMPORTS.items()}
        result["import"] = rounds = alternate(sides, repeats=options.repeats)
        *_, libraries, ours = IMPORTS
        result["import_ratio"] = paired_ratio(rounds, "seconds", of=ours, to=libraries)
        print(shown("import", rounds))
        print(f"{ours} over {libraries}: {result['import_ratio'].text()}\n")
    if "commands" in parts:
        sides = {
            text: partial(process, [str(Path("train.py")), *text.split()], code)
            for text, code in COMMANDS.items()
        }
        result["commands"] = rounds = alternate(sides, repeats=options.repeats)
        print(shown("train.py", rounds), "\n")
    if "run" in parts:
        sides = {"first iteration": first_iteration}
        result["run"] = rounds = alternate(sides, repeats=options.repeats)
        print(shown("train.py experiment=quick", rounds), "\n")
    write_json(options.out, result, options)


if __name__ == "__main__":
    main()
