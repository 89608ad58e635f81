"""The start of a run, measured once: its evaluation is a function of policy, games and settings.

A kept evaluation is used only where all that its numbers depend on is in its key; where something is not, it is played.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import torch

from lit_agentrl import screen
from lit_agentrl.build.assembly import Run, plain
from lit_agentrl.build.making import engine_of
from lit_agentrl.build.strategy import is_parallel
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.levels import class_of, level_key, options_of
from lit_agentrl.models.lora import fingerprint
from lit_agentrl.paths import CONFIG_DIR, PACKAGE_DIR
from lit_agentrl.rollout.kept import DamagedEntry, KeptPlays
from lit_agentrl.rollout.scheduler import Wave
from lit_agentrl.rollout.workers.base import Played
from lit_agentrl.text.token_bytes import tokenizer_fingerprint

FOLDER = "LIT_AGENTRL_CACHE"  # variable that names another folder than the user's cache, or none
# sections of the config that say how episodes are played, beside games, seed and lengths, which the wave has
_SECTIONS = ("prompt", "dialect", "context", "model", "engine", "worlds")
# ... and those whose parts stand beside: code of others there may look into it, or change it
_BESIDE = ("callbacks", "trainer", "strategy")
_KNOWN = ("lit_agentrl.", "lightning.", "torch.")
# beginnings of variables that libraries of sums listen to
_VARIABLES = (
    "ATEN_", "BLIS_", "DNNL_", "GOMP_", "KMP_", "MKL_", "OMP_", "ONEDNN_", "OPENBLAS_", "PYTORCH_", "TORCH",
)  # fmt: skip
_OF_PROCESSOR = ("model name", "stepping", "cache size", "flags", "CPU part", "Features")  # of /proc/cpuinfo


def folder() -> Path | None:
    """Where evaluations are kept; None: nowhere, where the variable is set to nothing."""
    if (given := os.environ.get(FOLDER)) is not None:
        return Path(given) if given else None
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "lit-agentrl" if os.path.isabs(home) else None  # a user without a home has none


@contextmanager
def kept_start(run: Run) -> Iterator[None]:
    """Evaluations inside take over what was played before, and keep what they play, where ``eval_cache`` is true."""
    evaluations, place = (run.rollouts.val, run.rollouts.test), folder()
    # held-out pairs are compared, not played
    if place is not None and run.cfg.get("eval_cache", True) and not run.held_out:
        if reason := why_played(run):
            screen.note(f"eval_cache: the start is played, since {reason}")
        else:
            start = Start(run, KeptPlays(place / "starts"))
            for evaluation in evaluations:
                evaluation.through = start.through
    try:
        yield
    finally:
        for evaluation in evaluations:
            evaluation.through = None


def why_played(run: Run) -> str | None:
    """What the numbers of this run's evaluations may depend on beside what a key can hold; None: nothing."""
    config = plain(run.cfg)
    strategy = run.trainer.strategy
    if is_parallel(strategy) or strategy.root_device.type != "cpu":
        return "only what strategy=single plays on a CPU is known to be the same to the bit"
    for section in (*_SECTIONS, *_BESIDE):
        for target in _targets(config.get(section)):
            if not target.startswith(_KNOWN):
                return f"{section} names {target}, which is not of this package"
    make: Any = engine_of(run.cfg)
    promised = getattr(getattr(make, "func", None), "foretold", None)
    if promised is None or promised(**make.keywords).weights != "shared":
        return "the engine does not compute with the network of this process"
    if not run.rules.worlds.wait:
        return "worlds.wait=false gives up that episodes can be repeated"
    for spec in (*run.games.val, *run.games.test):
        task = run.games.tasks[spec.task]
        if not is_closed(task):
            return f"{task.name} may answer with more than code and data of this package"
    changed = max(max(path.stat().st_mtime, path.stat().st_ctime) for path in _sources().values())
    if changed >= psutil.Process().create_time():  # what runs may be what stood there before
        return "files of this package changed after this process began"
    return None


def is_closed(task: Task) -> bool:
    """Whether what a game answers follows from its own options: see `World.is_closed`."""
    game = class_of(task)
    parts = (type(task), game, *_parts(options_of(task)))
    return all(map(_is_ours, parts)) and bool(getattr(game, "is_closed", False))


