"""Rows that begin alike: computed once where they are alike, with the numbers and the gradient of rows apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from lit_agentrl.models import segment_attention as module
from lit_agentrl.models.logprobs import read_hidden_before, score_tokens
from lit_agentrl.models.packing import Packing, Segments, enable_packing
from lit_agentrl.models.segment_attention import (
    BatchLayout,
    KernelLayout,
    attend_in_turn,
    attend_segments,
    find_kernel_obstacle,
)
from lit_agentrl.update.microbatches import Form, split_micro_batches, split_shared
from tests.models.kernel import KERNELS, use_kernel
from tests.models.test_token_scores import gpt2_double, gradient, llama, written_out

# two siblings, one that goes on, one that ends within it, a copy of it, a stranger
ROWS = [
    [3, 4, 5, 6, 7, 8, 9],
    [3, 4, 5, 6, 10, 11],
    [3, 4, 5, 6, 10, 11, 12, 13, 14, 15, 16],
    [3, 4, 5],
    [3, 4, 5, 6, 10, 11, 12, 13, 14, 15, 16],
    [20, 21, 22, 23, 24],
]


def padded(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    width = max(map(len, rows))
    tokens_BT = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
    is_real_BT = torch.arange(width)[None] < torch.tensor([len(row) for row in rows])[:, None]
    is_action_BT = is_real_BT & (
        torch.rand(tokens_BT.shape, generator=torch.Generator().manual_seed(3)) < 0.5
    )
    is_action_BT[:, 0] = False
    return {"tokens_BT": tokens_BT, "is_real_BT": is_real_BT, "is_action_BT": is_action_BT}


def shared(budget: int = 10**6) -> list[tuple[dict[str, torch.Tensor], Packing, torch.Tensor]]:
    """Micro-batches of `ROWS`: what is scored, how it is packed, which rows they are."""
    tensors = padded(ROWS)
    parts = split_shared(tensors["tokens_BT"], tensors["is_real_BT"].sum(1), budget)
    names = ("tokens_BT", "is_action_BT")
    return [({name: tensors[name][rows] for name in names}, packing, rows) for rows, packing in parts]


def network_of(make: Any) -> PreTrainedModel:
    network: PreTrainedModel = make()
    assert not enable_packing(network)
    return network


@pytest.mark.parametrize("make", [llama, gpt2_double])
@pytest.mark.parametrize("budget", [10**6, 14, 1])
@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize("kernel", [None, *KERNELS])
def test_scores_and_gradient_are_those_of_rows_apart(
    make: Any, budget: int, chunk: int | None, kernel: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = use_kernel(monkeypatch, kernel) if kernel else []
    tensors = padded(ROWS)
    plain, packing_network = make(), network_of(make)
    expected_BT, entropy_BT = written_out(plain, tensors["tokens_BT"], tensors["is_action_BT"])
    expected = gradient(plain, expected_BT, entropy_BT)
    logp_BT, found_entropy_BT = torch.zeros_like(expected_BT), torch.zeros_like(expected_BT)
    for given_rows, packing, rows in shared(budget):
        scores = score_tokens(
            packing_network,
            **given_rows,
            packing=packing,
            temperature=0.7,
            with_entropy=True,
            logits_chunk=chunk,
        )
        assert scores.entropy_BT is not None
        logp_BT = logp_BT.index_copy(0, rows, scores.logp_BT)
        found_entropy_BT = found_entropy_BT.index_copy(0, rows, scores.entropy_BT)
    found = gradient(packing_network, logp_BT, found_entropy_BT)
    for mine, theirs in ((logp_BT, expected_BT), (found_entropy_BT, entropy_BT)):
        assert theirs.abs().max() > 0.01
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)
    # the norms of Llama compute in float32 whatever their inputs are, and so does their gradient
    tolerance = 1e-6 if make is llama else 1e-12
    assert bool(calls) == bool(kernel)
    assert (found - expected).norm() <= tolerance * expected.norm() and expected.norm() > 0.01


@pytest.mark.parametrize("make", [llama, gpt2_double])
def test_hidden_states_are_those_of_rows_apart(make: Any) -> None:
    ((given_rows, packing, _),) = shared()
    expected_AD = read_hidden_before(make().base_model, **given_rows)
    network = network_of(make)
    torch.testing.assert_close(
        read_hidden_before(network.base_model, **given_rows, packing=packing),
        expected_AD,
        rtol=1e-9,
        atol=1e-9,
    )


def test_what_is_alike_goes_through_the_layers_once() -> None:
    ((given_rows, packing, _),) = shared()
    assert packing.num_tokens == 7 + 2 + 5 + 5  # the first row; "10, 11"; its continuation; the stranger
    network, seen = network_of(llama), []
    for layer in network.model.layers:
        layer.mlp.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[1]))
    score_tokens(network, **given_rows, packing=packing)
    assert (
        seen[0] == packing.drop_last_tokens().num_tokens == 19 - 3
    )  # the last tokens of rows predict nothing


def test_rows_that_others_continue_are_not_read_by_attention() -> None:
    ((_, packing, _),) = shared()
    cpu = torch.device("cpu")
    segments = Segments.of(packing, 11, cpu)
    batches = BatchLayout.of(segments._places, packing.num_tokens, cpu).batches
    assert sorted(batches) == [(1, 5), (1, 7), (1, 11)]  # stranger, first row, longest
    layout = KernelLayout.of(segments._places, packing.common, cpu)
    assert layout.key_bounds.tolist() == [0, 7, 18, 23] and layout.query_bounds.tolist() == [0, 7, 14, 19]
    apart = Packing.from_lengths([len(row) for row in ROWS])
    places = Segments.of(apart, 11, cpu)._places
    assert sum(rows for rows, _ in BatchLayout.of(places, apart.num_tokens, cpu).batches) == len(ROWS)
    assert KernelLayout.of(places, apart.common, cpu).key_M is None  # nothing is laid out again


def test_equal_runs_give_equal_bits() -> None:
    ((given_rows, packing, _),) = shared()
    found = []
    for _ in range(3):
        network = network_of(llama).float()
        logp_BT = score_tokens(network, **given_rows, packing=packing).logp_BT
        found.append(gradient(network, logp_BT, torch.zeros(())))
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_half_precision_attends_in_float32_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.dtype] = []
    fused = module.scaled_dot_product_attention

    def watched(query: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append(query.dtype)
        return fused(query, *args, **kwargs)

    monkeypatch.setattr(module, "scaled_dot_product_attention", watched)
    ((given_rows, packing, _),) = shared()
    expected_BT = score_tokens(network_of(llama).float(), **given_rows, packing=packing).logp_BT
    network = network_of(llama).float()
    seen.clear()
    with torch.autocast("cpu", torch.bfloat16):
        autocast_BT = score_tokens(network, **given_rows, packing=packing).logp_BT
    half_BT = score_tokens(network.bfloat16(), **given_rows, packing=packing).logp_BT
    assert set(seen) == {torch.float32} and autocast_BT.dtype == half_BT.dtype == torch.float32
    for found_BT in (autocast_BT, half_BT):
        assert 0 < (found_BT - expected_BT).abs().max() < 0.3


rows_of_few_tokens = st.lists(st.lists(st.integers(1, 2), min_size=1, max_size=7), min_size=1, max_size=12)


@settings(max_examples=60)
@given(rows_of_few_tokens, st.integers(1, 40))
def test_splits_hold_each_row_once_and_count_each_beginning_once(rows: list[list[int]], budget: int) -> None:
    tensors = padded(rows)
    lengths_B = tensors["is_real_BT"].sum(1)
    parts = split_shared(tensors["tokens_BT"], lengths_B, budget)
    assert sorted(int(row) for part, _ in parts for row in part) == list(range(len(rows)))
    for part, packing in parts:
        mine = [tuple(rows[row]) for row in part.tolist()]
        beginnings = {row[: end + 1] for row in mine for end in range(len(row))}
        assert packing.lengths == [len(row) for row in mine] and packing.common[0] == 0
        assert packing.num_tokens == len(beginnings)
        assert len(part) == 1 or packing.num_tokens <= budget
        segments = Segments.of(packing, tensors["tokens_BT"].shape[1], torch.device("cpu"))
        tokens_N = tensors["tokens_BT"][part].flatten()[segments.token_N]
        for row, place_T in zip(mine, segments.place_BT, strict=True):
            assert tuple(tokens_N[place_T[: len(row)]].tolist()) == row
            assert segments.position_N[place_T[: len(row)]].tolist() == list(range(len(row)))


def test_micro_batches_say_what_they_compute() -> None:
    tensors = padded(ROWS * 40)
    cases: list[tuple[Form, int | None]] = [("padded", None), ("packed", None), ("shared", 19)]
    for form, needed in cases:
        parts = split_micro_batches(tensors, 300, form)
        assert sum(part.num_real for part in parts) == 40 * sum(map(len, ROWS))
        assert all(part.num_needed <= part.num_computed for part in parts)
        assert form == "padded" or all(part.num_computed <= 320 for part in parts)  # 300 and their padding
        assert (parts[0].packing is None) == (form == "padded")
        if needed is not None:  # copies cost attention alone, of which there is so much at most
            assert all(part.num_needed <= needed and part.num_real <= 4 * 300 for part in parts)
        first = parts[0].keep_first()
        assert first.rows.tolist() == parts[0].rows[:1].tolist() and first.num_computed == 0


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_key_heads_are_repeated_for_a_kernel_without_groups(
    kv_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = torch.Generator().manual_seed(0)
    shapes = [(6, 6, 8), (9, kv_heads, 8), (9, kv_heads, 8)]
    states = [torch.randn(each, generator=draw, dtype=torch.float64).requires_grad_() for each in shapes]
    bounds = [torch.tensor(each, dtype=torch.int32) for each in ([0, 2, 5, 6], [0, 3, 8, 9])]
    weights = torch.randn(6, 6, 8, generator=draw, dtype=torch.float64)
    found = []
    for version in KERNELS:
        use_kernel(monkeypatch, version)
        result = attend_segments(*states, *bounds, 3, 5, 0.3)
        found.append([result, *torch.autograd.grad((result * weights).sum(), states)])
    for with_groups, repeated in zip(*found, strict=True):
        torch.testing.assert_close(repeated, with_groups, rtol=1e-12, atol=1e-12)


def test_the_kernel_is_deterministic_backward_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, states: torch.Tensor) -> torch.Tensor:
            return states.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
            seen.append(torch.are_deterministic_algorithms_enabled())
            return gradient

    monkeypatch.setattr(module, "varlen_attn", lambda query, *_, **__: Watched.apply(query))
    states = torch.randn(4, 2, 8, requires_grad=True)
    bounds = torch.tensor([0, 4], dtype=torch.int32)
    before = Watched.apply(states)
    attend_segments(before, states, states, bounds, bounds, 4, 4, None).sum().backward()
    assert seen == [True, False] and not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("are_repeated", [False, True])
def test_the_kernel_of_this_torch_takes_what_it_is_given(
    are_repeated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward and backward on ``meta``, where the installed operator checks its arguments and computes nothing."""
    modes: list[bool] = []
    switch = torch.use_deterministic_algorithms
    monkeypatch.setattr(
        torch,
        "use_deterministic_algorithms",
        lambda mode, **options: (modes.append(mode), switch(mode, **options)),
    )
    if are_repeated:
        monkeypatch.setattr(module, "_has_grouped_heads", lambda _: False)
    options = {"device": "meta", "dtype": torch.bfloat16, "requires_grad": True}
    states = [torch.empty(shape, **options) for shape in ((10, 14, 64), (16, 2, 64), (16, 2, 64))]
    bounds = torch.zeros(4, dtype=torch.int32, device="meta")
    result = attend_segments(*states, bounds, bounds, 5, 8, 0.1)
    assert result.shape == (10, 14, 64)
    gradients = torch.autograd.grad(result.float().sum(), states)
    assert [each.shape for each in gradients] == [each.shape for each in states]
    assert modes == [True, False] and not torch.are_deterministic_algorithms_enabled()


