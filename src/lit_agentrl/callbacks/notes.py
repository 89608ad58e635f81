"""What a structure has learnt, as texts in the run folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer

from lit_agentrl.files import write_atomic


class Notes(Callback):
    """Writes ``NAME/iteration_K.txt`` when an iteration has ended whose text is not that of the one before.

    Args:
        folder: the run folder.
        texts: gives them, by name; see `Structure.notes`.
    """

    def __init__(self, folder: str | Path, texts: Callable[[], Mapping[str, str]]) -> None:
        self._folder, self._texts = Path(folder), texts
        self._written: dict[str, str] = {}

    def rewind(self, iterations: int) -> None:
        """Drop those of later iterations, which an earlier launch has left; see `Rewinds`."""
        for name in self._texts():
            for file in (self._folder / name).glob("iteration_*.txt"):
                number = file.stem.removeprefix("iteration_")
                if number.isdecimal() and int(number) > iterations:
                    file.unlink(missing_ok=True)  # each rank comes here

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Know what is written already."""
        self._written = dict(self._texts())

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write what has changed."""
        for name, text in self._texts().items():
            if text != self._written.get(name) and trainer.is_global_zero:
                write_atomic(self._folder / name / f"iteration_{trainer.current_epoch + 1}.txt", text)
            self._written[name] = text
