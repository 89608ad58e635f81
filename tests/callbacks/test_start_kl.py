"""KL to the start: 0 at the start, the mean of k3 afterwards, and alike whether a KL term keeps the start or not."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf

from lit_agentrl.batch import StepBatch
from lit_agentrl.build.assembly import build
from lit_agentrl.callbacks.start_kl import StartKL
from lit_agentrl.config.composition import compose_job, make_task_loader
from lit_agentrl.models.lora import LEVELS
from lit_agentrl.models.routers import Routing
from lit_agentrl.update import microbatches
from lit_agentrl.update.networks import Networks
from lit_agentrl.update.settings import UpdateSettings
from tests.conftest import tiny_network


def measured(folder: Path, *overrides: str, moves: str = "") -> tuple[float, float, bool]:
    """Before and after weights of such a name are moved; and whether a copy of the network is held."""
    asked = ["env=bandit", "val.episodes=3", "test.episodes=0", "callbacks/start_kl=val", *overrides]
    cfg = compose_job("train", asked)
    OmegaConf.set_struct(cfg, False)
    cfg.run_dir, cfg.logger, cfg.trainer.enable_progress_bar = str(folder), {}, False
    cfg.callbacks = {"start_kl": cfg.callbacks.start_kl}
    run = build(cfg, make_task_loader())
    found = []
    for scale in (0.0, 0.03):
        with torch.no_grad():
            torch.manual_seed(0)
            for name, weight in run.module.policy.network.named_parameters():
                weight += scale * torch.randn_like(weight) * (moves in name and weight.requires_grad)
        run.trainer.validate(run.module, run.stream, verbose=False)
        found.append(run.module.row["val/start_kl"])
    (callback,) = [each for each in run.trainer.callbacks if isinstance(each, StartKL)]
    network = run.module.policy.network
    held = callback._networks.reference in (run.module.updater.networks.reference, network)
    return found[0], found[1], not held


@pytest.mark.slow
def test_it_is_0_at_the_start_and_grows(tmp_path: Path) -> None:
    start, moved, is_copied = measured(tmp_path, "algo/kl=none")
    assert start == 0 and 0.001 < moved < 10 and is_copied
    assert measured(tmp_path, "algo/kl=loss_k3", "val.temperature=1.0") == (0, moved, False)


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("level", LEVELS)
def test_of_two_adapters_each_is_measured_against_the_base(level: str, tmp_path: Path) -> None:
    """A level whose adapter alone has moved, and of which no copy is held."""
    options = ("algo=hrl_tar", "model/lora=levels", "model.lora.r=4", "algo/kl=none")
    start, moved, is_copied = measured(tmp_path, *options, moves=f".{level}.")
    assert start == 0 and 0.001 < moved < 10 and not is_copied


def test_a_rank_without_episodes_scores_with_the_others() -> None:
    """Scoring waits for all ranks, so a rank that left it out would be waited for without end."""
    network = tiny_network()
    callback, counts = StartKL(), []
    callback._networks = Networks(
        network, critic=None, reference=network, settings=UpdateSettings(packing=False),
        temperature=1.0, routing=Routing(),
    )  # fmt: skip
    trainer = SimpleNamespace(
        strategy=SimpleNamespace(barrier=None), precision_plugin=SimpleNamespace(forward_context=nullcontext)
    )
    module = SimpleNamespace(device=torch.device("cpu"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(microbatches, "max_count_over_ranks", lambda count, device: counts.append(count) or 1)
        callback.on_validation_batch_end(trainer, module, None, StepBatch(0, [], [], []))
    assert counts == [0, 0] and callback._sums.tolist() == [0, 0]


def test_values_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="episodes=0 must be a whole number >= 1"):
        StartKL(episodes=0)
    with pytest.raises(ValueError, match="temperature=-1 must be >= 0"):
        StartKL(temperature=-1)
