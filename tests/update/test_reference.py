"""Which network a reference is: the start, one that follows the policy, a teacher."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor

from lit_agentrl.build.reference import build_reference_cache
from lit_agentrl.models.lora import LoRA
from lit_agentrl.rl.binding import tensor_names
from lit_agentrl.rl.policy.algorithm import policy_loss
from lit_agentrl.rl.preference.pairing import all_pairs
from lit_agentrl.update.moving import Moving
from lit_agentrl.update.reference import Reference, Start
from lit_agentrl.update.reference_cache import ReferenceCache
from lit_agentrl.update.settings import OptimSettings
from lit_agentrl.update.teacher import Teacher
from tests.build.test_structure import built
from tests.conftest import tiny_policy
from tests.rl.ragged import fresh
from tests.update.bare import BareModule, build, elsewhere, float64, gradient, off_policy, step

ADAM = partial(torch.optim.Adam, betas=(0.9, 0.99))
TERMS = {"kl": ("grpo", "kl=loss_k3", "kl.coef=0.5"), "pairs": ("dpo",), "labels": ("kto",)}


@pytest.fixture(autouse=True, scope="module")
def double() -> Iterator[None]:
    with float64():
        yield


def module(reference: Reference | None, term: str = "kl") -> BareModule:
    optim = OptimSettings(optimizer=ADAM, lr=0.01)
    return build(fresh(*TERMS[term]), optim=optim, minibatches=2, reference=reference)


def trained(reference: Reference | None, term: str = "kl", iterations: int = 3) -> BareModule:
    found = module(reference, term)
    for iteration in range(iterations):
        step(found, off_policy(), iteration)
    return found


def weights(network: Any) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("term", TERMS)
def test_one_that_does_not_move_is_the_start_to_the_bit(term: str) -> None:
    start = weights(trained(None, term).network)
    assert torch.equal(weights(trained(Start(), term).network), start)
    for still in (Moving(alpha=0.0), Moving(every=4), Moving(alpha=1.0, every=4)):
        assert torch.equal(weights(trained(still, term).network), start)
    for moves in (Moving(alpha=1.0), Moving(alpha=0.5), Moving(alpha=1.0, every=2)):
        assert not torch.equal(weights(trained(moves, term).network), start)


@pytest.mark.parametrize("options", [{}, {"logits_chunk": 5, "packing": True, "tokens_per_microbatch": 40}])
def test_tdpo_reads_the_logits_of_the_reference(options: dict[str, Any]) -> None:
    """The margin of the pairs, from all logits of both networks."""
    made = elsewhere(build(fresh("tdpo"), **options))
    estimate = elsewhere(build(fresh("tdpo", "margin=sequence_kl"), **options))
    batch = off_policy()
    policy, reference = (
        torch.log_softmax(network(batch.tokens_BT).logits[:, :-1], -1)
        for network in (made.network, made.updater.networks.reference)
    )
    kl_BT = (reference.exp() * (reference - policy)).sum(-1)
    gap_BT = (policy - reference).gather(2, batch.tokens_BT[:, 1:, None]).squeeze(2)
    size = int(batch.trajectory_B.max()) + 1
    kl_N, gap_N = (
        torch.zeros(size).index_add(0, batch.trajectory_B, (x_BT * batch.is_action_BT[:, 1:]).sum(1))
        for x_BT in (kl_BT, gap_BT)
    )
    pairs = all_pairs(**{name: getattr(batch, name) for name in tensor_names(all_pairs)})
    row_N = pairs.units.place_A[pairs.units.start_N] // batch.tokens_BT.shape[1]
    w, l = (batch.trajectory_B[row_N[side]] for side in (pairs.chosen_P, pairs.rejected_P))  # noqa: E741
    z_P = 0.1 * (gap_N[w] - gap_N[l] - 0.5 * (kl_N[l] - kl_N[w].detach()))
    expected = -torch.nn.functional.logsigmoid(z_P).mean()
    made.network.zero_grad()
    expected_grad = torch.cat(
        [g.flatten() for g in torch.autograd.grad(expected, list(made.network.parameters()))]
    )
    step(made, batch)
    step(estimate, batch)
    torch.testing.assert_close(gradient(made), expected_grad, rtol=1e-7, atol=1e-10)
    assert not torch.allclose(gradient(estimate), expected_grad, rtol=1e-2)


def test_what_a_kl_over_the_vocabulary_excludes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"update\.lanes=2: .*algo/margin=sequence_kl"):
        build(fresh("tdpo"), lanes=2)
    with pytest.raises(ValueError, match=r"data\.cache_reference .*algo/margin=sequence_kl"):
        build(fresh("tdpo"), kept=ReferenceCache(tmp_path, list, {}))


def test_the_reference_of_each_iteration() -> None:
    found = module(Moving(alpha=0.25, every=2))
    start = weights(found.network)
    read = found.updater.networks.reference
    expected = start.clone()
    for iteration in range(4):
        step(found, off_policy(), iteration)
        assert not torch.equal(weights(found.network), start)
        if iteration % 2:
            expected = 0.75 * expected + 0.25 * weights(found.network)
        torch.testing.assert_close(weights(read), expected, rtol=1e-12, atol=0)


def test_an_alpha_of_1_is_the_policy_before_the_first_step() -> None:
    """So a loss of pairs has the numbers of ``algo/reference=round_start``."""
    one = trained(Moving(alpha=1.0), "pairs")
    assert torch.equal(weights(one.updater.networks.reference), weights(one.network))
    optim = OptimSettings(optimizer=ADAM, lr=0.01)
    other = build(fresh("dpo", "reference=round_start"), optim=optim, minibatches=2)
    for iteration in range(3):
        step(other, off_policy(), iteration)
    torch.testing.assert_close(weights(one.network), weights(other.network), rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_checkpoints_hold_one_that_moves_and_no_other() -> None:
    straight = trained(Moving(alpha=0.3), iterations=4)
    begun = trained(Moving(alpha=0.3), iterations=2)
    checkpoint: dict[str, Any] = {"state_dict": copy.deepcopy(begun.state_dict())}
    begun.on_save_checkpoint(checkpoint)
    optimizer = copy.deepcopy(begun.optimizers()[0].state_dict())
    goes_on = module(Moving(alpha=0.3))
    goes_on.on_load_checkpoint(checkpoint)
    goes_on.load_state_dict(checkpoint["state_dict"])
    goes_on.optimizers()[0].load_state_dict(optimizer)
    for iteration in (2, 3):
        step(goes_on, off_policy(), iteration)
    assert torch.equal(weights(goes_on.network), weights(straight.network))
    assert torch.equal(weights(goes_on.reference), weights(straight.reference))
    evaluated = module(Start())  # as an evaluation makes it, whatever the run's reference was
    assert not any(name.startswith("reference.") for name in evaluated.state_dict())
    evaluated.on_load_checkpoint(checkpoint)
    evaluated.load_state_dict(checkpoint["state_dict"])


def test_one_that_moves_is_no_base_of_adapters_and_is_in_no_other_precision() -> None:
    policy = tiny_policy()
    with pytest.raises(ValueError, match="reference_dtype=bfloat16 is not possible under reference=moving"):
        Moving().make(policy, "bfloat16")
    policy.adapters = LoRA(r=2).attach(policy.network, "tiny")
    with pytest.raises(ValueError, match="reference=moving holds whole weights .* model/lora=none"):
        Moving().make(policy, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 1.5}, r"alpha=1.5 must be in \[0, 1\]"), ({"alpha": math.nan}, "alpha=nan must be"),
        ({"every": 0}, "every=0 must be a whole number >= 1"),
    ],
)  # fmt: skip
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Moving(**options)


@pytest.mark.slow
def test_another_reference_than_the_start_must_be_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "d.jsonl"
    file.write_text('{"prompt": "P", "chosen": "Up", "rejected": "Down", "completion": "Up"}')
    pairs = [f"data.path={file}", "data=pairs"]
    kept, away = "data.cache_reference=true", ["strategy=fsdp", "strategy.offload_frozen=true"]
    for options, message in (
        (
            ["algo=grpo", "reference=moving"],
            "reference=moving needs .* not given by algo=grpo; .* or reference=start",
        ),
        (
            ["algo=grpo", "algo/kl=loss_k3", "reference=moving", *away],
            "offload_frozen=true needs a reference that never changes",
        ),
        (
            ["algo=gvpo", *pairs, kept],
            "cache_reference=true needs .* reads a reference, not given by algo=gvpo",
        ),
        (["algo=dpo", *pairs, kept, "reference=moving"], "never changes, not given by reference=moving; set"),
        (
            ["algo=dpo", *pairs, kept, *away],
            "offload_frozen=true needs .* not given by data=pairs; set data.cache_",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            built("trainer.accelerator=cpu", *options)


def test_what_is_known_is_not_kept(tmp_path: Path) -> None:
    options: dict[str, Any] = {"strategy": {}, "trainer": {}, "run_dir": str(tmp_path)}
    cfg = OmegaConf.create({**options, "data": {"cache_reference": True}})
    recorded: Any = SimpleNamespace(iterate_pieces=list)
    with pytest.raises(
        ValueError, match="cache_reference=true has no effect: the recorded log-probs are those of"
    ):
        build_reference_cache(cfg, recorded, is_given=True)
    assert build_reference_cache(cfg, recorded, is_given=False) is not None
    assert build_reference_cache(OmegaConf.create({"data": {}}), recorded, is_given=True) is None


# ---------------------------------------------------------------------- a teacher
@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a run leaves it."""
    run = tmp_path_factory.mktemp("run")
    policy = tiny_policy(seed=1)
    policy.network.to(torch.float32)
    policy.save(run / "hf")
    return run


