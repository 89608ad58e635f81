"""When the rollout callback plays, and when not."""

from __future__ import annotations

import re
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from lit_agentrl.callbacks import rollout
from lit_agentrl.callbacks.rollout import RolloutCallback


class Player:
    """Stands for collector, player and both evaluations, and notes what it is asked to play."""

    settings = None

    def __init__(self) -> None:
        self.played: list[Any] = []

    def collect(self, batch: Any, play: Any, *_: Any, **__: Any) -> dict[str, float]:
        for wave in range(2):
            play(wave, 0) if play == self.play_evaluation else play(wave)
        return {}

    def play_evaluation(self, wave: Any, version: int) -> None:
        self.played.append(wave)

    play_training = play_evaluation

    def begin_update(self, *_: Any) -> dict[str, float]:
        return {}


@pytest.mark.parametrize("hook", ["on_train_batch_start", "on_validation_batch_start", "on_test_batch_start"])
def test_nothing_more_is_played_once_sigterm_has_come(hook: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning only notes a signal that comes while nothing is played, and would play a whole evaluation."""
    player: Any = Player()
    callback = RolloutCallback(player, player, val=player, test=player)
    monkeypatch.setattr(rollout, "as_agent", lambda module: module)
    module: Any = SimpleNamespace(row={}, version=0, device="cpu")
    trainer: Any = SimpleNamespace(received_sigterm=False, current_epoch=0)
    batch: Any = SimpleNamespace(trajectories=None, given=None, episodes=[])
    getattr(callback, hook)(trainer, module, batch, 0)
    assert player.played == [0, 1]
    trainer.received_sigterm = True
    with pytest.raises(KeyboardInterrupt):
        getattr(callback, hook)(trainer, module, batch, 0)
    assert player.played == [0, 1]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("cut", r"100% of the replies were cut at rollout.max_reply_tokens=40.*raise the limit"),
        ("invalid", r"no reply was a valid action \(val/invalid_share\): .*algo=sft"),
    ],
)
def test_useless_replies_are_told_once(monkeypatch: pytest.MonkeyPatch, name: str, line: str) -> None:
    player: Any = Player()
    player.settings = SimpleNamespace(max_reply_tokens=40)
    callback = RolloutCallback(player, player, val=player, test=player)
    monkeypatch.setattr(rollout, "as_agent", lambda module: module)
    trainer: Any = SimpleNamespace(received_sigterm=False, current_epoch=0)
    for share, expected in ((0.8, 0), (1.0, 1), (1.0, 0)):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            callback.on_validation_end(trainer, SimpleNamespace(row={f"val/{name}_share": share}))  # type: ignore[arg-type]
        assert len(found) == expected
        if found:
            text = str(found[0].message)
            assert re.match(line, text)
            assert callback.warnings == [text]  # for the summary of the run
