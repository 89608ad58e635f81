"""Recording of training episodes, played by a run's policy or by any model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lit_agentrl import __version__, screen
from lit_agentrl.build.critics import read_beta
from lit_agentrl.build.games import Games, TaskLoader
from lit_agentrl.checks import format_value, name_errors, require_whole
from lit_agentrl.config.errors import UserError
from lit_agentrl.config.overrides import VARIANT
from lit_agentrl.data.episodes import MADE_WITH, EpisodeFolder, open_folder
from lit_agentrl.data.prompts import EvalSpec
from lit_agentrl.data.stepwise import set_step_returns
from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.levels import Levels, find_levels
from lit_agentrl.episode import Episode, Outcome
from lit_agentrl.evaluate.evaluation import rebuild_run
from lit_agentrl.evaluate.model_evaluation import OpenedModel, describe_model, open_model
from lit_agentrl.evaluate.options import find_checkpoint
from lit_agentrl.evaluate.playthroughs import EpisodeCollector
from lit_agentrl.evaluate.replay import load_weights, require_shared_weights
from lit_agentrl.evaluate.scores import make_record
from lit_agentrl.models.lora import hash_parameters
from lit_agentrl.offline.collect_options import BEST, check_options
from lit_agentrl.rollout.best import play_demonstrations
from lit_agentrl.rollout.evaluation import Evaluation
from lit_agentrl.rollout.settings import RolloutSettings, make_eval_params
from lit_agentrl.rollout.structures.continued import Continued, shares
from lit_agentrl.rollout.worlds.pool import GamePools
from lit_agentrl.runs.run_folder import lock_folder, require_idle
from lit_agentrl.text.token_bytes import describe_tokenizer, hash_tokenizer
from lit_agentrl.update.critic import reweight_by_critic

# sections of a config that determine what is played, and how
_IDENTIFYING = (
    "env",
    "prompt",
    "dialect",
    "context",
    "worlds",
    "rollout.max_reply_tokens",
    "rollout.max_context_tokens",
)
_OPTIONS = ("split", "episodes", "members", "first", "shard", "temperature", "seed")


@dataclass(frozen=True)
class Collected:
    """A folder of collected episodes, with a line about each game for people."""

    folder: EpisodeFolder
    lines: tuple[str, ...]


def collect_run(cfg: DictConfig, saved: DictConfig, load_task: TaskLoader, *, folder: Path) -> Collected:
    """Record episodes of a run's policy.

    Args:
        cfg: the options of ``conf/collect.yaml``.
        saved: the run's own config, with ``folder`` as its run folder.
        load_task: finds the config of a game by name.
        folder: the run folder.

    Raises:
        ValueError: an option is out of range, the checkpoint does not exist, the run is still running, the output
            folder holds something else, or too many episodes failed.
    """
    check_options(cfg)
    require_idle("run", folder)
    checkpoint, collector = find_checkpoint(cfg, folder), EpisodeCollector()
    run = rebuild_run(cfg, saved, load_task, extra_callbacks=[collector])
    load_weights(run.module, checkpoint)
    settings = run.rollouts.settings
    params = make_eval_params(settings, float(cfg.temperature), "collect")
    _check_continuations(cfg, run.cfg)

    def record(spec: EvalSpec) -> list[Episode]:
        collector.episodes = []
        run.rollouts.test = _build_evaluation(cfg, params, settings, run.games.tasks[spec.task])
        run.stream.test = [spec]
        run.trainer.test(run.module, run.stream, verbose=False)
        return _select_episodes(cfg, collector.episodes)

    stage = "start" if checkpoint is None else checkpoint.stem
    policy = {"name": run.module.policy.name, "stage": stage, **_identify(run.module.policy)}
    # the critic reweights the policy, so the network alone does not identify it
    if beta := read_beta(run.cfg):
        policy |= {
            "beta": beta,
            "fingerprint": hash_parameters(reweight_by_critic(run.module.policy.network, run.module.critic)),
        }
    return _play_missing_shards(
        cfg, _describe_episodes(cfg, saved, policy, run.module.policy.tokenizer), run.games, record
    )


def collect_model(cfg: DictConfig, model_overrides: Sequence[str], folders: Sequence[str] = ()) -> Collected:
    """Record episodes of a model that no run has trained.

    Args:
        cfg: the options of ``conf/collect.yaml``, without a run.
        model_overrides: options of ``conf/train.yaml`` that describe which model plays, through which engine, and how.
        folders: the user's config folders.

    Raises:
        ValueError: see `collect_run`.
    """
    check_options(cfg)
    with closing(open_model(cfg, model_overrides, folders)) as model:
        params = make_eval_params(model.settings, float(cfg.temperature), "collect")
        _check_continuations(cfg, model.saved)

        def record(spec: EvalSpec) -> list[Episode]:
            evaluation = _build_evaluation(cfg, params, model.settings, model.games.tasks[spec.task])
            return _select_episodes(cfg, model.play(0, spec, evaluation).episodes)

        if cfg.plays == BEST:
            return _collect_best(cfg, model)
        policy = {"name": model.name, "stage": "start", **_identify(model.policy)}
        if model.policy.network is None:
            policy["described"] = describe_model(model.saved)
        return _play_missing_shards(
            cfg, _describe_episodes(cfg, model.saved, policy, model.policy.tokenizer), model.games, record
        )


def _collect_best(cfg: DictConfig, model: OpenedModel) -> Collected:
    """Record best play, written with the model's prompts, tokenizer and dialect."""
    tokenizer = hash_tokenizer(model.policy.tokenizer)
    player = {"name": "best play", "stage": "start", "fingerprint": None, "tokenizer": tokenizer}
    with closing(GamePools(model.rules.tasks, {})) as pool, name_errors("plays=best"):

        def record(spec: EvalSpec) -> list[Episode]:
            return play_demonstrations(pool, model.rules, model.make_batch(spec), split=cfg.split)

        return _play_missing_shards(
            cfg, _describe_episodes(cfg, model.saved, player, model.policy.tokenizer), model.games, record
        )