def test_a_teacher_is_the_model_of_its_folder(folder: Path) -> None:
    policy = tiny_policy()
    for path in (folder, folder / "hf"):
        network = Teacher(path=str(path)).make(policy, None)
        assert network.dtype == policy.network.dtype and not any(
            p.requires_grad for p in network.parameters()
        )
        torch.testing.assert_close(weights(network).float(), weights(tiny_policy(seed=1).network).float())
    assert Teacher(path=str(folder)).make(policy, "bfloat16").dtype == torch.bfloat16


def test_a_run_goes_on_with_the_teacher_that_it_had(folder: Path, tmp_path: Path) -> None:
    tiny_policy(seed=2).save(tmp_path)
    one, other = Teacher(path=str(folder)), Teacher(path=str(tmp_path))
    for each in (one, other):
        each.make(tiny_policy(), None)
    again = Teacher(path=str(folder))
    again.make(tiny_policy(), None)
    again.load_state_dict(one.state_dict())
    with pytest.raises(ValueError, match=r"^reference.path=.* holds weights .*; restore that model"):
        other.load_state_dict(one.state_dict())


def test_what_is_no_teacher(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="^path=/no/such is not there"):
        Teacher(path="/no/such")
    with pytest.raises(ValueError, match="holds no model: no config.json"):
        Teacher(path=str(tmp_path))
    policy = tiny_policy()
    policy.save(tmp_path)
    rules = json.loads((tmp_path / "tokenizer.json").read_text())
    rules["added_tokens"][0]["lstrip"] = not rules["added_tokens"][0]["lstrip"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(rules))
    with pytest.raises(ValueError, match=r"^reference.path=.* reads token ids of another tokenizer"):
        Teacher(path=str(tmp_path)).make(policy, None)
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ValueError, match=r"^reference.path=.* could not be loaded"):
        Teacher(path=str(tmp_path)).make(policy, None)


