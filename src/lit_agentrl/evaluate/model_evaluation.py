"""Evaluation of a model without a run: one on disk, or one behind an API."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from lit_agentrl import screen
from lit_agentrl.batch import StepBatch
from lit_agentrl.build.games import Games, build_games, check_prompts, check_thinking
from lit_agentrl.build.instantiation import (
    get_engine_factory,
    instantiate_as,
    instantiate_like,
    make_dialect,
)
from lit_agentrl.checks import name_errors
from lit_agentrl.config.composition import make_task_loader
from lit_agentrl.config.errors import UserError
from lit_agentrl.config.signatures import check_targets
from lit_agentrl.data.prompts import EvalSpec, PromptStream
from lit_agentrl.engines.base import Engine
from lit_agentrl.engines.needs import ALONE, check_engine_options, check_server, open_engine
from lit_agentrl.episode import Episode, Outcome
from lit_agentrl.evaluate import best_of_n
from lit_agentrl.evaluate.all_tasks import ALL, choose_tasks
from lit_agentrl.evaluate.baselines import GREEDY, make_records
from lit_agentrl.evaluate.evaluation import require_room
from lit_agentrl.evaluate.options import FOLDER, as_list, check_options, compose_model_config, list_shots
from lit_agentrl.evaluate.replay import play_inline, require_shared_weights
from lit_agentrl.evaluate.results_file import can_write, describe_options, read_compared, write_results
from lit_agentrl.evaluate.rivals import add_ratings, require_rivals
from lit_agentrl.evaluate.score_table import build_table
from lit_agentrl.evaluate.scores import Scores, warn_of_cut_replies
from lit_agentrl.evaluate.variants import find_games
from lit_agentrl.models.onednn import bound_caches
from lit_agentrl.models.packages import PREFIX
from lit_agentrl.requirements import match
from lit_agentrl.rollout.evaluation import Evaluation
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import Scheduler, Wave
from lit_agentrl.rollout.settings import RolloutSettings, make_eval_params
from lit_agentrl.rollout.shots import with_shots
from lit_agentrl.rollout.sync import WeightSync
from lit_agentrl.rollout.workers.base import Played
from lit_agentrl.rollout.worlds.pool import Worlds
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.context import Context
from lit_agentrl.text.dialects.base import Dialect
from lit_agentrl.text.lost_characters import count_lost, format_lost
from lit_agentrl.text.prompts import Prompt
from lit_agentrl.text.reply_ends import list_model_ends


def evaluate_models(cfg: DictConfig, models: Sequence[Sequence[str]], folders: Sequence[str] = ()) -> Scores:
    """Evaluate several models, one after the other.

    The table has the rows of all models and of the files of ``compare``.

    Args:
        cfg: the options of ``conf/evaluate.yaml``, without a run.
        models: the options that describe each model, see `evaluate_model`.
        folders: the user's config folders.

    Raises:
        UserError: an option is out of range, or a file of ``compare`` is no such evaluation.
    """
    check_options(cfg)
    compared = read_compared(cfg)
    require_rivals(cfg, compared, num_models=len(models))
    for model_overrides in models[1:]:
        # a name that is unknown is refused before the first model plays
        compose_model_config(cfg, model_overrides, folders)
    scores = [evaluate_model(cfg, model_overrides, folders) for model_overrides in models]
    records = [record for each in scores for record in each.records]
    if cfg.ratings:
        add_ratings([*records, *compared])
    paths = [path for each in scores for path in each.paths]
    # at most one engine is a server, so no key is lost
    used = {key: value for each in scores for key, value in each.used.items()}
    return Scores(records, paths, build_table(cfg, [*records, *compared], used), used)


def evaluate_model(cfg: DictConfig, model_overrides: Sequence[str], folders: Sequence[str] = ()) -> Scores:
    """Play ``episodes`` tasks of each game, and write the scores under ``outputs/evaluations/``.

    Args:
        cfg: the options of ``conf/evaluate.yaml``, without a run.
        model_overrides: options of ``conf/train.yaml`` that select the model, the engine and the way of playing.
        folders: the user's config folders.

    Raises:
        UserError: an option is out of range.
        ValueError: an option is invalid, or too many episodes failed.
    """
    check_options(cfg)
    temperatures = as_list(cfg.temperature)
    if cfg.diagnostics:
        raise UserError("diagnostics=true needs the policy of a run; set run=FOLDER, or leave it out")
    shots = list_shots(cfg)
    is_writable = can_write(FOLDER)
    records: list[dict[str, Any]] = []
    with closing(open_model(cfg, model_overrides, folders)) as model:
        games, settings = model.games, model.settings
        stage = str(model.saved.engine.get("model") or model.name.removeprefix(PREFIX))
        chooser = best_of_n.load_chooser(cfg, model.policy.tokenizer)
        for spec in games.test:
            task, greedy = games.tasks[spec.task], None
            if cfg.baselines and any(temperatures):
                params = make_eval_params(settings, 0.0, "evaluate")
                greedy = model.play(0, spec, Evaluation(cfg.split, params, 1, settings.max_failed_share))
            for value in temperatures:
                params = make_eval_params(settings, float(value), "evaluate")
                evaluation = Evaluation(cfg.split, params, cfg.members, settings.max_failed_share)
                played: dict[int, PlayedGame] = {}
                for k in shots:
                    note = f" after {k} solved episode{'s' * (k != 1)}" if k else ""
                    count = screen.describe_episodes([task.name], spec.prompts * cfg.members)
                    screen.announce(f"{stage} plays {count}{note}, temperature {value:g}")
                    played[k] = model.play(k, spec, evaluation)
                    model.note_lost_characters(played[k].episodes)
                task_records = make_records(
                    cfg, task, model.make_batch(spec), {k: (p.outcomes, p.tokens) for k, p in played.items()},
                    model=stage, temperature=float(value),
                    others={GREEDY: greedy.outcomes if greedy and value else None},
                )  # fmt: skip
                if chooser is not None:
                    task_records[0] |= chooser.record(cfg.best_of, played[0].episodes)
                records += task_records
    warn_of_cut_replies(records, settings.max_reply_tokens)
    path = _write_scores(cfg, model.saved, stage, records, model.used) if is_writable else None
    return Scores(records, [path] if path else [], build_table(cfg, records, model.used), model.used)


class PlayedGame(NamedTuple):
    """Episodes of a game that a model played.

    ``tokens`` is the server's count of tokens in their replies; None if the engine takes token ids.
    """

    outcomes: list[Outcome]
    episodes: list[Episode]
    tokens: float | None


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
        used: usage counts of a server so far.
    """

    saved: DictConfig
    settings: RolloutSettings
    games: Games
    policy: Any
    sync: WeightSync
    rules: Rules
    _engine: Engine
    _scheduler: Scheduler
    used: dict[str, float] = field(default_factory=dict)
    _has_noted_lost: bool = False

    @property
    def name(self) -> str:
        name: str = self.policy.name
        return name

    @property
    def dialect(self) -> Dialect:
        """The format of its replies."""
        return self.rules.chat.dialect

    def play(self, shots: int, spec: EvalSpec, template: Evaluation) -> PlayedGame:
        """Play a game with ``shots`` solved episodes in the prompt, as a copy of ``template``.

        Raises:
            UserError: shots need a longer context, but the engine takes token ids and does not use a local network.
            ValueError: the game has no best play.
        """
        batch, evaluation, before = self.make_batch(spec), replace(template), self.used
        with screen.show_playing():
            if not shots:
                evaluation.collect(batch, self._play_wave, 0)
            else:
                self._play_after_shots(shots, spec, evaluation, batch)
        self.used = {key: value + before.get(key, 0.0) for key, value in self.sync.measure_usage().items()}
        # tokens of an engine of texts are bytes, but the server counts its own
        counts = None if self._engine.capabilities.token_ids else self.used.get("tokens_out", 0.0)
        tokens = None if counts is None else counts - before.get("tokens_out", 0.0)
        return PlayedGame(evaluation.outcomes, batch.episodes, tokens)

    def note_lost_characters(self, episodes: Sequence[Episode]) -> None:
        """Print a line about the first episodes whose prompts hold characters that the tokenizer drops."""
        if self._has_noted_lost or not any(episode.num_lost for episode in episodes):
            return
        self._has_noted_lost = True
        texts = (text for episode in episodes for text in episode.prompt_texts)
        lost = format_lost(count_lost(self.policy.tokenizer, texts))
        screen.note(
            f"prompts of {episodes[0].task_name} hold {lost}; remove them from its texts, or use another model"
        )

    def _play_after_shots(self, shots: int, spec: EvalSpec, evaluation: Evaluation, batch: StepBatch) -> None:
        rules = with_shots(self.rules, spec.task, shots)
        require_room(rules, self.policy.network, shots)
        evaluation.params = replace(evaluation.params, max_context_tokens=rules.max_context_tokens)
        if self._engine.capabilities.token_ids:
            require_shared_weights(
                self.saved, f"shots={shots} needs a longer context than the engine was made with"
            )
            play_inline(rules, self.policy.network, nullcontext, evaluation, batch)
        else:  # the server enforces its own limits
            with closing(Scheduler(rules, self._engine)) as scheduler:
                evaluation.collect(batch, replace(self, _scheduler=scheduler)._play_wave, 0)

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


