"""Log-probs from logits at action tokens alone, in chunks, packed, with layers run again: one set of numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import (
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from lit_agentrl.models.logprobs import (
    compute_vocabulary_kl,
    read_hidden_before,
    read_logits,
    recompute_layers,
    score_tokens,
)
from lit_agentrl.models.packing import Packing, enable_packing
from tests.update.bare import gpt2

LENGTHS = [9, 12, 2, 7]
PACKING = Packing.from_lengths(LENGTHS)
SMALL = {
    "vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 24, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "initializer_range": 0.4,
}  # fmt: skip


def llama(**changes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**{**SMALL, **changes})).double().eval()


def gpt2_double() -> PreTrainedModel:
    return gpt2().double()


def granite() -> PreTrainedModel:
    """Divides its logits after the head."""
    torch.manual_seed(0)
    return GraniteForCausalLM(GraniteConfig(**SMALL, logits_scaling=4.0)).double().eval()


def rows() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    tokens_BT = torch.randint(3, 50, (len(LENGTHS), max(LENGTHS)), generator=draw)
    is_real_BT = torch.arange(max(LENGTHS))[None] < torch.tensor(LENGTHS)[:, None]
    is_action_BT = (torch.rand(tokens_BT.shape, generator=draw) < 0.5) & is_real_BT
    is_action_BT[:, 0] = False
    return {"tokens_BT": tokens_BT * is_real_BT, "is_action_BT": is_action_BT}


def written_out(network: PreTrainedModel, tokens_BT: torch.Tensor, is_action_BT: torch.Tensor) -> Any:
    """All logits, B x T x V of them, then those of action tokens."""
    logits = network(input_ids=tokens_BT, use_cache=False).logits / 0.7
    log_probs = torch.log_softmax(logits, -1)[:, :-1]
    logp = log_probs.gather(2, tokens_BT[:, 1:, None]).squeeze(2)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    chosen = is_action_BT[:, 1:]
    zero = torch.zeros_like(logp)
    pad = torch.nn.functional.pad
    return pad(torch.where(chosen, logp, zero), (1, 0)), pad(torch.where(chosen, entropy, zero), (1, 0))


def gradient(network: PreTrainedModel, logp_BT: torch.Tensor, entropy_BT: torch.Tensor) -> torch.Tensor:
    weight_BT = torch.linspace(-1, 2, logp_BT.numel(), dtype=logp_BT.dtype, device=logp_BT.device).reshape(
        logp_BT.shape
    )
    network.zero_grad()
    ((logp_BT + 0.3 * entropy_BT) * weight_BT).sum().backward()
    return torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])


@pytest.mark.parametrize("make", [llama, gpt2_double, granite])
@pytest.mark.parametrize("chunk", [None, 1000, 3, 1])
@pytest.mark.parametrize("is_packed", [False, True])
def test_scores_are_those_of_all_logits(make: Any, chunk: int | None, is_packed: bool) -> None:
    network, given = make(), rows()
    if make is granite and chunk in (1, 3):
        pytest.skip("refused: see below")
    logp_BT, entropy_BT = written_out(network, **given)
    expected = gradient(network, logp_BT, entropy_BT)
    if is_packed:
        assert not enable_packing(network)
    options = {"logits_chunk": chunk, "packing": PACKING if is_packed else None}
    scores = score_tokens(network, **given, temperature=0.7, with_entropy=True, **options)
    assert scores.entropy_BT is not None
    found = gradient(network, scores.logp_BT, scores.entropy_BT)
    for mine, theirs in ((scores.logp_BT, logp_BT), (scores.entropy_BT, entropy_BT), (found, expected)):
        assert theirs.abs().max() > 0.01
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("make", [llama, granite])
@pytest.mark.parametrize(("chunk", "is_packed"), [(None, False), (3, False), (3, True), (1000, True)])
def test_kl_over_the_vocabulary_is_that_of_all_logits(make: Any, chunk: int | None, is_packed: bool) -> None:
    network, given, reference = llama(), rows(), make(vocab_size=53) if make is llama else make()
    with torch.no_grad():
        for weight in reference.parameters():
            weight.mul_(1.3)
    log_q, log_p = (
        torch.log_softmax(each(given["tokens_BT"]).logits[:, :-1, :50] / 0.7, -1)
        for each in (reference, network)
    )
    kl = torch.nn.functional.kl_div(log_p, log_q.detach(), log_target=True, reduction="none").sum(-1)
    expected_BT = torch.nn.functional.pad(torch.where(given["is_action_BT"][:, 1:], kl, 0), (1, 0))
    expected = gradient(network, expected_BT, 0 * expected_BT)
    if is_packed:
        assert not enable_packing(network) and not enable_packing(reference)
    options = {"logits_chunk": chunk, "packing": PACKING if is_packed else None}
    with torch.no_grad():
        logits = read_logits(reference, **given, **options)
    found_BT = score_tokens(network, **given, temperature=0.7, **options, reference=logits).ref_kl_BT
    assert found_BT is not None and expected_BT.max() > 0.1
    torch.testing.assert_close(found_BT, expected_BT, rtol=1e-9, atol=1e-9)
    found = gradient(network, found_BT, 0 * found_BT)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert all(weight.grad is None for weight in reference.parameters())


def test_worked_kl_and_its_estimates() -> None:
    q, p = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.6, 0.3, 0.1])
    found = compute_vocabulary_kl(q.log()[None], p.log()[None], 1.0)
    assert found.tolist() == pytest.approx([0.0474678], abs=1e-6)
    estimate = torch.expm1((p / q).log()) - (p / q).log()
    assert estimate.tolist() == pytest.approx([0.017678, 0.0, 0.193147], abs=1e-6)
    assert float(q @ estimate) == pytest.approx(0.0474678, abs=1e-6)


@pytest.mark.parametrize("is_packed", [False, True])
def test_hidden_states_are_those_of_the_trunk(is_packed: bool) -> None:
    network, given = llama(), rows()
    expected = network.base_model(given["tokens_BT"]).last_hidden_state[:, :-1][given["is_action_BT"][:, 1:]]
    packing = PACKING if is_packed and not enable_packing(network) else None
    hidden_AD = score_tokens(network, **given, with_hidden=True, packing=packing).hidden_AD
    torch.testing.assert_close(hidden_AD, expected, rtol=1e-9, atol=1e-9)
    own = read_hidden_before(network.base_model, **given, packing=packing)
    torch.testing.assert_close(own, expected, rtol=1e-9, atol=1e-9)


class Largest(TorchDispatchMode):
    """The most numbers that any tensor made inside has, forward and backward."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and leaf.dim() and 4999 in leaf.shape:
                self.numel = max(self.numel, leaf.numel() // 4999)
        return out


def test_logits_of_all_tokens_never_exist() -> None:
    """Rows of vocabulary-wide tensors: at most the A action tokens, or the chunk; the weights have D = 8."""
    network, given = llama(vocab_size=4999, hidden_size=8), rows()
    batch, count = given["tokens_BT"].numel(), int(given["is_action_BT"].sum())
    assert 8 < count < batch // 2

    def most(chunk: int | None) -> int:
        with Largest() as seen:
            scores = score_tokens(network, **given, with_entropy=True, entropy_grad=False, logits_chunk=chunk)
            scores.logp_BT.sum().backward()
        return seen.numel

    assert most(None) == count
    assert most(5) == 8  # the weight of the embeddings
    with Largest() as seen:
        written_out(network, **given)
    assert seen.numel == batch  # the mode does see them


def test_entropy_carries_gradient_only_where_asked() -> None:
    network, given = llama(), rows()
    for wanted in (True, False):
        scores = score_tokens(network, **given, with_entropy=True, entropy_grad=wanted)
        assert scores.entropy_BT is not None and scores.entropy_BT.requires_grad == wanted


def test_logits_changed_after_the_head_are_not_made_in_chunks(caplog: pytest.LogCaptureFixture) -> None:
    network, given = granite(), rows()
    for _ in range(2):
        chunked = score_tokens(network, **given, logits_chunk=3)
        assert torch.equal(chunked.logp_BT, score_tokens(network, **given).logp_BT)
    (message,) = [record.getMessage() for record in caplog.records]  # said once
    assert "update.logits_chunk has no effect" in message


def test_packing_is_refused_where_attention_does_not_allow_it() -> None:
    eager = llama()
    eager.set_attn_implementation("eager")
    assert "its attention is eager" in enable_packing(eager)
    window = MistralForCausalLM(MistralConfig(**SMALL, sliding_window=4)).eval()
    assert "a window of 4 tokens" in enable_packing(window)
    assert window.config._attn_implementation == "sdpa"


def test_a_network_that_can_pack_still_does_all_else() -> None:
    """Generation with a cache, left padding, and rows side by side."""
    plain, packing = llama(), llama()
    assert not enable_packing(packing)
    tokens_BT = rows()["tokens_BT"][:2]
    mask_BT = torch.tensor([[0] * 4 + [1] * 8, [1] * 12])
    options = {"attention_mask": mask_BT, "max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(plain.generate(tokens_BT, **options), packing.generate(tokens_BT, **options))


@pytest.mark.parametrize("is_packed", [False, True])
def test_layers_are_run_again(is_packed: bool) -> None:
    network, given = llama(), rows()
    packing = PACKING if is_packed and not enable_packing(network) else None
    calls: list[int] = []
    network.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))

    def once() -> tuple[torch.Tensor, int]:
        calls.clear()
        scores = score_tokens(network, **given, with_entropy=True, packing=packing)
        assert scores.entropy_BT is not None and len(calls) == 1
        return scores.logp_BT, 0

    plain = gradient(network, once()[0], torch.zeros(()))
    assert len(calls) == 1
    with recompute_layers(network):
        logp_BT, _ = once()
    again = gradient(network, logp_BT, torch.zeros(()))
    assert len(calls) == 2  # once more in the backward pass
    torch.testing.assert_close(again, plain, rtol=1e-12, atol=1e-12)
    assert not network.training and "forward" not in vars(network.model.layers[0])


def test_layers_that_cannot_be_run_again_are_refused() -> None:
    with (
        pytest.raises(ValueError, match="^checkpoint_activations=true: Linear marks no layers"),
        recompute_layers(torch.nn.Linear(2, 2)),
    ):
        pass


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_packed_rows_on_cuda(dtype: torch.dtype) -> None:
    network = llama(hidden_size=64).to("cuda", dtype)
    given = {name: tensor.cuda() for name, tensor in rows().items()}
    expected = score_tokens(network, **given).logp_BT
    assert not enable_packing(network, by_kernel=dtype == torch.bfloat16)
    tolerance = 0.2 if dtype == torch.bfloat16 else 1e-4
    scores = score_tokens(network, **given, packing=PACKING)
    scores.logp_BT.sum().backward()
    torch.testing.assert_close(scores.logp_BT, expected, rtol=tolerance, atol=tolerance)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())