class Start:
    """Stands between evaluations and who plays them."""

    def __init__(self, run: Run, plays: KeptPlays) -> None:
        self._run, self._plays = run, plays
        self._told: set[str] = set()

    def through(self, play: Callable[[Wave, int], Played], wave: Wave, version: int) -> Played:
        """The same wave as it was played before, else played now."""
        key = self.key(wave)
        try:
            found = self._plays.get(key)
        except DamagedEntry as error:
            self._tell(f"warning: a kept evaluation is damaged and is played anew: {error}")
            found = None
        if found is not None:
            self._tell("the start was played before: its numbers are taken over (eval_cache=false plays it)")
            return found
        played = play(wave, version)
        if not any(episode.failed for episode in played.episodes):  # which the next time may go well
            try:
                self._plays.put(key, replace(played, seconds=0.0))
            except (OSError, TypeError) as error:
                why = (isinstance(error, OSError) and error.strerror) or error
                self._tell(f"warning: the start is not kept for later runs in {self._plays.folder}: {why}")
        return played

    def _tell(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            screen.note(line)

    def key(self, wave: Wave) -> str:
        """SHA-256 of all that the episodes of this wave depend on."""
        described = self._of_run | {
            "wave": asdict(wave),
            "games": [
                [level_key(task, wave.split), task.invalid_penalty, asdict(task.hosting)]
                for task in (self._run.games.tasks[n] for n in sorted({spec.task for spec in wave.specs}))
            ],
        }
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()

    @functools.cached_property
    def _of_run(self) -> dict[str, Any]:
        run, policy = self._run, self._run.module.policy
        config = plain(run.cfg)
        return {
            "machine": _machine(),
            "code": code_digest(),
            "weights": fingerprint(policy.network),
            "network": [type(policy.network).__name__, policy.network.config.to_json_string()],
            "tokenizer": [
                tokenizer_fingerprint(policy.tokenizer), policy.tokenizer.chat_template,
                sorted(run.rules.chat.end_of_turn_ids),
            ],
            "sections": {name: config.get(name) for name in _SECTIONS},
            "precision": str(config["trainer"].get("precision")),
            "run": [run.rules.seed, run.rules.max_context_tokens],
        }  # fmt: skip


def _machine() -> dict[str, Any]:
    """What the last bits of sums may depend on outside of this package."""
    processor: list[str] = []
    if (told := Path("/proc/cpuinfo")).exists():
        first = told.read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines()
        processor = [line for line in first if line.startswith(_OF_PROCESSOR)]
    return {
        "processor": [platform.platform(), *processor],
        "python": sys.version,
        "packages": _packages(),
        "torch": [
            torch.__version__, torch.backends.cpu.get_cpu_capability(), torch.get_num_threads(),
            torch.get_num_interop_threads(), str(torch.get_default_dtype()),
            torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled(),
        ],
        "variables": {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)},
    }  # fmt: skip


def _packages() -> list[str]:
    """Names and versions of what is installed, which the names of these folders are."""
    folders = [Path(each) for each in sys.path if each and os.path.isdir(each)]
    return sorted({path.name for each in folders for path in each.glob("*.dist-info")})


def code_digest(package: Path = PACKAGE_DIR, configs: Path = CONFIG_DIR) -> str:
    """SHA-256 of this package: source, configs, templates, tables of games; embedded weights by themselves."""
    digest = hashlib.sha256()
    for name, path in sorted(_sources(package, configs).items()):
        digest.update(f"{name} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _sources(package: Path = PACKAGE_DIR, configs: Path = CONFIG_DIR) -> dict[str, Path]:
    """Name in the wheel -> file."""
    return {
        prefix + path.relative_to(folder).as_posix(): path
        for prefix, folder in (("", package), ("conf/", configs))
        for path in folder.rglob("*")
        if path.suffix not in (".pyc", ".safetensors") and path.is_file()
    }


def _targets(node: Any) -> Iterator[str]:
    """Every ``_target_`` of a part of a config."""
    if isinstance(node, Mapping):
        if "_target_" in node:
            yield str(node["_target_"])
        for child in node.values():
            yield from _targets(child)
    elif isinstance(node, list):
        for child in node:
            yield from _targets(child)


def _parts(value: Any) -> Iterator[Any]:
    """Functions and objects among the options of a game: what is no value of a YAML."""
    if isinstance(value, functools.partial):
        yield from _parts([value.func, *value.args, *value.keywords.values()])
    elif isinstance(value, Mapping):
        yield from _parts(list(value.values()))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for each in value:
            yield from _parts(each)
    elif value is not None and not isinstance(value, str | int | float):
        yield value


def _is_ours(part: Any) -> bool:
    return str(getattr(part, "__module__", "")).startswith(f"{__package__.partition('.')[0]}.")