def test_without_a_gpu_or_half_precision_there_is_no_kernel() -> None:
    reasons = [
        find_kernel_obstacle(torch.device(kind), dtype, 2, 2, 8)
        for kind, dtype in (("cpu", torch.bfloat16), ("cuda", torch.float32))
    ]
    assert reasons == [
        "there is no variable-length kernel for CPUs", "there is no variable-length kernel in float32"
    ]  # fmt: skip


@pytest.mark.parametrize("is_inference", [False, True])
def test_the_kernel_is_tried_with_gradients_also_where_an_engine_asks(
    is_inference: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_kernel(monkeypatch, "2.12")
    with torch.inference_mode(is_inference):
        assert module._try_kernel(torch.device("cpu"), torch.bfloat16, 4, 2, 8) == ""


def test_a_trial_that_fails_backward_leaves_the_algorithms_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, states: torch.Tensor) -> torch.Tensor:
            return states.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
            raise RuntimeError("no backward for such heads")

    monkeypatch.setattr(module, "varlen_attn", lambda query, *_, **__: Broken.apply(query))
    assert module._try_kernel(torch.device("cpu"), torch.bfloat16, 2, 2, 8) == "no backward for such heads"
    assert (
        not torch.are_deterministic_algorithms_enabled() and module._deterministic.fill_uninitialized_memory
    )


