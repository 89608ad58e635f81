"""Evaluation of a model without a run: one on disk, or one behind an API."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from lit_agentrl.batch import StepBatch
from lit_agentrl.build.games import Games, build_games, check_prompts, check_thinking
from lit_agentrl.build.instantiation import (
    as_list,
    get_engine_factory,
    instantiate_as,
    instantiate_like,
    make_dialect,
)
from lit_agentrl.build.parts import make_eval_params
from lit_agentrl.checks import name_errors
from lit_agentrl.config.composition import compose_job, load_option, make_task_loader
from lit_agentrl.config.errors import UserError
from lit_agentrl.config.signatures import check_targets
from lit_agentrl.data.prompts import EvalSpec, PromptStream
from lit_agentrl.engines.base import Engine
from lit_agentrl.engines.needs import ALONE, check_engine_options, check_server, open_engine
from lit_agentrl.envs.levels import find_levels
from lit_agentrl.episode import Episode, Outcome
from lit_agentrl.evaluate import best_of_n
from lit_agentrl.evaluate.baselines import FEW_SHOT, GREEDY, compute_baselines
from lit_agentrl.evaluate.evaluation import check_options, require_room
from lit_agentrl.evaluate.replay import play_inline, require_shared_weights
from lit_agentrl.evaluate.results_file import can_write, write_results
from lit_agentrl.evaluate.score_table import build_table
from lit_agentrl.evaluate.scores import Scores, make_record
from lit_agentrl.evaluate.variants import find_games
from lit_agentrl.models.onednn import bound_caches
from lit_agentrl.requirements import match
from lit_agentrl.rollout.evaluation import Evaluation
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import Scheduler, Wave
from lit_agentrl.rollout.settings import RolloutSettings
from lit_agentrl.rollout.shots import with_shots
from lit_agentrl.rollout.sync import WeightSync
from lit_agentrl.rollout.workers.base import Played
from lit_agentrl.rollout.worlds.pool import Worlds
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.context import Context
from lit_agentrl.text.prompts import Prompt
from lit_agentrl.text.reply_ends import list_model_ends

FOLDER = Path("outputs") / "evaluations"


def evaluate_model(cfg: DictConfig, described: Sequence[str]) -> Scores:
    """Play ``episodes`` tasks of each game, and write the scores under ``outputs/evaluations/``.

    Args:
        cfg: the options of ``conf/evaluate.yaml``, without a run.
        described: options of ``conf/train.yaml`` that select the model, the engine and the way of playing.

    Raises:
        UserError: an option is out of range.
        ValueError: an option is invalid, or too many episodes failed.
    """
    temperatures = as_list(cfg.temperature)
    check_options(cfg, temperatures)
    if cfg.diagnostics:
        raise UserError("diagnostics=true needs the policy of a run; set run=FOLDER, or leave it out")
    is_writable = can_write(FOLDER)
    records: list[dict[str, Any]] = []
    with closing(open_model(cfg, described)) as model:
        games, settings = model.games, model.settings
        chooser = best_of_n.load_chooser(cfg, model.policy.tokenizer)
        greedy = None
        if cfg.baselines and any(temperatures):
            greedy_evaluation = Evaluation(
                cfg.split, make_eval_params(settings, 0.0, "evaluate"), 1, settings.max_failed_share
            )
            model.play(greedy_evaluation, games.test)
            greedy = greedy_evaluation.outcomes
        for value in temperatures:
            params = make_eval_params(settings, float(value), "evaluate")
            evaluation = Evaluation(cfg.split, params, cfg.members, settings.max_failed_share)
            played = model.play(evaluation, games.test)
            for spec in games.test:
                task = games.tasks[spec.task]
                outcomes = [outcome for outcome in evaluation.outcomes if outcome.task_name == task.name]
                record = make_record(
                    cfg, task.name, float(value), outcomes, asdict(find_levels(task, cfg.split))
                )
                if cfg.baselines:
                    batch = model.make_batch(spec)
                    others = {
                        GREEDY: greedy if value else None,
                        FEW_SHOT: model.after_shots(cfg.shots, spec, evaluation) if cfg.shots else None,
                    }
                    record["baselines"] = compute_baselines(
                        task, cfg.split, batch, outcomes, others=others, seed=cfg.seed
                    )
                if chooser is not None:
                    record |= chooser.record(cfg.best_of, [e for e in played if e.task_name == task.name])
                records.append(record)
    stage = str(model.saved.engine.get("model") or model.name)
    return _write_scores(cfg, model.saved, stage, records, model.sync.measure_usage(), is_writable)


@dataclass
class OpenedModel:
    """A model that is ready to play.

    Attributes:
        saved: the config that describes it.
        settings: limits of episodes.
        games: the games that it plays.
        policy: tokenizer, and the network if it is local.
        sync: loads weights into the engine, and reports its usage counts.
        rules: rules of its episodes.
    """

    saved: DictConfig
    settings: RolloutSettings
    games: Games
    policy: Any
    sync: WeightSync
    rules: Rules
    _engine: Engine
    _scheduler: Scheduler

    @property
    def name(self) -> str:
        name: str = self.policy.name
        return name

    def play(self, evaluation: Evaluation, specs: Sequence[EvalSpec]) -> list[Episode]:
        """Play the episodes of an evaluation, which receives their outcomes."""
        episodes: list[Episode] = []
        for number, spec in enumerate(specs):
            batch = self.make_batch(spec)
            evaluation.collect(batch, self._play_wave, 0, is_first=number == 0)
            episodes += batch.episodes
        return episodes

    def after_shots(self, shots: int, spec: EvalSpec, like: Evaluation) -> Sequence[Outcome]:
        """Play a game again, with solved episodes in the prompt, and return the outcomes.

        Raises:
            UserError: the engine takes token ids and does not use a local network.
            ValueError: the game has no best play.
        """
        rules, batch = with_shots(self.rules, spec.task, shots), self.make_batch(spec)
        require_room(rules, self.policy.network, shots)
        evaluation = replace(like, params=replace(like.params, max_context_tokens=rules.max_context_tokens))
        if self._engine.capabilities.token_ids:
            require_shared_weights(
                self.saved, f"shots={shots} needs a longer context than the engine was made with"
            )
            play_inline(rules, self.policy.network, nullcontext, evaluation, batch)
        else:  # the server enforces its own limits
            with closing(Scheduler(rules, self._engine)) as scheduler:
                evaluation.collect(batch, replace(self, _scheduler=scheduler)._play_wave, 0)
        return evaluation.outcomes

    def make_batch(self, spec: EvalSpec) -> StepBatch:
        """Return the prompts to play of a game."""
        stream = PromptStream(
            prompts=1, task_weights=self.games.weights, seed=self.saved.seed, val=(), test=[spec]
        )
        ((batch,),) = stream.test_dataloader()
        return batch

    def _play_wave(self, wave: Wave, version: int) -> Played:
        self.sync.load(None, version)
        self.sync.probe(wave.params)
        return Played(self._scheduler.play(wave))

    def close(self) -> None:
        """Close the games and the engine."""
        self._scheduler.close()
        self._engine.stop()


def open_model(cfg: DictConfig, described: Sequence[str]) -> OpenedModel:
    """Open the described model, to play the games of ``cfg.env`` with ``cfg.seed``.

    Raises:
        ValueError: an option is invalid.
    """
    saved = _compose_config(cfg, described)
    load_task = find_games(cfg, saved, make_task_loader())
    sections = ["model", "engine", "prompt", "dialect", "context", "env", "worlds", "rollout"]
    check_targets(OmegaConf.masked_copy(saved, sections))
    settings = instantiate_as(saved, "rollout", RolloutSettings)
    games = build_games(saved, load_task)
    policy, rules, engine, sync = _open_parts(saved, games, settings)
    return OpenedModel(saved, settings, games, policy, sync, rules, engine, Scheduler(rules, engine))


def _compose_config(cfg: DictConfig, described: Sequence[str]) -> DictConfig:
    names = [str(name) for name in as_list(cfg.env)] if cfg.env is not None else []
    if not names:
        raise UserError("env has no value; name the games to play, such as env=[sokoban,bandit]")
    saved = compose_job("train", [*described, f"seed={cfg.seed}"])
    OmegaConf.set_struct(saved, False)
    saved.env = load_option("env", names[0])
    if "weights" in saved.env:
        raise UserError(f"env={names[0]} is a mixture; name its games, such as env=[sokoban,bandit]")
    saved.pop("hydra", None)
    saved.run_dir = str(FOLDER)
    saved.test.envs, saved.test.episodes, saved.val.envs = names, cfg.episodes, None
    return saved


def _open_parts(
    saved: DictConfig, games: Games, settings: RolloutSettings
) -> tuple[Any, Rules, Engine, WeightSync]:
    """Build the policy, its rules, an engine (around a local network), and weight sync."""
    bound_caches()
    make = get_engine_factory(saved)
    match([*ALONE, *filter(None, [check_engine_options(make)])])
    check_server(make)
    prompt, dialect = instantiate_as(saved, "prompt", Prompt), make_dialect(saved)
    context: Context = instantiate_like(saved, "context", Context)
    policy = instantiate(saved.model)
    with name_errors("model"):
        chat = ChatRenderer(
            policy.tokenizer,
            dialect=dialect,
            force_think=prompt.force_think,
            shows_replies=context.shows_replies,
            model_ends=list_model_ends(policy.network, policy.tokenizer),
            date=policy.date,
        )
    check_thinking(chat, prompt, policy.name)
    rules = Rules(
        tasks=games.tasks, prompt=prompt, chat=chat, context=context, engine=make, seed=saved.seed,
        max_context_tokens=settings.max_context_tokens, worlds=instantiate_as(saved, "worlds", Worlds),
    )  # fmt: skip
    check_prompts(rules, is_local=policy.network is not None)
    network = policy.network
    options = rules.make_engine_options(network)
    engine = open_engine(make, **options)
    if network is not None and engine.capabilities.weights == "shared" and torch.cuda.is_available():
        network.to("cuda")  # as the trainer does for a run
    if chat.forced_think and not engine.capabilities.token_ids:
        raise UserError(
            "prompt.force_think=true begins a reply, and this engine takes only messages; set it to false"
        )
    return policy, rules, engine, WeightSync(engine, network, rules, options["forward_context"])


def _write_scores(
    cfg: DictConfig,
    saved: DictConfig,
    stage: str,
    records: list[dict[str, Any]],
    used: dict[str, float],
    is_writable: bool,
) -> Scores:
    games = "-".join(dict.fromkeys(record["env"] for record in records))
    file_stem = "".join(c if c.isalnum() or c in "-." else "-" for c in stage).strip(".")
    content: dict[str, Any] = {
        "config": {**cast(dict[str, Any], OmegaConf.to_container(cfg)), "described": describe_model(saved)},
        "results": records,
        **({"engine": used} if used else {}),
    }
    path = (
        write_results(FOLDER, f"{file_stem}_{cfg.split}_{games}_seed{cfg.seed}", content)
        if is_writable
        else None
    )
    return Scores(records, path, build_table(stage, cfg, records, used))


def describe_model(saved: DictConfig) -> Any:
    """Return the recorded description of the model.

    Server keys do not occur in it, only the names of their environment variables.
    """
    sections = ["model", "engine", "prompt", "dialect", "context", "worlds", "rollout"]
    return OmegaConf.to_container(OmegaConf.masked_copy(saved, sections), resolve=True)