def _check_continuations(cfg: DictConfig, saved: DictConfig) -> None:
    if cfg.continuations:
        require_shared_weights(saved, f"continuations={cfg.continuations} continue turns of other episodes")


def _build_evaluation(
    cfg: DictConfig, params: SamplingParams, settings: RolloutSettings, task: Task
) -> Evaluation:
    """Build the evaluation of a shard, with continuations of turns if requested."""
    plain = Evaluation(cfg.split, params, cfg.members, settings.max_failed_share)
    if not cfg.continuations:
        return plain
    require_whole(
        "continuations",
        cfg.continuations,
        task.max_turns - 1,
        alternative=f": {task.name} has {task.max_turns} turns",
    )
    members = cfg.members * (1 + cfg.continuations)
    return replace(plain, members=members, branching=Continued(cfg.continuations))


def _select_episodes(cfg: DictConfig, episodes: list[Episode]) -> list[Episode]:
    """Select the episodes of a shard to write.

    Without continuations all are selected; otherwise those that were continued, with labels for their turns.
    """
    if not cfg.continuations:
        return episodes
    return [set_step_returns(episode, labels) for episode, labels in shares(episodes, cfg.continuations)]


def _identify(policy: Any) -> dict[str, Any]:
    """Compute hashes that identify a policy's weights and tokenizer.

    The fingerprint is None if the weights are not in this process.
    """
    return {
        "fingerprint": None if policy.network is None else hash_parameters(policy.network),
        "tokenizer": hash_tokenizer(policy.tokenizer),
    }


def _describe_episodes(
    cfg: DictConfig, saved: DictConfig, policy: Mapping[str, Any], tokenizer: Any
) -> dict[str, Any]:
    """Describe the episodes of a folder.

    Only a command with the same description may continue the folder.
    """
    parts = OmegaConf.to_container(
        OmegaConf.masked_copy(saved, [n for n in _IDENTIFYING if "." not in n]), resolve=True
    )
    assert isinstance(parts, dict)
    limits = {name: OmegaConf.select(saved, name) for name in _IDENTIFYING if "." in name}
    games = saved.test.envs
    return {
        "lit_agentrl": __version__,
        "policy": dict(policy),
        MADE_WITH: describe_tokenizer(tokenizer),
        **{str(name): section for name, section in parts.items()},
        **limits,
        "games": None if games is None else list(games),
        "variant": list(cfg.get(VARIANT) or ()),
        **{name: cfg[name] for name in _OPTIONS},
        **({"continuations": cfg.continuations} if cfg.continuations else {}),
        **({} if cfg.plays != BEST else {"plays": BEST}),
        **({} if cfg.trained_in is None else {"trained_in": cfg.trained_in}),
    }