def open_model(cfg: DictConfig, model_overrides: Sequence[str], folders: Sequence[str] = ()) -> OpenedModel:
    """Open the described model, to play the games of ``cfg.env`` with ``cfg.seed``.

    Games and other options are searched in ``conf`` and in these folders.

    Raises:
        ValueError: an option is invalid.
    """
    saved = compose_model_config(cfg, model_overrides, folders)
    load_task = find_games(cfg, saved, make_task_loader(folders))
    sections = ["model", "engine", "prompt", "dialect", "context", "env", "worlds", "rollout"]
    check_targets(OmegaConf.masked_copy(saved, sections))
    settings = instantiate_as(saved, "rollout", RolloutSettings)
    games = build_games(saved, load_task)
    if cfg.episodes == ALL:
        games = replace(games, test=choose_tasks(games.test, games.tasks, cfg.split))
    policy, rules, engine, sync = _open_parts(saved, games, settings)
    return OpenedModel(saved, settings, games, policy, sync, rules, engine, Scheduler(rules, engine))


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
    check_prompts(rules, is_local=policy.network is not None, max_reply_tokens=settings.max_reply_tokens)
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
) -> Path | None:
    games = "-".join(dict.fromkeys(record["env"] for record in records))
    file_stem = "".join(c if c.isalnum() or c in "-." else "-" for c in stage).strip(".")
    content: dict[str, Any] = {
        "config": {**describe_options(cfg), "described": describe_model(saved)},
        "results": records,
        **({"engine": used} if used else {}),
    }
    return write_results(FOLDER, f"{file_stem}_{cfg.split}_{games}_seed{cfg.seed}", content)


def describe_model(saved: DictConfig) -> Any:
    """Return the recorded description of the model.

    Server keys do not occur in it, only the names of their environment variables.
    """
    sections = ["model", "engine", "prompt", "dialect", "context", "worlds", "rollout"]
    return OmegaConf.to_container(OmegaConf.masked_copy(saved, sections), resolve=True)
