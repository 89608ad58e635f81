"""A campaign of kills: runs die at drawn instants, are resumed, and must end as a run that nobody killed.

    python -m tests.integration.kills --folder /tmp/kills [--setting "checkpoints by the thread"]

Each kill follows from the seed and its own number.  The folder keeps what was done, which is not done again: a campaign
may be ended and started anew, and several processes may share its folder.  Runs that do not end equal stay there.

Runs of one process are forked from this one, which has imported the libraries.  Of every fourth the resume is a program
of its own, as all of runs of several processes are.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import shutil
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lit_agentrl.runs.run_folder import find_owner
from tests.engines.server import serving
from tests.integration.conftest import assert_equal_runs, checkpoint_of, command
from tests.integration.killed_run import Plan, Reference, Running, contents, leftovers
from tests.integration.ledger import Ledger
from tests.integration.small_runs import CORES, FURTHER, OF_KIND, SETTINGS, SHARDED, STRUCTURES, THREAD, small
from tests.integration.taught import taught

# "twice": its resume is killed too; "damaged": a bit of the last checkpoint flips after the kill; "driver": the first
# process alone, after which none of those that it has started may stay; "playing": in the middle of a rollout
MODES = (
    "at random", "log", "checkpoint", "export", "second process", "at random", "twice", "log", "checkpoint",
    "one process",
)  # fmt: skip
KILLS = [
    *((setting, mode) for mode in MODES for setting in SETTINGS),
    *((SHARDED, mode) for mode in ("checkpoint", "damaged", "checkpoint", "at random")),
    *((setting, "damaged") for setting in list(SETTINGS)[1::2]),
    *(
        (setting, mode)
        for mode in ("driver", "checkpoint", "driver", "at random")
        for setting in list(FURTHER)[1:]
    ),
    *((setting, mode) for mode in ("playing", "at random", "playing") for setting in STRUCTURES),
    *((CORES, mode) for mode in (*MODES[:-1], "driver") * 10),
    *((THREAD, mode) for mode in ("checkpoint", "export", "checkpoint", "at random", "checkpoint") * 20),
]
WRITES = {"log": " append ", "checkpoint": " checkpoints", "export": " hf"}
TRIES = 8


def numbers_of(setting: str) -> list[int]:
    """Numbers of the kills of a setting."""
    return [number for number, (name, _) in enumerate(KILLS) if name == setting]


class Campaign:
    """Kills by their number, in a folder that keeps what was done."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._ledger = Ledger(folder)
        self._urls: dict[str, str] = {}
        self.folder, self.seed = self._ledger.folder, seed

    def run(self, numbers: Iterable[int]) -> None:
        """Do those that nobody has done or is doing."""
        self._ledger.run(numbers, self._kill)

    def results(self) -> list[dict[str, Any]]:
        """A row for each kill that was done."""
        return self._ledger.results()

    def _kill(self, number: int, folder: Path) -> dict[str, Any]:
        if not _is_served(setting := KILLS[number][0]):
            return self._killed(number, folder)
        with serving(partial(taught, lessons=4)) as url:  # it learns as long as a run lasts
            self._urls[setting] = url
            return self._killed(number, folder)

    def _killed(self, number: int, folder: Path) -> dict[str, Any]:
        setting, mode = KILLS[number]
        reference = self._reference(setting)
        draws = random.Random(f"{self.seed}:{number}")
        fell = None
        for _ in range(TRIES):  # one that had ended before its instant came does not count
            shutil.rmtree(folder, ignore_errors=True)
            try:
                fell = fire(self._command(setting, folder), folder, mode, reference, draws, _forks(setting))
                if fell is not None:
                    break
            except AssertionError as error:
                return {"number": number, "setting": setting, "mode": mode, "fell": "", "problem": str(error)}
        problem: str | None = "no instant came before the end of the run"
        if fell is not None:
            if mode == "twice" and _is_begun(folder):
                again = fire(
                    command(f"resume={folder}"), folder, "at random", reference, draws, _forks(setting), 0.3
                )
                fell += f"; its resume: {again or 'had ended'}"
            problem = self._continued(setting, folder, fork=_forks(setting) and number % 4 > 0) or difference(
                reference.folder, folder
            )
        if problem is None:
            shutil.rmtree(folder)
        return {"number": number, "setting": setting, "mode": mode, "fell": fell, "problem": problem}

    def _reference(self, setting: str) -> Reference:
        """The run that nobody kills, played by who comes first."""
        name = "".join(each if each.isalnum() else "_" for each in setting)
        folder = self.folder / f"reference_{name}"
        with self._ledger.claimed(folder.name, wait=True):
            record = self.folder / f"{folder.name}.json"
            if not record.exists():
                shutil.rmtree(folder, ignore_errors=True)
                record.write_text(
                    json.dumps(
                        Reference.play(
                            self._command(setting, folder), folder, fork=_forks(setting)
                        ).to_plain()
                    )
                )
            return Reference.from_plain(folder, json.loads(record.read_text()))

    def _command(self, setting: str, folder: Path) -> list[str]:
        options = OF_KIND[setting].format(url=self._urls.get(setting))
        return command(*small(options), f"hydra.run.dir={folder}")

    def _continued(self, setting: str, folder: Path, *, fork: bool) -> str | None:
        """Run to the end what was killed, or from its start if it had not begun; what is wrong."""
        trust = ["trust_run=true"] * _is_served(setting)  # whose address the folder holds
        begun = command(f"resume={folder}", *trust)
        arguments = begun if _is_begun(folder) else self._command(setting, folder)
        running = Running(arguments, folder, fork=fork)
        running.dies()
        return f"not continued: {running.printed()[-300:]}" if running.code else None


