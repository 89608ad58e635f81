"""What makes an update fast changes none of its numbers, and passes that nobody needs are not made."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.update.microbatches import split_by_tokens, split_packed
from lit_agentrl.update.settings import UpdateSettings
from scripts.bench.update_step import CountWaits
from tests.conftest import thinned
from tests.rl.ragged import fresh
from tests.update.bare import BareModule, build, float64, gradient, off_policy, step

MIXES = ["grpo", "ppo", "ppo shared", "gspo", "grpo kl=loss_k3", "gvpo"]
# python -m scripts.bench.update_speed records the like: lengths of 64 episodes of the shipped policy
FROZEN_LAKE = [
    90, 47, 86, 176, 182, 43, 184, 49, 96, 92, 231, 88, 188, 92, 184, 47, 184, 229, 227, 141, 227, 227, 145, 231,
    45, 41, 41, 131, 94, 231, 141, 231, 182, 231, 88, 233, 49, 43, 90, 145, 88, 221, 90, 131, 188, 225, 41, 96,
    133, 131, 47, 88, 45, 90, 41, 184, 227, 225, 231, 227, 139, 98, 188, 240,
]  # fmt: skip
SOKOBAN = [
    380, 381, 381, 310, 381, 310, 379, 371, 235, 308, 235, 148, 312, 312, 223, 375, 371, 235, 379, 383, 308, 235,
    373, 377, 293, 364, 301, 358, 364, 227, 385, 361, 374, 362, 225, 371, 150, 359, 363, 361, 359, 310, 235, 308,
    379, 381, 382, 308, 314, 237, 381, 308, 305, 371, 376, 308, 154, 150, 77, 310, 308, 229, 308, 227,
]  # fmt: skip


def batch(distance: float = 1.0) -> TrajectoryBatch:
    """Made anew: a cached one would keep the precision of whichever test came first."""
    return off_policy.__wrapped__(distance=distance)


def made(mix: str, **update: Any) -> BareModule:
    name, *changes = mix.split()
    is_shared = "shared" in changes
    return build(
        fresh(name, *(c for c in changes if c != "shared")),
        critic="shared" if is_shared else "separate",
        **update,
    )


@cache
def plain(mix: str) -> torch.Tensor:
    with float64():
        module = made(mix, packing=False)
        step(module, batch())
        return gradient(module)


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize(
    "how",
    thinned(
        [
            {"packing": "shared"},
            {"packing": "shared", "tokens_per_microbatch": 60},
            {"packing": "shared", "tokens_per_microbatch": 1},
            {"packing": True},
            {"packing": True, "tokens_per_microbatch": 60},
            {"packing": True, "tokens_per_microbatch": 1},
            {"logits_chunk": 7},
            {"logits_chunk": None},
            {"packing": False, "tokens_per_microbatch": 60},
            {"packing": False, "checkpoint_activations": True, "tokens_per_microbatch": 60},
            {"checkpoint_activations": True, "tokens_per_microbatch": 60},
            {"checkpoint_activations": True, "packing": True, "logits_chunk": 5, "tokens_per_microbatch": 60},
            {"lanes": 2, "tokens_per_microbatch": 60},
            {"lanes": 3, "tokens_per_microbatch": 1},
            {"lanes": 2, "packing": False, "checkpoint_activations": True, "tokens_per_microbatch": 60},
        ]
    ),
    ids=lambda how: " ".join(f"{k}={v}" for k, v in how.items()),
)
def test_the_gradient_stays(mix: str, how: dict[str, Any]) -> None:
    expected = plain(mix)
    with float64():
        module = made(mix, **how)
        step(module, batch())
        found = gradient(module)
    assert (found - expected).norm() <= 1e-9 * expected.norm() and expected.norm() > 0
    packing = how.get("packing", "auto")
    assert module.updater.networks.form == {True: "packed", False: "padded"}.get(packing, "shared")
    is_split = how.get("tokens_per_microbatch") == 1  # each row alone
    is_shared = module.updater.networks.form == "shared" and (
        not is_split or mix == "gvpo"
    )  # groups stay together
    assert (module.row["train/shared_token_share"] > 0) == is_shared


def test_what_rows_begin_alike_in_is_computed_once_on_a_cpu_unless_told_otherwise() -> None:
    forms = [made("grpo", **how).updater.networks.form for how in ({}, {"packing": True}, {"packing": False})]
    assert forms == ["shared", "packed", "padded"]


def test_packing_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lit_agentrl.update.scoring.enable_packing", lambda network, **_: "it is odd")
    for packing, name in ((True, "true"), ("shared", "shared")):
        with pytest.raises(ValueError, match=f"^update.packing={name} does not fit this model: it is odd"):
            made("grpo", packing=packing)
    assert made("grpo").updater.networks.form == "padded"  # auto


def test_auto_is_what_it_was_where_no_memory_is_planned() -> None:
    settings = UpdateSettings(tokens_per_microbatch="auto", logits_chunk="auto")  # type: ignore[arg-type]
    assert settings == UpdateSettings() and (settings.tokens_per_microbatch, settings.logits_chunk) == (
        2048,
        1024,
    )


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("tokens_per_microbatch", "all"),
        ("packing", "yes"),
        ("packing", 1),
        ("logits_chunk", 0),
        ("logits_chunk", 1.5),
        ("lanes", 0),
        ("lanes", 257),
        ("checkpoint_activations", 1),
    ],
)
def test_options_out_of_range(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{option}={value} "):
        UpdateSettings(**{option: value})


@pytest.mark.parametrize("lengths", [[23] * 58 + [17] + [23] * 5, FROZEN_LAKE, SOKOBAN], ids=len)
@pytest.mark.parametrize("budget", [2048, 4096])
def test_padding_share_of_recorded_episodes(lengths: list[int], budget: int) -> None:
    lengths_B = torch.tensor(lengths)
    parts = split_by_tokens(lengths_B, budget)
    padded = sum(len(part) * int(lengths_B[part].max()) for part in parts)
    assert sorted(torch.cat(parts).tolist()) == list(range(len(lengths)))
    assert 1 - sum(lengths) / padded <= 0.1
    packed = split_packed(lengths_B, budget)
    assert sorted(torch.cat(packed).tolist()) == list(range(len(lengths)))
    assert max(int(lengths_B[part].sum()) for part in packed) <= budget
    assert len(packed) <= -(-sum(lengths) // budget) + 1


# passes over all rows in one iteration: through the policy, the reference, the critic's trunk
PASSES = {
    "grpo": (1, 0, 0),  # the sampler's own log-probs are the old ones
    "grpo kl=loss_k3": (1, 1, 0),
    "grpo correction=truncated": (2, 0, 0),
    "ppo": (1, 0, 2),  # old values, and those with gradient
    "ppo shared": (2, 0, 0),  # old values; those with gradient come from the policy's own pass
    "starpo": (1, 1, 2),  # its KL needs the reference
}


@pytest.mark.parametrize("mix", PASSES)
def test_passes_that_nobody_needs_are_not_made(mix: str) -> None:
    module = made(mix, tokens_per_microbatch=10**6, packing=False)
    calls: Counter[str] = Counter()

    def count(name: str, network: nn.Module) -> None:
        network.register_forward_hook(lambda *_: calls.update([name]))

    count("policy", module.network.base_model)
    for reference in module.updater.networks.frozen:
        count("reference", reference.base_model)
    if module.critic is not None and module.critic.trunk is not None:
        count("critic", module.critic.trunk)
    step(module, batch())
    parts = len(split_by_tokens(batch().is_real_BT.sum(1), 10**6))
    found = tuple(calls[name] / parts for name in ("policy", "reference", "critic"))
    assert found == PASSES[mix]


CHECKED = {"gspo", "gvpo"}  # that look for rows of one trajectory in each micro-batch


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("packing", [True, "shared"])
def test_micro_batches_ask_the_device_for_no_number(
    mix: str, packing: bool | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, waits, parts = made(mix, tokens_per_microbatch=60, packing=packing), CountWaits(), []
    stepper = module.updater._stepper
    microbatch = stepper._compute_loss

    def counted(*args: Any) -> Any:
        parts.append(1)
        with waits:
            return microbatch(*args)

    monkeypatch.setattr(stepper, "_compute_loss", counted)
    step(module, batch())
    assert len(parts) > 3 and (mix in CHECKED or not waits.found)
    waits.found.clear()
    with waits:
        float(torch.ones(()))
        torch.ones(2)[torch.tensor([True, False])]
    assert waits.found == ["aten._local_scalar_dense", "aten.index"]  # the mode does see them


@pytest.mark.parametrize("mix", ["grpo correction=truncated", "grpo", "ppo shared"])
def test_autocast_hides_no_gradient(mix: str) -> None:
    """One region around the whole step, as Lightning has it; scoring without gradient comes first."""
    module, exact = made(mix), made(mix)
    with torch.autocast("cpu", torch.bfloat16):
        step(module, batch())
    step(exact, batch())
    for (name, a), b in zip(module.network.named_parameters(), exact.network.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None, name
        if b.grad.norm() > 1e-4:
            assert torch.cosine_similarity(a.grad.flatten(), b.grad.flatten(), dim=0) > 0.9, name


def test_autocast_sees_each_step() -> None:
    """The second epoch's log-probs are those of the stepped weights."""
    from lit_agentrl.update.settings import OptimSettings

    optim = OptimSettings(optimizer=torch.optim.SGD, lr=5.0)
    rows = []
    for is_half in (True, False):
        module = build(fresh("grpo"), optim=optim, epochs=2)
        with torch.autocast("cpu", torch.bfloat16, enabled=is_half):
            step(module, batch(distance=0.0))
        rows.append(module.row["train/ratio_max"])
    assert rows[1] > 1.05 and rows[0] == pytest.approx(rows[1], rel=0.1)
