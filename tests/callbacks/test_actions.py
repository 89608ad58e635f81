"""What follows an alarm, in a toy run: weights and rates, numbers that turn; an interrupt changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer

from lit_agentrl.callbacks.checkpoints import BestCheckpoint, LastCheckpoint
from lit_agentrl.callbacks.iteration_log import IterationLog
from lit_agentrl.callbacks.rollout import RolloutCallback
from lit_agentrl.monitor.actions import Action, Stop
from lit_agentrl.monitor.callback import CollapseMonitor
from lit_agentrl.monitor.rollback import Rollback
from lit_agentrl.monitor.rules import Rule
from lit_agentrl.report.table import Metrics
from lit_agentrl.rl.policy.filters import top_std

Launch = Callable[..., Trainer]
SCORES = {2: 0.8, 4: 0.9, 6: 0.2, 8: 0.2, 10: 0.9, 12: 0.2, 14: 0.2, 16: 0.2, 18: 0.2}
WORDS = "rolled back to iteration {} ({} of at most 2 times), learning rate {}"


def trained(toy_module: Any, *terms: Any) -> Any:
    """A toy with what an action asks of a module, whose rate a schedule would leave as it is."""
    module = toy_module(SCORES)
    objective = SimpleNamespace(trains=True, terms=lambda: terms)
    module.updater = SimpleNamespace(objective=objective, progress=SimpleNamespace(version=0))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    module.configure_optimizers = lambda: [{"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule}}]
    return module


def callbacks(folder: Path, action: Action) -> list[Any]:
    rules = {"validation": Rule("val/success", below=0.5, reference="peak", patience=2)}
    last = folder / "checkpoints"
    return [CollapseMonitor(rules, action), IterationLog(), BestCheckpoint(last), LastCheckpoint(last)]


@pytest.mark.slow
def test_weights_go_back_the_rate_falls_and_iterations_go_on(
    launch: Launch, toy_module: Any, tmp_path: Path, stop_at: Any
) -> None:
    alone = trained(toy_module)
    weights: dict[int, Any] = {}
    module = trained(toy_module)
    module.on_train_epoch_start = lambda: weights.update(
        {module.trainer.current_epoch: [p.detach().clone() for p in module.parameters()]}
    )
    mine = callbacks(tmp_path / "a", Rollback(at_most=2))
    trainer = launch(tmp_path / "a", 18, mine, module=module)
    told = [line for line in mine[0].warnings if "rolled" in line]
    assert told == [
        "before iteration 9: " + WORDS.format(4, 1, 0.05),
        "before iteration 15: " + WORDS.format(10, 2, 0.025),
    ]
    assert trainer.current_epoch == 18 and mine[0].has_stopped  # the third alarm, at 18
    assert all(map(torch.equal, weights[4], weights[8])) and not torch.equal(weights[7][0], weights[8][0])
    assert trainer.optimizers[0].param_groups[0]["lr"] == 0.025 and module.updater.progress.version == 2
    # the same, interrupted while the weights are still those of before the action, and again after it
    folder = tmp_path / "b"
    for at in (9, 12):
        with pytest.raises(RuntimeError):
            stopping = [*callbacks(folder, Rollback(at_most=2)), stop_at(at, RuntimeError())]
            launch(folder, 18, stopping, module=trained(toy_module))
    again = callbacks(folder, Rollback(at_most=2))
    launch(folder, 18, again, module=alone)
    assert all(map(torch.equal, module.parameters(), alone.parameters()))
    assert again[0].warnings == mine[0].warnings
    tables = [Metrics.read(tmp_path / at / "metrics.csv") for at in "ab"]
    for name in ("train/loss", "collapse/rollbacks"):
        assert tables[0][name] == tables[1][name], name


def rollouts(**constants: Any) -> Any:
    """A rollout callback with this filter; it plays nothing here."""
    found = object.__new__(RolloutCallback)
    found.collector = SimpleNamespace(select_groups=partial(top_std, **constants))  # type: ignore[assignment]
    return found


@pytest.mark.parametrize(
    ("make", "terms", "message"),
    [
        (lambda: Rollback(lr_factor=0.0), (), r"lr_factor=0.0 must be in \(0, 1\]; 1 keeps the rate"),
        (lambda: Rollback(), (), r"val.every=2 of trainer.max_epochs=2 validates none before the last"),
        (
            lambda: CollapseMonitor({}, Stop(["nois"])).action,
            (),
            "action.rules=nois must be names of rules of the monitor",
        ),
    ],
)
def test_an_action_that_cannot_act_is_refused_at_start(
    toy_module: Any, make: Callable[[], Action], terms: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        trainer: Any = SimpleNamespace(
            callbacks=[rollouts(ratio=0.5)], strategy=SimpleNamespace(barrier=None), max_epochs=2
        )
        trainer.check_val_every_n_epoch = 2
        make().setup(trainer, trained(toy_module, *terms))


def test_alarms_of_other_rules_have_no_consequence(launch: Launch, toy_module: Any, tmp_path: Path) -> None:
    mine = callbacks(tmp_path, Stop([]))
    trainer = launch(tmp_path, 8, mine, module=toy_module(SCORES))
    assert trainer.current_epoch == 8 and len(mine[0].warnings) == 1 and not mine[0].has_stopped