@given(rows_of_few_tokens)
@settings(max_examples=60)
def test_the_kernel_reads_each_row_and_computes_each_token_once(rows: list[list[int]]) -> None:
    tensors = padded(rows)
    [(part, packing)] = split_shared(tensors["tokens_BT"], tensors["is_real_BT"].sum(1), 10**6)
    segments = Segments.of(packing, tensors["tokens_BT"].shape[1], torch.device("cpu"))
    layout = KernelLayout.of(segments._places, packing.common, torch.device("cpu"))
    assert int(layout.query_bounds[-1]) == packing.num_tokens
    keys = torch.arange(packing.num_tokens) if layout.key_M is None else layout.key_M
    read = {}  # tokens before and at each packed token
    for number in range(len(layout.query_bounds) - 1):
        (q, q_end), (k, k_end) = (
            each[number : number + 2].tolist() for each in (layout.query_bounds, layout.key_bounds)
        )
        for place in range(q, q_end):
            read[place] = keys[k : k_end - (q_end - 1 - place)].tolist()
    for row, place_T in zip(part.tolist(), segments.place_BT.tolist(), strict=True):
        for end in range(len(rows[row])):
            assert read[place_T[end]] == place_T[: end + 1]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_that_begin_alike_on_cuda(dtype: torch.dtype) -> None:
    ((given_rows, packing, _),) = shared()
    given_rows = {name: tensor.cuda() for name, tensor in given_rows.items()}
    network = llama(hidden_size=64).to("cuda", dtype)  # heads of 16: the kernel takes multiples of 8
    expected = gradient(network, score_tokens(network, **given_rows).logp_BT, torch.zeros((), device="cuda"))
    assert not enable_packing(network, by_kernel=dtype == torch.bfloat16)
    found = []
    for _ in range(2):
        logp_BT = score_tokens(network, **given_rows, packing=packing).logp_BT
        found.append(gradient(network, logp_BT, torch.zeros((), device="cuda")))
    assert torch.equal(*found)
    assert (found[0] - expected).norm() <= (0.1 if dtype == torch.bfloat16 else 1e-4) * expected.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [(14, 2, 64), (9, 3, 64), (4, 4, 128)])  # 0.5B, SmolLM2-135M
