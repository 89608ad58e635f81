"""Text files in the run folder with what a structure has learnt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer

from lit_agentrl.files import write_atomic


class Notes(Callback):
    """Callback that writes ``NAME/iteration_K.txt`` after an iteration that changed the text.

    Args:
        folder: the run folder.
        texts: returns the current texts by name; see `StructureHook.make_notes`.
    """

    def __init__(self, folder: str | Path, texts: Callable[[], Mapping[str, str]]) -> None:
        self._folder, self._get_texts = Path(folder), texts
        self._written: dict[str, str] = {}

    def rewind(self, iterations: int) -> None:
        """Delete texts that an earlier launch wrote after ``iterations`` iterations; see `Rewinds`."""
        for name in self._get_texts():
            for file in (self._folder / name).glob("iteration_*.txt"):
                number = file.stem.removeprefix("iteration_")
                if number.isdecimal() and int(number) > iterations:
                    file.unlink(missing_ok=True)  # missing if another rank has deleted it

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the texts that are already written."""
        self._written = dict(self._get_texts())

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the texts that have changed."""
        for name, text in self._get_texts().items():
            if text != self._written.get(name) and trainer.is_global_zero:
                write_atomic(self._folder / name / f"iteration_{trainer.current_epoch + 1}.txt", text)
            self._written[name] = text