def test_a_step_of_distillation_by_hand() -> None:
    """A policy of two tokens, p = (0.8, 0.2), and a teacher, q = (0.5, 0.5).

    At a sampled token a the gradient on the logits is l_a (1[i = a] - p_i), l = log(p/q): (0.094, -0.094) for the first
    and (0.733, -0.733) for the second.  Its mean over p is p_i (l_i - KL), the gradient of KL(p || q) = 0.1927.
    """
    logits = torch.tensor([math.log(4.0), 0.0], requires_grad=True)
    p = torch.tensor([0.8, 0.2])
    gap = (p / 0.5).log()
    mean = torch.zeros(2)
    for token, by_hand in ((0, 0.0940), (1, 0.7330)):
        tensors = {
            "is_action_BT": torch.tensor([[True]]), "ref_logp_BT": torch.tensor([[math.log(0.5)]]),
            "logp_BT": logits.log_softmax(0)[token].reshape(1, 1), "return_B": torch.tensor([5.0]),
        }  # fmt: skip
        algorithm = fresh("distill")
        advantage_BT = algorithm.advantage(**{name: tensors[name] for name in ("return_B", "is_action_BT")})
        tensors["advantage_BT"] = advantage_BT.advantage_BT
        loss, _ = policy_loss(algorithm, tensors=tensors, weight_BT=torch.ones(1, 1))
        assert loss.item() == pytest.approx(float(gap[token]))  # the estimate that is shown: k1
        (found,) = torch.autograd.grad(loss, logits)
        torch.testing.assert_close(found, torch.tensor([by_hand, -by_hand]), atol=1e-4, rtol=0)
        mean += p[token] * found
    kl = (p * gap).sum()
    assert float(kl) == pytest.approx(0.1927, abs=1e-4)
    torch.testing.assert_close(mean, p * (gap - kl), atol=1e-12, rtol=1e-9)