@pytest.mark.parametrize("are_repeated", [False, True])  # as on torch 2.11
def test_the_kernel_on_cuda(
    heads: tuple[int, int, int], are_repeated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = torch.device("cuda")
    if not are_repeated and not module._has_grouped_heads(module.varlen_attn):
        pytest.skip("this torch repeats heads")
    monkeypatch.setattr(module, "_has_grouped_heads", lambda _: not are_repeated)
    assert find_kernel_obstacle.__wrapped__(cuda, torch.bfloat16, *heads) == ""
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 700, (40,), generator=draw)
    new = (lengths * torch.rand(40, generator=draw)).int().clamp(min=1)
    bounds = [torch.cat([torch.zeros(1), each.cumsum(0)]).to(cuda, torch.int32) for each in (new, lengths)]
    shapes = [(int(new.sum()), heads[0], heads[2]), *2 * [(int(lengths.sum()), heads[1], heads[2])]]
    states = [torch.randn(each, generator=draw).to(cuda) for each in shapes]
    weights = torch.randn(shapes[0], generator=draw).to(cuda)

    def compute(attend: Any, dtype: torch.dtype, *longest: int) -> list[torch.Tensor]:
        given = [each.to(dtype).requires_grad_() for each in states]
        result = attend(*given, *bounds, *longest, heads[2] ** -0.5)
        return [result, *torch.autograd.grad((result * weights).sum(), given)]

    longest = int(new.max()), int(lengths.max())
    found, again = (compute(attend_segments, torch.bfloat16, *longest) for _ in range(2))
    expected = compute(attend_in_turn, torch.float32)
    for one, two, truth in zip(found, again, expected, strict=True):
        assert torch.equal(one, two)
        assert (one.float() - truth).norm() <= 0.02 * truth.norm()