def fire(
    arguments: list[str],
    folder: Path,
    mode: str,
    reference: Reference,
    draws: random.Random,
    fork: bool,
    share: float = 1.0,
) -> str | None:
    """Start a run and kill it; where the kill fell, in words, or None if the run had ended before.

    An instant is drawn from that share of its life.

    Raises:
        AssertionError: it is not ended, or tells nothing, where one of its processes is killed.
    """
    if mode in WRITES or mode == "playing":
        is_write = mode in WRITES
        plan = Plan.drawn(reference, WRITES[mode], draws) if is_write else Plan.playing(reference, draws)
        running = Running(arguments, folder, fork=fork, plan=plan)
        if not running.dies():
            return None
        return f"{plan.event}, {plan.how}; {_state(folder)}"
    running = Running(arguments, folder, fork=fork)
    life_s = (reference.ended_s - reference.begun_s) * share
    if not running.reaches(reference.begun_s + draws.uniform(0.0, life_s)):
        return None
    if mode == "second process":
        running.stop()
        if find_owner(folder) is None:  # it had ended, or its processes are being started
            running.kill()
            return None
        _require_refused(folder)
    if mode in ("one process", "driver"):
        whom = running.kill_one(None if mode == "driver" else draws)
        running.dies()
        return f"{whom} alone; {_state(folder)}"
    running.kill()
    how = "all processes"
    if mode == "second process":
        how = "beside a second process, which was refused"
    if mode == "damaged":
        if not (folder / "checkpoints" / "last.ckpt.prev").exists():
            return None
        how = f"then a bit of {_flip(folder / 'checkpoints' / 'last.ckpt', draws)}"
    return f"{how}; {_state(folder)}"


def _flip(checkpoint: Path, draws: random.Random) -> str:
    """Flip a bit of a checkpoint, or of a file of one that is a folder; which file."""
    file = draws.choice(sorted(checkpoint.iterdir())) if checkpoint.is_dir() else checkpoint
    data = bytearray(file.read_bytes())
    data[draws.randrange(len(data))] ^= 1 << draws.randrange(8)
    file.write_bytes(data)
    return file.name


