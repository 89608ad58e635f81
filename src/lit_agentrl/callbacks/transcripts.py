"""Transcripts of a few episodes: all tokens as JSON lines, and turns in TensorBoard."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_only

from lit_agentrl.batch import StepBatch
from lit_agentrl.callbacks.markup import Decode, format_episode
from lit_agentrl.callbacks.options import check_transcripts
from lit_agentrl.callbacks.token_notes import UpdateNotes, list_texts
from lit_agentrl.callbacks.transcript_lines import to_line
from lit_agentrl.distributed import gather_objects
from lit_agentrl.episode import Episode
from lit_agentrl.files import append_durable, read_complete_lines, remove_leftover, write_atomic
from lit_agentrl.modules.contract import Agent, Trained
from lit_agentrl.text.dialects.answer import ANSWER
from lit_agentrl.text.dialects.base import Dialect

_log = logging.getLogger(__name__)


def pick(episodes: Sequence[Episode], number: int) -> list[Episode]:
    """Pick the first episodes of groups, with a success and a failure if both exist.

    The choice depends on the episodes alone, not on the order in which they finished.
    """
    ordered = sorted(episodes, key=lambda e: (e.member, e.wave, e.group))
    picked = ordered[:number]
    for wanted in (True, False):
        if number > 1 and all(e.success != wanted for e in picked):
            picked[-1:] = [e for e in ordered if e.success == wanted][:1] or picked[-1:]
    return picked


class Transcripts(Callback):
    """Callback that writes a few episodes to ``train.jsonl``, ``val.jsonl`` and TensorBoard's TEXT tab.

    For training, it writes the first and every ``every``-th iteration; for validation, the first batch of each game,
    once per iteration.  ``iteration`` counts completed iterations as in ``metrics.csv``; 0 is the start.  The best
    weights, which are measured again at the end, are not shown again.  The files are rewound on resume.  If the
    module is an `Agent`, the text of forced tokens is shown; otherwise they are counted.

    Args:
        dirpath: the run's transcript folder.
        every: iterations between transcripts of training.
        episodes: number of episodes per batch.
        dialect: format of replies.
    """

    def __init__(
        self, dirpath: str | Path, every: int = 10, episodes: int = 4, dialect: Dialect = ANSWER
    ) -> None:
        check_transcripts(every=every, episodes=episodes)
        self.folder = Path(dirpath)
        self.every = every
        self.episodes = episodes
        self._dialect = dialect
        self._games_seen: set[str] = set()  # in the current validation
        self._notes = UpdateNotes()
        self._written: set[tuple[int, str]] | None = None  # iterations and tags in the files

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Drop the lines of iterations that the run will repeat."""
        self.rewind(trainer.current_epoch)

    @rank_zero_only
    def rewind(self, iterations: int) -> None:
        """Drop lines after ``iterations`` completed iterations (−1: all), and damaged ones with a warning."""
        self._written = set()
        for split in ("train", "val"):
            path = self.folder / f"{split}.jsonl"
            lines, is_torn = read_complete_lines(path)
            entries = [(line, key) for line in lines if (key := _parse_key(line)) is not None]
            if is_torn or len(entries) < len(lines):
                _log.warning("%s: dropped an incomplete line of an interrupted write", path)
            entries = [(line, key) for line, key in entries if key[0] <= iterations]
            if is_torn or len(entries) < len(lines):
                write_atomic(path, "".join(f"{line}\n" for line, _ in entries))
            remove_leftover(path)
            self._written |= {key for _, key in entries}

    def _is_due(self, iteration: int) -> bool:
        return iteration == 1 or iteration % self.every == 0

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: StepBatch, batch_idx: int
    ) -> None:
        """Ask the update for its rows, in iterations that are written."""
        if self._is_due(trainer.current_epoch + 1) and isinstance(pl_module, Trained):
            pl_module.updater.observe = self._notes.keep

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: StepBatch, batch_idx: int
    ) -> None:
        """Write episodes of the first and every ``every``-th iteration."""
        iteration = trainer.current_epoch + 1
        if not self._is_due(iteration):
            return
        # each rank picks among its own; rank 0 then makes the choice that a single process would
        own_episodes, notes = pick(batch.episodes, self.episodes), {}
        if isinstance(pl_module, Trained):
            notes = {
                _identify(episode): {"update": self._notes.describe(episode)} for episode in own_episodes
            }
            pl_module.updater.observe = None
            self._notes.clear()
        notes = dict(gather_objects(list(notes.items())))
        self._write(trainer, pl_module, gather_objects(own_episodes), iteration, "train", notes)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reset the games seen, so that every game is shown again."""
        self._games_seen.clear()

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: StepBatch, batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        """Write episodes of each game that this validation has not yet shown."""
        is_fitting = trainer.state.fn == TrainerFn.FITTING
        if trainer.ckpt_path and not is_fitting:  # weights of another iteration
            return
        iteration = trainer.current_epoch + int(is_fitting)
        for game in sorted({outcome.task_name for outcome in batch.outcomes} - self._games_seen):
            self._games_seen.add(game)
            episodes = [episode for episode in batch.episodes if episode.task_name == game]
            picked = gather_objects(pick(episodes, self.episodes))
            self._write(trainer, pl_module, picked, iteration, f"val/{game}")

    def _write(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        episodes: Sequence[Episode],
        iteration: int,
        tag: str,
        notes: Mapping[tuple[int, ...], Mapping[str, Any]] | None = None,
    ) -> None:
        picked = pick(episodes, self.episodes)
        if not trainer.is_global_zero or not picked:
            return
        tokenizer: Any = pl_module.policy.tokenizer if isinstance(pl_module, Agent) else None
        split = tag.split("/")[0]
        lines = []
        for episode in picked:
            texts = {} if tokenizer is None else {"texts": list_texts(episode, tokenizer)}
            update_notes = (notes or {}).get(_identify(episode), {})
            lines.append(to_line(episode, iteration, split, {**texts, **update_notes}))
        if not self._write_lines(lines, iteration, tag):
            return
        decode: Decode | None = tokenizer.decode if tokenizer is not None else None
        text = "\n\n---\n\n".join(format_episode(episode, decode, self._dialect) for episode in picked)
        for logger in trainer.loggers:
            experiment = getattr(logger, "experiment", None)
            if experiment is not None and hasattr(experiment, "add_text"):
                experiment.add_text(f"transcripts/{tag}", text, iteration)

    def _write_lines(self, lines: Sequence[str], iteration: int, tag: str) -> bool:
        """Write lines, replacing those of the same iteration; return False if they exist already.

        Duplicates occur because the last weights are validated after training, even if the last iteration was
        validated, and again whenever a finished run is resumed.
        """
        if self._written is None:
            self.rewind(sys.maxsize)  # drops at most a damaged line
        assert self._written is not None
        path = self.folder / f"{tag.split('/')[0]}.jsonl"
        if (iteration, tag) not in self._written:
            append_durable(path, "".join(lines))
            self._written.add((iteration, tag))
            return True
        old = [(f"{line}\n", _parse_key(line) == (iteration, tag)) for line in read_complete_lines(path)[0]]
        if [line for line, is_same in old if is_same] == list(lines):
            return False
        write_atomic(path, "".join([*(line for line, is_same in old if not is_same), *lines]))
        return True


def _identify(episode: Episode) -> tuple[int, ...]:
    return episode.wave, episode.group, episode.member, int(episode.source)


def _parse_key(line: str) -> tuple[int, str] | None:
    """Parse the iteration and the tag of a line; return None if it is damaged."""
    try:
        record = json.loads(line)
        split = record["split"]
        tag = split if split == "train" else f"{split}/{record['episode']['task_name']}"
        return int(record["iteration"]), tag
    except (ValueError, KeyError, TypeError):
        return None
