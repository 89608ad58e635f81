"""Evaluation of a run's policy on games, splits and temperatures, with reference levels and intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from omegaconf import DictConfig, open_dict
from transformers import PreTrainedModel

from lit_agentrl import screen
from lit_agentrl.batch import StepBatch
from lit_agentrl.build.assembly import Run, build
from lit_agentrl.build.critics import set_beta
from lit_agentrl.build.games import TaskLoader, has_world
from lit_agentrl.build.instantiation import load_other_engine
from lit_agentrl.build.structure import build_algorithm
from lit_agentrl.config.composition import load_option
from lit_agentrl.config.errors import UserError
from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.engines.native.support import require_positions
from lit_agentrl.episode import Episode, Outcome
from lit_agentrl.evaluate import best_of_n, diagnostics
from lit_agentrl.evaluate.all_tasks import ALL, choose_tasks
from lit_agentrl.evaluate.baselines import GREEDY, START, make_records
from lit_agentrl.evaluate.options import as_list, check_options, find_checkpoint, list_shots
from lit_agentrl.evaluate.replay import load_weights, replay_episodes, require_shared_weights
from lit_agentrl.evaluate.results_file import can_write, describe_options, read_compared, write_results
from lit_agentrl.evaluate.rivals import add_ratings, require_rivals
from lit_agentrl.evaluate.score_table import build_table
from lit_agentrl.evaluate.scores import Scores, warn_of_cut_replies
from lit_agentrl.evaluate.variants import find_games
from lit_agentrl.rl.objective import SCORES
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.settings import make_eval_params
from lit_agentrl.rollout.shots import with_shots
from lit_agentrl.runs.finished import note_if_unfinished
from lit_agentrl.runs.record import Totals
from lit_agentrl.runs.run_folder import require_idle


def evaluate(cfg: DictConfig, saved: DictConfig, load_task: TaskLoader, *, folder: Path) -> Scores:
    """Play ``episodes`` tasks of each game, and write the scores under ``evaluations/``.

    Args:
        cfg: the composed ``conf/evaluate.yaml``.
        saved: the run's own config, with ``folder`` as its run folder.
        load_task: finds the config of a game by name.
        folder: the run folder.

    Raises:
        UserError: an option is out of range, a checkpoint does not exist, or the run is still training.
    """
    require_idle("run", folder)
    check_options(cfg)
    temperatures = as_list(cfg.temperature)
    shots, compared = list_shots(cfg), read_compared(cfg)
    require_rivals(cfg, compared)
    checkpoint = find_checkpoint(cfg, folder)
    note_if_unfinished(folder)
    totals = Totals()
    totals.ignore_checkpoints()
    announcer = Announcer(keeps_episodes=cfg.diagnostics or bool(cfg.best_of))
    run = rebuild_run(cfg, saved, load_task, extra_callbacks=[totals, announcer])
    if cfg.episodes == ALL:
        run.games = replace(run.games, test=choose_tasks(run.games.test, run.games.tasks, cfg.split))
        run.stream.test = run.games.test
    if cfg.diagnostics:
        diagnostics.check_run(run)
    if any(shots):
        require_shared_weights(run.cfg, f"shots={max(shots)} of a run needs its own network")
    chooser = best_of_n.load_chooser(cfg, run.module.policy.tokenizer)
    target_folder = folder / "evaluations"
    is_writable = can_write(target_folder)
    names = [run.games.tasks[spec.task].name for spec in run.games.test]
    sampling = [make_eval_params(run.rollouts.settings, float(value), "evaluate") for value in temperatures]

    def play(
        params: SamplingParams, path: Path | None, by: str = "", members: int = cfg.members
    ) -> list[Outcome]:
        count = ALL if cfg.episodes == ALL else cfg.episodes * members
        played = screen.describe_episodes(names, count)
        announcer.text = f"playing {played}{by}, split {cfg.split}, temperature {params.temperature:g}"
        run.rollouts.test = replace(run.rollouts.test, split=cfg.split, params=params, members=members)
        with screen.show_playing():
            run.trainer.test(
                run.module, run.stream, verbose=False, weights_only=True,
                ckpt_path=None if path is None else str(path),
            )  # fmt: skip
        return run.rollouts.test.outcomes

    stage = checkpoint.stem if checkpoint is not None else "start"
    baseline_outcomes = _play_baselines(cfg, sampling, play, checkpoint)
    if 0 not in shots:
        load_weights(run.module, checkpoint)
    records = []
    for number, params in enumerate(sampling):
        outcomes = []
        if 0 in shots:
            outcomes = play(params, None if number else checkpoint)  # the weights are loaded once
        else:
            run.rollouts.test = replace(
                run.rollouts.test, split=cfg.split, params=params, members=cfg.members
            )
        for index in range(len(names)):
            records += _compute_records(
                run, cfg, index, params, outcomes, baseline_outcomes[number], announcer.episodes, chooser,
                model=f"{stage} weights",
            )  # fmt: skip
    name = f"{stage}_{cfg.split}_{'-'.join(dict.fromkeys(r['env'] for r in records))}_seed{cfg.seed}"
    used = dict(totals.used)
    content = {"config": describe_options(cfg), "results": records} | ({"engine": used} if used else {})
    path = write_results(target_folder, name, content) if is_writable else None
    if cfg.ratings:
        add_ratings([*records, *compared])
    warn_of_cut_replies(records, run.rollouts.settings.max_reply_tokens)
    return Scores(records, [path] if path else [], build_table(cfg, [*records, *compared], used), used)


def _play_baselines(
    cfg: DictConfig,
    sampling: Sequence[SamplingParams],
    play: Callable[..., list[Outcome]],
    checkpoint: Path | None,
) -> list[dict[str, Sequence[Outcome] | None]]:
    """Play the baselines ``start`` and ``greedy`` for each set of sampling parameters.

    A baseline is None if it equals the evaluated policy.
    """
    if not cfg.baselines:
        return [{} for _ in sampling]
    starts = [None if checkpoint is None else play(params, None, " by the start") for params in sampling]
    is_sampled = [params.temperature > 0 for params in sampling]
    greedy = None
    if any(is_sampled):
        greedy = play(replace(sampling[0], temperature=0.0), checkpoint, members=1)
    return [
        {START: start, GREEDY: greedy if sampled else None}
        for start, sampled in zip(starts, is_sampled, strict=True)
    ]


def _compute_records(
    run: Run, cfg: DictConfig, index: int, params: SamplingParams, outcomes: Sequence[Outcome],
    others: Mapping[str, Sequence[Outcome] | None], episodes: Sequence[Episode], chooser: best_of_n.Chooser | None,
    *, model: str,
) -> list[dict[str, Any]]:  # fmt: skip
    """Compute the records of the ``index``-th game from the outcomes of all games."""
    task = run.games.tasks[run.games.test[index].task]
    outcomes_of_game = [outcome for outcome in outcomes if outcome.task_name == task.name]
    (batch,) = run.stream.test_dataloader()[index]
    by_shots = {
        shots: (_play_after_shots(run, shots, index, params) if shots else outcomes_of_game, None)
        for shots in list_shots(cfg)
    }
    records = make_records(
        cfg, task, batch, by_shots, model=model, temperature=params.temperature, others=others
    )
    played = [episode for episode in episodes if episode.task_name == task.name]
    if chooser is not None:
        records[0] |= chooser.record(cfg.best_of, played)
    if cfg.diagnostics:
        records[0]["thoughts"] = diagnostics.diagnose(run, task.name, played, params, seed=cfg.seed)
    return records


def _play_after_shots(run: Run, shots: int, index: int, params: SamplingParams) -> Sequence[Outcome]:
    """Play the ``index``-th game again, with solved episodes in the prompt."""
    task = run.games.test[index].task
    name = run.games.tasks[task].name
    screen.announce(
        f"playing {name} after {shots} solved episode{'s' * (shots != 1)}, temperature {params.temperature:g}"
    )
    rules = with_shots(run.rules, task, shots)
    require_room(rules, run.module.policy.network, shots)
    with screen.show_playing():
        return replay_episodes(run, name, rules, replace(params, max_context_tokens=rules.max_context_tokens))


def require_room(rules: Rules, network: PreTrainedModel | None, shots: int) -> None:
    """Refuse a prompt with solved episodes that exceeds the network's positions.

    Raises:
        UserError: the message says how many positions there are.
    """
    try:
        require_positions(network, rules.max_context_tokens)
    except ValueError as error:
        reason = str(error).removesuffix("lower it")
        raise UserError(f"shots={shots} makes episodes longer: {reason}lower shots") from error


class Announcer(Callback):
    """Callback that announces what is played, after the weights are loaded.

    Args:
        keeps_episodes: whether ``episodes`` keeps the episodes until the next test.
    """

    text = ""

    def __init__(self, *, keeps_episodes: bool = False) -> None:
        self._keeps_episodes = keeps_episodes
        self.episodes: list[Episode] = []

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        screen.announce(self.text)
        self.episodes = []

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: StepBatch, *indices: int
    ) -> None:
        self.episodes += batch.episodes if self._keeps_episodes else []


# settings of training that an evaluation replaces by defaults
_REPLACED = (("strategy", "single"), ("worker", "none"), ("data", "rollouts"), ("reference", "start"))


def rebuild_run(
    cfg: DictConfig, saved: DictConfig, load_task: TaskLoader, *, extra_callbacks: Sequence[Callback] = ()
) -> Run:
    """Rebuild a finished run on one device, with ``seed``, ``episodes`` and ``env`` of ``cfg``.

    Raises:
        UserError: the run trained a reward model, or neither the run nor ``cfg`` names a world.
    """
    if build_algorithm(saved)[0].reads == SCORES:
        raise UserError(
            f"run={cfg.run} trained a reward model, which plays nothing: its scores are in summary.json, and "
            "train.py uses it as reward=model reward.model.path=RUN"
        )
    if not has_world(saved) and cfg.env is None:
        raise UserError(
            f"run={cfg.run} names no world: it was judged by held-out data, whose scores are in its summary.json; name "
            f"the one to play with env=WORLD, or read what the model writes with transformers, as "
            f"{cfg.run}/hf/README.md shows"
        )
    with open_dict(saved):
        if not has_world(saved):
            saved.env = load_task(str(as_list(cfg.env)[0]))
        saved.seed = cfg.seed
        saved.callbacks, saved.logger = {}, {}
        saved.reward = {}  # rewards of training are not needed; a reward model may be gone
        saved.test.episodes = 1 if cfg.episodes == ALL else cfg.episodes
        if cfg.env is not None:
            saved.test.envs = [str(name) for name in as_list(cfg.env)]
        elif saved.test.envs is None and saved.val.envs is not None:
            saved.test.envs = saved.val.envs
        load_task = find_games(cfg, saved, load_task)
        saved.trainer.enable_progress_bar = False
        for group, name in _REPLACED:
            saved[group] = load_option(group, name)
        saved.trainer.devices = saved.trainer.num_nodes = 1
        if saved.trainer.get("accelerator") != "cpu":
            saved.trainer.accelerator = "auto"
        saved.rollout.overlap = False
        if cfg.get("beta") is not None:
            set_beta(cfg.beta, saved)
        if cfg.get("engine") is not None:
            saved.engine = load_other_engine(cfg, saved)
    return build(saved, load_task, extra_callbacks=extra_callbacks)
