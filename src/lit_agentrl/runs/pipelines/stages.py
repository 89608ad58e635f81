"""Run a pipeline with one process per stage: skip completed stages, and resume started ones."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from lit_agentrl import screen
from lit_agentrl.checks import require_whole
from lit_agentrl.config.composition import compose_job, initialize_hydra
from lit_agentrl.config.errors import UserError, refuse_unknown
from lit_agentrl.config.overrides import check_overrides, format_overrides, parse
from lit_agentrl.config.run_options import compose_options, split_model_options
from lit_agentrl.data.row_folder import open_labels
from lit_agentrl.files import write_atomic
from lit_agentrl.runs.pipelines.recipes import CONFIG, PipelineOptions, Recipe, Stage, plan_stages, read
from lit_agentrl.runs.run_folder import LOCK, lock_folder
from lit_agentrl.runs.sweeps import resumption

RECORD = "pipeline.json"
_STAGE_OPTION = re.compile(r"([a-z][a-z0-9_]*)\.([^=]*=.*)", re.DOTALL)
_PASSED_ON = {  # patterns of the overrides that are passed on to stages
    "env": re.compile(r"env\."),
    "policy": re.compile(r"(model|engine|dialect|prompt|context|worlds|rollout\.max_\w+)[./=]"),
    "judge": re.compile(r"reward[./=]"),
}
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Pipeline:
    """The commands of a recipe, which run in one folder.

    Attributes:
        out: the folder of the pipeline.
        stages: the stages of all rounds, in order.
    """

    out: Path
    stages: Sequence[Stage]

    @classmethod
    def of(cls, words: Sequence[str]) -> Pipeline:
        """Build the pipeline that these arguments describe, and check all stages of a round.

        Raises:
            UserError: an unknown option or recipe, or a stage with invalid options.
        """
        options, passed_on, by_stage = _split_options(words)
        name = str(options["recipe"])
        recipe = read(name)
        _check_passed_on(name, recipe, passed_on)
        if unknown := sorted(set(by_stage) - set(recipe.stages)):
            option = f"{unknown[0]}.{by_stage[unknown[0]][0]}"
            valid = f"stages: {', '.join(recipe.stages)}"
            refuse_unknown(f"unknown option {option}", unknown[0], recipe.stages, valid)
        rounds = recipe.rounds if options["rounds"] is None else options["rounds"]
        require_whole("rounds", rounds, 1, 99)
        for key, low in (("prompts", 1), ("members", 1), ("seed", 0)):
            require_whole(key, options[key], low)
        pipeline_options = PipelineOptions(
            numbers={key: options[key] for key in ("prompts", "members", "seed")},
            env=(*format_overrides({"env": options["env"]}), *passed_on["env"]),
            policy=tuple(passed_on["policy"])
            if _has_model(passed_on)
            else ("model=nano", *passed_on["policy"]),
            judge=tuple(passed_on["judge"]),
            by_stage={key: tuple(value) for key, value in by_stage.items()},
        )
        out = Path(str(options["out"]))
        _require_pipeline_folder(out)
        stages = plan_stages(recipe, pipeline_options, rounds=rounds, out=out)
        for stage in stages[: len(recipe.stages)]:
            _check_stage(stage)
        return cls(out, stages)

    def run(self) -> Iterator[str]:
        """Run the stages that are not completed yet.

        Yields:
            Lines for the user about each stage and its result.

        Raises:
            UserError: a stage failed; the same command resumes it.
        """
        rounds = self.stages[-1].round
        started = self._read_started()
        for stage in self.stages:
            where = f"round {stage.round} of {rounds}, {stage.name}"
            if _is_done(stage):
                yield f"{where}: done, {_describe_result(stage)}"
                continue
            yield f"{where}: lit-agentrl {shlex.join([stage.command, *stage.words])}"
            started[stage.place] = [*stage.arguments]
            with lock_folder(self.out):  # only while writing: each stage locks its own folder
                write_atomic(self.out / RECORD, json.dumps(started, indent=1) + "\n")
            _run_stage(stage, where)
            yield f"{where}: {_describe_result(stage)}"
        train_folders = [shlex.quote(str(s.folder)) for s in self.stages if s.command == "train"]
        yield f"{self.out}: all stages are done; lit-agentrl report {' '.join(train_folders)}"

    def _read_started(self) -> dict[str, list[str]]:
        """Return the command and words of each recorded stage, by its place.

        Raises:
            UserError: the folder holds no pipeline, or a stage that was started with other words.
        """
        _require_pipeline_folder(self.out)
        file = self.out / RECORD
        if not file.exists():
            return {}
        try:
            recorded: dict[str, list[str]] = json.loads(file.read_text(encoding="utf-8"))
            started = {stage_name: [str(word) for word in words] for stage_name, words in recorded.items()}
        except (ValueError, AttributeError, TypeError) as error:
            raise UserError(f"{file} is damaged ({error}); name a new folder") from error
        for stage in self.stages:
            earlier = started.get(stage.place)
            if (
                earlier is not None
                and earlier != [*stage.arguments]
                and (_is_done(stage) or _has_started(stage))
            ):
                now = [*stage.arguments]
                new = [f"{word} is new" for word in now if word not in earlier]
                missing = [f"{word} is missing" for word in earlier if word not in now]
                difference = (*new, *missing, "the options are in another order")[0]
                raise UserError(
                    f"out={self.out} holds {stage.place} of another command ({difference}); name another folder"
                )
        return started


def _require_pipeline_folder(out: Path) -> None:
    """Refuse a folder that holds anything other than a pipeline.

    Raises:
        UserError: the folder holds other files, or the path is a file.
    """
    if out.exists() and not out.is_dir():
        raise UserError(f"out={out} is not a folder; name a new folder")
    if out.exists() and not (out / RECORD).exists() and any(path.name != LOCK for path in out.iterdir()):
        raise UserError(f"out={out} exists and holds no pipeline; name a new folder")


def _split_options(words: Sequence[str]) -> tuple[dict[str, Any], dict[str, list[str]], dict[str, list[str]]]:
    """Split the overrides by their readers.

    Returns:
        The pipeline's own options; the overrides to pass on, by what they describe (``env``, ``policy``, ``judge``);
        and the overrides of single stages, by the name of the stage.
    """
    options = {str(key): value for key, value in OmegaConf.load(CONFIG).items_ex(resolve=False)}
    passed_on: dict[str, list[str]] = {"env": [], "policy": [], "judge": []}
    by_stage: dict[str, list[str]] = {}
    own_words: list[str] = []
    for word in words:
        kind = next((kind for kind, pattern in _PASSED_ON.items() if pattern.match(word)), None)
        if kind is not None:
            passed_on[kind].append(word)
        elif stage_match := _STAGE_OPTION.match(word):
            by_stage.setdefault(stage_match[1], []).append(stage_match[2])
        else:
            own_words.append(word)
    for group in ([*own_words, *chain.from_iterable(passed_on.values())], *by_stage.values()):
        check_overrides(group, is_multirun=False)
    for override in parse(own_words):
        key = override.key_or_group
        if key not in options or override.is_add() or override.is_delete():
            valid = f"valid: {', '.join(options)}, and STAGE.option=value"
            refuse_unknown(f"unknown option {override.input_line}", key, options, valid)
        options[key] = override.value()
    for key in ("recipe", "out"):
        if options[key] == "???":
            raise UserError(f"{key} has no value; lit-agentrl pipeline --help explains it")
    return options, passed_on, by_stage


def _has_model(passed_on: Mapping[str, Sequence[str]]) -> bool:
    return any(word.startswith("model=") for word in passed_on["policy"])


def _check_passed_on(name: str, recipe: Recipe, passed_on: Mapping[str, Sequence[str]]) -> None:
    """Refuse overrides that no stage reads, and a recipe whose judge is missing."""
    for kind, words in passed_on.items():
        if words and not recipe.has_placeholder(kind):
            raise UserError(f"{words[0]} would be ignored: no stage of recipe={name} reads it; leave it out")
    if recipe.has_placeholder("judge") and not passed_on["judge"]:
        raise UserError(f"recipe={name} needs a judge; set reward=judge reward.judge.engine.url=…")


def _check_stage(stage: Stage) -> None:
    """Check the options of a stage by composing its config, before any stage starts.

    Raises:
        UserError: an invalid option; the message names the stage.
    """
    words: Sequence[str] = stage.words
    try:
        check_overrides(words, is_multirun=False)
        if stage.command == "label":
            judge = [word for word in words if _PASSED_ON["judge"].match(word)]
            compose_options("label", [word for word in words if word not in judge])
            words = judge
        elif stage.command == "collect":
            model_options = split_model_options(words, "collect")
            if model_options is None:
                compose_options("collect", words)
            words = [] if model_options is None else model_options[1]
        with initialize_hydra():
            cfg = compose_job("train", words)
        for section in ("model", "reward"):
            if missing := OmegaConf.missing_keys(cfg[section]):
                raise UserError(f"{min(missing)} has no value; set it")
    except UserError as error:
        raise UserError(f"stage {stage.name}: {error}") from error


def _has_started(stage: Stage) -> bool:
    if stage.command == "train":
        return resumption.has_started(stage.folder)
    return open_labels(stage.folder) is not None


def _is_done(stage: Stage) -> bool:
    if stage.command == "train":
        summary = resumption.read_final_summary(stage.folder)
        return summary is not None and summary["status"] != "failed"
    folder = open_labels(stage.folder)
    return folder is not None and folder.is_complete


def _run_stage(stage: Stage, where: str) -> None:
    """Run the command of a stage to its end.

    Raises:
        UserError: the command failed; it has printed the cause.
    """
    words: Sequence[str] = stage.words
    if stage.command == "train" and _has_started(stage):
        words = format_overrides({"resume": str(stage.folder)})
    # in its own process group, since this process forwards a terminal's interrupt, which must arrive only once
    child = subprocess.Popen([sys.executable, "-m", "lit_agentrl", stage.command, *words], process_group=0)
    with _forward_signals(child) as caught:
        status = child.wait()
    if caught:
        screen.note(f"interrupted in {where}; repeat the command to continue there")
        raise KeyboardInterrupt
    if status:
        raise UserError(f"{where} failed; fix the error above, and repeat the command to continue there")


@contextmanager
def _forward_signals(child: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Forward signals that would end this process to a child, and collect them."""
    caught: list[int] = []

    def forward(signal_number: int, frame: object) -> None:
        caught.append(signal_number)
        child.send_signal(signal_number)

    # nohup ignores SIGHUP, and so does the child
    numbers = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    earlier_handlers = {number: signal.signal(number, forward) for number in numbers}
    try:
        yield caught
    finally:
        for signal_number, handler in earlier_handlers.items():
            signal.signal(signal_number, handler)


def _describe_result(stage: Stage) -> str:
    """Return the success before and after a training stage, and the folder of the stage."""
    summary = resumption.read_final_summary(stage.folder) if stage.command == "train" else None
    if summary is None:
        return str(stage.folder)
    games = [
        f"{game['split']} {game['name']} {_format_success(game['start'])} → {_format_success(game['last'])}"
        for game in summary["games"]
        if game["last"] is not None
    ]
    return f"success {', '.join(games) or 'not measured'}, {stage.folder}"


def _format_success(scores: Any) -> str:
    return "–" if scores is None or scores["success"] is None else f"{scores['success']['mean']:.3f}"
