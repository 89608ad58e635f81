"""A reward model that is trained from another one keeps its head (PMP)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lit_agentrl.models.heads import ScoreHead
from lit_agentrl.models.policy import load_pretrained
from lit_agentrl.models.reward_model import WEIGHTS, load_head
from tests.rewards.test_model import model, network, of_heads


def head_of(hf: Path, **options: object) -> tuple[bool, torch.Tensor]:
    """Whether the head of a folder was loaded, and the weights after it; the new head has another seed."""
    head = ScoreHead(network().network.config.hidden_size, seed=7, heads=options.pop("count", None))  # type: ignore[arg-type]
    loaded = load_head(str(hf), head, **{"kind": "score", **options})  # type: ignore[arg-type]
    return loaded, head.linear.weight.detach()


def test_the_head_of_the_same_kind_goes_on_and_another_is_new(tmp_path: Path) -> None:
    hf = Path(model(tmp_path, seed=3)) / "hf"
    expected, new = (
        ScoreHead(network().network.config.hidden_size, seed=seed).linear.weight for seed in (3, 7)
    )
    loaded, weight = head_of(hf)
    assert loaded and torch.equal(weight, expected) and not torch.equal(weight, new)
    for place, options in (
        (hf, {"kind": "logit"}),
        (hf, {"heads": ["a"]}),
        (tmp_path, {}),
        (Path("nano"), {}),
    ):
        loaded, weight = head_of(place, **options)
        assert not loaded and torch.equal(weight, new)
    several = Path(of_heads(tmp_path)) / "hf"
    assert (
        head_of(several, heads=["b", "a"], count=2)[0] and not head_of(several, heads=["a", "b"], count=2)[0]
    )
    (hf / WEIGHTS).write_bytes(b"x")
    with pytest.raises(ValueError, match="model.name=.*cannot be loaded .*; train the model again"):
        head_of(hf)


def test_a_module_for_training_takes_it_over(tmp_path: Path) -> None:
    from hydra.utils import instantiate

    from lit_agentrl.modules.reward import RewardModule
    from lit_agentrl.update.settings import OptimSettings, UpdateSettings
    from tests.rl.test_algo_configs import composed

    hf = Path(model(tmp_path, seed=3)) / "hf"
    policy = load_pretrained(str(hf))
    objective = instantiate(composed("algo=bradley_terry").algo)
    heads = {}
    for name in (str(hf), "elsewhere"):
        module = RewardModule(
            replace(policy, name=name),
            objective=objective,
            seed=7,
            update=UpdateSettings(),
            optim=OptimSettings(optimizer=torch.optim.SGD, lr=0.1),
        )
        assert module.head is not None
        heads[name] = module.head.linear.weight.detach()
    expected = ScoreHead(policy.network.config.hidden_size, seed=3).linear.weight
    assert torch.equal(heads[str(hf)], expected) and not torch.equal(heads["elsewhere"], expected)
