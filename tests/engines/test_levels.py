"""An adapter for each level: who writes with which, what an update moves, and what is refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch import Tensor

from lit_agentrl.batch import LEFT_OUT
from lit_agentrl.build.matching import describe_levels
from lit_agentrl.engines.base import SamplingParams, TurnRequest, TurnResult
from lit_agentrl.engines.levels import LevelEngine
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.engines.needs import ALONE
from lit_agentrl.episode import PLANNER
from lit_agentrl.experimental.two_level import TwoLevel
from lit_agentrl.models.adapters import check_base
from lit_agentrl.models.logprobs import score_tokens
from lit_agentrl.models.lora import LEVELS, LoRA, get_levels, merge_adapters, use_level
from lit_agentrl.models.policy import Policy
from lit_agentrl.requirements import describe_part, match
from lit_agentrl.rl.policy import row_selection
from lit_agentrl.rollout.structures.refill import Refill
from lit_agentrl.update.settings import OptimSettings
from tests.conftest import tiny_policy
from tests.engines.test_native import Never
from tests.update.conftest import algorithm, recorded, step

pytest.importorskip("peft")
PARAMS = SamplingParams(max_reply_tokens=6, max_context_tokens=80)
OPTIONS: dict[str, Any] = {"stop": Never(), "end_of_turn_ids": [], "num_slots": 4, "max_context_tokens": 80}


def levelled(moved: float = 0.0) -> Policy:
    """A tiny policy with both adapters, away from the base by so much, each in its own way."""
    policy = tiny_policy()
    policy.adapters = LoRA(r=2, levels=True).attach(policy.network, "tiny")
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in policy.network.named_parameters():
            if "lora_B" in name:
                weight.add_(moved * torch.randn(weight.shape, generator=draw))
    return policy


def ask(engine: Any, prefix: list[int], key: int, is_plan: bool) -> TurnResult:
    engine.submit(TurnRequest(0, prefix, key, PARAMS, player=PLANNER if is_plan else ""))
    (result,) = engine.poll()
    assert isinstance(result, TurnResult)
    return result


def scores(policy: Policy, tokens: list[int], reply: range, level: str) -> Tensor:
    """Log-probs of a reply under the adapter of a level, which reads all before it."""
    tokens_BT = torch.tensor([tokens])
    is_action_BT = torch.zeros_like(tokens_BT, dtype=torch.bool)
    is_action_BT[0, reply] = True
    with torch.no_grad(), use_level(policy.network, level):
        return score_tokens(policy.network, tokens_BT=tokens_BT, is_action_BT=is_action_BT).logp_BT[0, reply]


def test_each_level_writes_with_its_adapter_and_reads_the_whole_dialogue() -> None:
    policy = levelled(0.5)
    engine = LevelEngine(NativeEngine, policy.network, **OPTIONS)
    tokens: list[int] = []
    for turn, (prefix, is_plan) in enumerate(
        [([5, 6, 7], True), ([8, 9], False), ([10], False), ([11], True)]
    ):
        tokens += prefix
        start, found = len(tokens), ask(engine, prefix, turn, is_plan)
        tokens += found.tokens
        reply, level = range(start, len(tokens)), LEVELS[is_plan]
        right = scores(policy, tokens, reply, level)
        torch.testing.assert_close(torch.tensor(found.logps), right, atol=1e-5, rtol=0)
        assert (right - scores(policy, tokens, reply, LEVELS[not is_plan])).abs().max() > 1e-3
    assert found.num_prefilled == 2 + 6 + 1 + 6 + 1, "what the executor read and wrote is new to the planner"
    engine.close(0)
    assert engine.num_pending == 0 and len(ask(engine, [5, 6, 7], 0, True).tokens) == 6


def test_adapters_that_have_not_moved_write_what_the_base_writes() -> None:
    found = []
    for policy, make in ((tiny_policy(), NativeEngine), (levelled(), LevelEngine)):
        given = (policy.network,) if make is NativeEngine else (NativeEngine, policy.network)
        engine = make(*given, **OPTIONS)  # type: ignore[arg-type]
        found.append([ask(engine, [5, 6, 7], key, key % 2 == 0).tokens for key in range(3)])
    assert found[0] == found[1]


def adapters(policy: Policy, level: str) -> dict[str, Tensor]:
    return {
        name: weight.clone() for name, weight in policy.network.state_dict().items() if f".{level}." in name
    }


def marked() -> Any:
    """The recorded rows, of which every third turn is a plan."""
    batch = recorded()[1]
    is_plan_BT = batch.is_action_BT & (batch.turn_BT % 3 == 0)
    return type(batch)(**{**batch.to_dict(), "is_plan_BT": is_plan_BT})


@pytest.mark.slow
@pytest.mark.sweep
def test_the_gradient_of_a_level_is_that_of_its_own_tokens() -> None:
    batch = marked()
    policy = levelled(0.5)
    before = {level: adapters(policy, level) for level in LEVELS}
    alg = algorithm(rows=row_selection.keep_all)
    step(batch, alg=alg, policy=policy, tokens_per_microbatch=300, optim=None)
    together = {level: adapters(policy, level) for level in LEVELS}
    for level in LEVELS:
        assert any(not torch.equal(w, before[level][n]) for n, w in together[level].items()), level
    whole = levelled(0.5)
    step(batch, alg=alg, policy=whole, tokens_per_microbatch=100_000, optim=None)
    for level in LEVELS:
        for name, weight in adapters(whole, level).items():
            torch.testing.assert_close(weight, together[level][name], atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.sweep
def test_a_level_that_is_left_out_stands_still_to_the_bit() -> None:
    """Also where an optimizer with momentum and decay has moved it before."""
    batch = marked()
    policy = levelled(0.5)
    optim = OptimSettings(optimizer=partial(torch.optim.AdamW, weight_decay=0.5), lr=1e-2)
    states: list[dict[str, dict[str, Tensor]]] = []

    class LeavesOut(Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, given: Any, batch_idx: int) -> None:
            states.append({level: adapters(policy, level) for level in LEVELS})
            if given.iteration:
                is_out_BT = batch.is_plan_BT == (given.iteration == 1)
                given.columns[LEFT_OUT] = batch.is_action_BT & is_out_BT

    step(batch, policy=policy, optim=optim, iterations=3, inspect=[LeavesOut()])
    states.append({level: adapters(policy, level) for level in LEVELS})
    moved = [
        {level: any(not torch.equal(w, one[level][n]) for n, w in other[level].items()) for level in LEVELS}
        for one, other in zip(states, states[1:], strict=False)
    ]
    assert moved == [
        {"executor": True, "planner": True}, {"executor": True, "planner": False},
        {"executor": False, "planner": True},
    ]  # fmt: skip


def test_levels_are_told_from_one_adapter() -> None:
    policy, one = levelled(0.5), tiny_policy()
    one.adapters = LoRA(r=2).attach(one.network, "tiny")
    assert get_levels(policy.network) == LEVELS and get_levels(one.network) == () == get_levels(
        tiny_policy().network
    )
    assert policy.adapters is not None and one.adapters is not None
    with pytest.raises(ValueError, match=r"model\.lora: this checkpoint's levels is True, here it is None"):
        check_base(policy.adapters, {**one.adapters})
    tokens_BT = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        for level in LEVELS:
            with use_level(policy.network, level):
                torch.testing.assert_close(
                    merge_adapters(policy.network)(tokens_BT).logits,
                    policy.network(tokens_BT).logits,
                    atol=1e-5,
                    rtol=1e-4,
                )
    assert all(
        weight.requires_grad == (".lora_" in name) for name, weight in policy.network.named_parameters()
    )


def test_they_are_saved_by_name(tmp_path: Any) -> None:
    policy = levelled(0.5)
    policy.save(tmp_path)
    assert {path.parent.name for path in tmp_path.glob("adapter/*/adapter_model.safetensors")} == {*LEVELS}


def test_what_does_not_fit() -> None:
    for structure, given, message in (
        (Refill(), ALONE, "planner, not given by algo.structure=Refill: .* or model/lora=default"),
        (TwoLevel(), (), "set strategy=single"),
        (TwoLevel(every=0), ALONE, "one adapter writes plans"),
    ):
        played = describe_part("algo.structure", structure, requires=())
        with pytest.raises(ValueError, match=f"^model/lora=levels needs .*{message}"):
            match([describe_levels(), played, *given])
    with pytest.raises(ValueError, match="checkpoint_activations=true recomputes layers"):
        step(policy=levelled(), checkpoint_activations=True)