def _require_refused(folder: Path) -> None:
    """A second process is refused the folder of one that is alive, and changes nothing in it."""
    before = contents(folder)
    second = Running(command(f"resume={folder}"), folder.with_name(folder.name + "_second"), fork=True)
    second.dies()
    assert second.code != 0 and "in use by process" in second.printed(), "a second process was let in"
    assert contents(folder) == before, "a second process changed the folder"


def _state(folder: Path) -> str:
    """What a kill left."""
    log = folder / "metrics.csv"
    rows = f"{max(0, log.read_bytes().count(10) - 1)} rows" if log.exists() else "no row"
    return ", ".join([rows, *leftovers(folder)])


def _is_begun(folder: Path) -> bool:
    return (folder / ".hydra" / "overrides.yaml").exists()


def _forks(setting: str) -> bool:
    """Whether a run is one process that this one, which has no threads, may fork."""
    return "devices=2" not in OF_KIND[setting] and not _is_served(setting)


def _is_served(setting: str) -> bool:
    return "{url}" in OF_KIND[setting]


def difference(reference: Path, folder: Path) -> str | None:
    """What of a run is not as in the reference, bit for bit."""
    try:
        assert_equal_runs(reference, folder)
    except AssertionError as error:
        return f"weights or metrics.csv: {str(error)[:300]}"
    for name in ("last.ckpt", "best.ckpt"):
        one, two = (checkpoint_of(each, name) for each in (reference, folder))
        for part in ("state_dict", "optimizer_states"):
            if not _same(one.get(part), two.get(part)):  # best.ckpt holds no moments
                return f"{part} of {name}"
        if not _same(*(each["callbacks"].get("RolloutCallback") for each in (one, two))):  # of the structure
            return f"what rollouts keep in {name}"
    for split in ("transcripts/train.jsonl", "transcripts/val.jsonl", "hf/model.safetensors"):
        if (reference / split).read_bytes() != (folder / split).read_bytes():
            return split
    if _notes(reference) != _notes(folder):
        return "what the policy has learnt, as text"
    if (left := leftovers(folder)) or (folder / ".run.lock").exists():
        return f"left behind: {left}"
    one, two = (json.loads((each / "summary.json").read_text())["games"] for each in (reference, folder))
    return None if one == two else "games of summary.json"


def _notes(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.glob("experience/*.txt")}


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(_same(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(_same, one, two))
    return bool(one == two)


def table(rows: list[dict[str, Any]]) -> str:
    """Of each setting: kills, how many ended equal, and what was killed."""
    modes = list(dict.fromkeys(mode for _, mode in KILLS))
    lines = [f"| setting | kills | equal | {' | '.join(modes)} |", "|---" * (3 + len(modes)) + "|"]
    for setting in [*OF_KIND, "all"]:
        found = [row for row in rows if setting in (row["setting"], "all")]
        counts = collections.Counter(row["mode"] for row in found)
        equal = sum(row["problem"] is None for row in found)
        fields = [setting, len(found), equal, *(counts[mode] or "" for mode in modes)]
        lines.append(f"| {' | '.join(map(str, fields))} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill runs, resume them, compare them.")
    parser.add_argument(
        "--folder", type=Path, required=True, help="keeps what was done; several processes may share it"
    )
    parser.add_argument("--seed", type=int, default=0)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--kills", type=int, nargs="+", default=range(len(KILLS)), help="their numbers")
    which.add_argument("--setting", choices=list(OF_KIND), help="all kills of one setting")
    given = parser.parse_args()
    campaign = Campaign(given.folder, given.seed)
    campaign.run(given.kills if given.setting is None else numbers_of(given.setting))
    rows = campaign.results()
    for row in rows:
        print(
            f"{row['number']:3d} | {row['setting']} | {row['mode']} | {row['fell']} | {row['problem'] or 'equal'}"
        )
    print(table(rows))


if __name__ == "__main__":
    main()