def _play_missing_shards(cfg: DictConfig, described: dict[str, Any], games: Games, record: Any) -> Collected:
    """Play the shards that the folder does not hold yet."""
    path = Path(str(cfg.out))
    plan = list(_plan_shards(cfg, games))
    with name_errors("out"):
        existing = open_folder(path)  # checked first, so that a wrong folder is not changed by the lock
    with lock_folder(path):
        folder = existing or EpisodeFolder(path, described, planned=len(plan))
        if existing is None:
            folder.write_manifest()
        elif differs := describe_difference({**folder.described, MADE_WITH: described[MADE_WITH]}, described):
            raise UserError(f"out={path} holds episodes of another command: {differs}; choose another folder")
        num_done = len(folder.shards)
        outcomes = [episode.outcome for episode in folder.read()]
        if num_done and not folder.is_complete:
            screen.note(f"{path}: continuing after {len(outcomes)} episodes")
        for name, spec in plan[num_done:]:
            game = games.tasks[spec.task].name
            screen.announce(
                f"playing {screen.describe_episodes([game], spec.prompts * cfg.members)}, from task {spec.first}"
            )
            with screen.show_playing():
                episodes = record(spec)
            folder = folder.add(name, episodes)
            outcomes += [episode.outcome for episode in episodes]
    levels = {
        games.tasks[spec.task].name: find_levels(games.tasks[spec.task], cfg.split) for spec in games.test
    }
    return Collected(folder, tuple(_format_result(cfg, name, levels[name], outcomes) for name in levels))


def _plan_shards(cfg: DictConfig, games: Games) -> Iterator[tuple[str, EvalSpec]]:
    """Yield the name and episodes of each shard, independent of what the folder already holds."""
    for spec in games.test:
        for start in range(0, cfg.episodes, cfg.shard):
            count = min(cfg.shard, cfg.episodes - start)
            name = f"{games.tasks[spec.task].name}-{cfg.first + start:07d}"
            yield (
                name,
                EvalSpec(spec.task, prompts=count, first=cfg.first + start, trained_in=cfg.trained_in),
            )


def describe_difference(recorded: Mapping[str, Any], requested: Mapping[str, Any], prefix: str = "") -> str:
    """Describe the first difference of two descriptions; empty if they are equal."""
    for name in sorted({*recorded, *requested}, key=str):
        before, now, name_path = recorded.get(name), requested.get(name), f"{prefix}{name}"
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            if difference := describe_difference(before, now, f"{name_path}."):
                return difference
        elif before != now:
            return f"{name_path} is {format_value(before)} there, and {format_value(now)} here"
    return ""


def _format_result(cfg: DictConfig, game: str, levels: Levels, outcomes: Sequence[Outcome]) -> str:
    game_outcomes = [outcome for outcome in outcomes if outcome.task_name == game]
    known_levels = {"chance_success": levels.chance_success, "oracle_success": levels.oracle_success}
    record = make_record(
        OmegaConf.create({"split": cfg.split, "pass_k": []}),
        game,
        float(cfg.temperature),
        game_outcomes,
        known_levels,
    )
    score = record["success"]
    references = ["–" if value is None else f"{value:.3f}" for value in known_levels.values()]
    interval = "" if score["low"] is None else f" [{score['low']:.3f}, {score['high']:.3f}]"
    failed = f", {record['failed']} failed" if record["failed"] else ""
    if missing := (cfg.episodes - len(game_outcomes)) * (cfg.plays == BEST):
        failed = f", {missing} tasks left out, whose best play is unknown"
    return (
        f"{game}: success {score['mean']:.3f}{interval} (chance {references[0]}, oracle {references[1]}), "
        f"n = {score['n']} tasks, {len(game_outcomes)} episodes{failed}, split {cfg.split}, T = {cfg.temperature:g}, "
        f"in {cfg.out}"
    )
