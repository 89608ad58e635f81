"""Token log-probs: logits at position t-1 score the token at position t."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from lit_agentrl.models.packing import ATTENTION, Packing, Segments
from lit_agentrl.models.patching import Forward, patch_forwards
from lit_agentrl.models.segment_attention import pick

_log = logging.getLogger(__name__)
_UNCHUNKABLE: WeakSet[nn.Module] = WeakSet()  # networks whose logits cannot be computed in chunks
# networks whose logits can; remembered, since comparing again would wait for the GPU
_CHUNKABLE: WeakSet[nn.Module] = WeakSet()


class TokenScores(NamedTuple):
    """Scores per token, zero where ``is_action_BT`` is False."""

    logp_BT: Tensor  # nats, of token t at position t
    entropy_BT: Tensor | None  # nats, of the distribution that token t was drawn from
    hidden_AD: Tensor | None = None  # input of the head before each of the A action tokens, row by row
    ref_kl_BT: Tensor | None = None  # nats, KL(reference || network) over the vocabulary, before token t


class Logits(NamedTuple):
    """Logits before the A action tokens, whole or computed in parts."""

    whole: Tensor | None  # (A, V); None if the head computes them
    hidden_AD: Tensor  # input of the head
    head: nn.Module

    def split(self, size: int) -> tuple[Tensor, ...]:
        """Split the inputs of `compute` into parts of ``size`` tokens."""
        return torch.split(self.hidden_AD if self.whole is None else self.whole, size)

    def compute(self, part: Tensor) -> Tensor:
        """Compute the logits of a part of `split`."""
        logits: Tensor = self.head(part) if self.whole is None else part
        return logits

    def compute_all(self) -> Tensor:
        """Compute the logits of all tokens."""
        return self.head(self.hidden_AD) if self.whole is None else self.whole


def ensure_float32(x: Tensor) -> Tensor:
    """Return float64 unchanged, any other precision as float32."""
    return x if x.dtype == torch.float64 else x.float()


def score_tokens(
    network: PreTrainedModel,
    *,
    tokens_BT: Tensor,
    is_action_BT: Tensor,
    temperature: float = 1.0,
    with_entropy: bool = False,
    with_hidden: bool = False,
    entropy_grad: bool = True,
    logits_chunk: int | None = None,
    packing: Packing | None = None,
    place_A: Tensor | None = None,
    is_checked: bool = False,
    reference: Logits | None = None,
) -> TokenScores:
    r"""Compute the log-probability of every action token in one parallel forward.

    ``logp[b, t] = log softmax(z[b, t-1] / temperature)[tokens[b, t]]``, float32 unless the network's
    precision is float64.  Rows must be right-padded: under causal attention padding cannot reach real tokens,
    so no mask is passed and the fused causal kernel is used.  The head reads only the hidden states before action
    tokens: logits are (A, V) for the A action tokens, never (B, T, V).

    Args:
        network: Causal LM; gradient flows into its parameters unless grad mode is off.
        tokens_BT: int64 ids.
        is_action_BT: True at tokens to score; position 0 has no predecessor and must be False.
        temperature: Sampling temperature (> 0).
        with_entropy: Whether to return the entropy too, which costs one more pass over the vocabulary.
        with_hidden: Whether to return the hidden states before the head too, for a value head.
        entropy_grad: Whether the entropy carries gradient.
        logits_chunk: Maximum number of tokens whose logits exist at a time; more tokens are scored in chunks, whose
            logits are recomputed in the backward pass.  None scores all tokens at once.  If the head cannot
            compute a part of the logits alone, all are computed at once, and a warning is logged once.
        packing: Layout of the rows as one row without padding, for a network prepared by `enable_packing`.
        place_A: See `find_places`.
        is_checked: Whether the caller guarantees that position 0 is no action; checking makes the host wait for a GPU.
        reference: Logits of another network before the same tokens, from `read_logits`.  With them the KL between the
            two distributions is returned too, see `compute_vocabulary_kl`.

    Raises:
        ValueError: If an action token is at position 0.
    """
    if not is_checked and bool(is_action_BT[:, 0].any()):
        raise ValueError("the first token of a row is an action: nothing precedes it that could score it")
    predecessors = _find_predecessors(is_action_BT, place_A)
    inputs = _make_inputs(network, tokens_BT, predecessors, packing)
    in_chunks = logits_chunk is not None and len(predecessors[0]) > logits_chunk
    logits = _compute_logits(network, inputs, in_chunks=in_chunks)
    target_A = tokens_BT[:, 1:][predecessors]
    score: Callable[..., Sequence[Tensor | None]] = functools.partial(
        _compute_scores, temperature=temperature, with_entropy=with_entropy, entropy_grad=entropy_grad
    )
    if logits.whole is None:
        assert logits_chunk is not None
        scores = _score_in_chunks(score, logits, target_A, logits_chunk, reference)
    else:
        scores = score(logits.whole, target_A, None if reference is None else reference.compute_all())
    logp_BT, entropy_BT, ref_kl_BT = (
        None if x is None else _scatter(x, predecessors, tokens_BT) for x in scores
    )
    assert logp_BT is not None
    return TokenScores(logp_BT, entropy_BT, logits.hidden_AD if with_hidden else None, ref_kl_BT)


def read_logits(
    network: PreTrainedModel, *, tokens_BT: Tensor, is_action_BT: Tensor, logits_chunk: int | None = None,
    packing: Packing | None = None, place_A: Tensor | None = None,
) -> Logits:  # fmt: skip
    """Read the logits before action tokens, or the head's inputs for chunks.

    The arguments are those of `score_tokens`.
    """
    predecessors = _find_predecessors(is_action_BT, place_A)
    inputs = _make_inputs(network, tokens_BT, predecessors, packing)
    return _compute_logits(
        network, inputs, in_chunks=logits_chunk is not None and len(predecessors[0]) > logits_chunk
    )


def compute_vocabulary_kl(reference_AV: Tensor, log_probs_AV: Tensor, temperature: float) -> Tensor:
    """Compute ``KL(reference || network)`` of each token's distribution, (A,), in nats.

    ``sum over v of q_v (log q_v - log p_v)`` with ``q`` the reference's distribution at the temperature.  Tokens
    beyond the network's vocabulary, which only the reference has, are left out of ``q``.  Gradient flows through
    ``log_probs_AV``, the network's log-probs.
    """
    common_AV = ensure_float32(reference_AV.detach()[:, : log_probs_AV.shape[1]])
    log_q_AV = torch.log_softmax(common_AV / temperature, dim=-1)
    return (log_q_AV.exp() * (log_q_AV - log_probs_AV)).sum(-1)


def compute_action_logits(network: PreTrainedModel, *, tokens_BT: Tensor, is_action_BT: Tensor) -> Tensor:
    """Return the logits that each action token was drawn from, (A, V), row by row.

    All logits exist at once.  For the rows see `score_tokens`; position 0 must be no action.
    """
    predecessors = _find_predecessors(is_action_BT, None)
    logits, _, _ = _run_with_chosen(
        network, _make_inputs(network, tokens_BT, predecessors, None), only_first=False
    )
    return logits


def read_hidden_before(
    network: nn.Module, *, tokens_BT: Tensor, is_action_BT: Tensor, packing: Packing | None = None,
    place_A: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the last hidden state before each action token, (A, D), row by row.

    Gradient flows into the trunk.  A causal LM is called whole, because the trunk of a sharded one cannot compute
    alone; its head then reads only one position.  For ``place_A`` see `find_places`.
    """
    predecessors = _find_predecessors(is_action_BT, place_A)
    return _read_states(network, _make_inputs(network, tokens_BT, predecessors, packing))


def read_hidden_at(
    network: nn.Module, *, tokens_BT: Tensor, is_read_BT: Tensor, packing: Packing | None = None,
    place_A: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the last hidden state after each token of ``is_read_BT``, (A, D), row by row.

    See `read_hidden_before`.
    """
    wider_BT = torch.nn.functional.pad(tokens_BT, (0, 1))
    place = find_places(is_read_BT, place_A)
    if packing is not None:  # one token longer, since `_make_inputs` drops the last token of each row
        packing = Packing([length + 1 for length in packing.lengths], packing.common)
    return _read_states(network, _make_inputs(network, wider_BT, place, packing))


def find_places(chosen_BT: Tensor, place_A: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return row and column of each chosen token, row by row.

    Args:
        chosen_BT: True at the chosen tokens.
        place_A: Index of each chosen token among the (B x T) tokens; None searches for them, which makes the host wait
            for a GPU.
    """
    if place_A is None:
        row_A, column_A = torch.nonzero(chosen_BT, as_tuple=True)
        return row_A, column_A
    return place_A // chosen_BT.shape[1], place_A % chosen_BT.shape[1]


def _find_predecessors(is_action_BT: Tensor, place_A: Tensor | None) -> tuple[Tensor, Tensor]:
    if place_A is None:  # the last column is never a predecessor
        return find_places(is_action_BT[:, 1:], None)
    row_A, column_A = find_places(is_action_BT, place_A)
    return row_A, column_A - 1


def _read_states(network: Any, inputs: _Inputs) -> Tensor:
    trunk: Any = getattr(network, "base_model", network)
    states: list[Tensor] = []
    with trunk.register_forward_hook(
        lambda _module, _inputs, output: states.append(output.last_hidden_state)
    ):
        network(**inputs.arguments, **({} if trunk is network else {"logits_to_keep": 1}))
    return inputs.select_chosen(states[0])


class _Inputs(NamedTuple):
    """The network's arguments, and the function that selects the hidden states before actions."""

    arguments: dict[str, Any]
    select_chosen: Callable[[Tensor], Tensor]


def _make_inputs(
    network: Any, tokens_BT: Tensor, place: tuple[Tensor, ...], packing: Packing | None
) -> _Inputs:
    if packing is None or network.config._attn_implementation != ATTENTION:
        return _Inputs({"input_ids": tokens_BT[:, :-1], "use_cache": False}, lambda hidden: hidden[place])
    segments = Segments.of(packing.drop_last_tokens(), tokens_BT.shape[1] - 1, tokens_BT.device)
    place_A = segments.place_BT[place]
    return _Inputs(
        {**segments.make_inputs(tokens_BT[:, :-1]), "use_cache": False},
        lambda hidden: pick(hidden.squeeze(0), place_A),
    )


def _compute_logits(network: PreTrainedModel, inputs: _Inputs, *, in_chunks: bool) -> Logits:
    """Compute the logits of the chosen states, or leave them to be computed in chunks."""
    if in_chunks and network not in _UNCHUNKABLE:
        first, hidden_AD, head = _run_with_chosen(network, inputs, only_first=True)
        if not (reason := _find_chunk_obstacle(network, head, hidden_AD, first)):
            return Logits(None, hidden_AD, head)
        _UNCHUNKABLE.add(network)
        _log.warning(
            "update.logits_chunk has no effect: the model %s; all logits of a micro-batch exist", reason
        )
    return Logits(*_run_with_chosen(network, inputs, only_first=False))


def _run_with_chosen(
    network: PreTrainedModel, inputs: _Inputs, *, only_first: bool
) -> tuple[Tensor, Tensor, nn.Module]:
    """Run the network with a head that reads only (the first of) the chosen states.

    The network's own forward runs, so its changes to logits (a cap, a scale) are included.

    Returns:
        The logits, the chosen input of the head, and the head.
    """
    head: Any = network.get_output_embeddings()  # type: ignore[no-untyped-call]
    head_inputs: list[Tensor] = []

    def gather(_: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        head_inputs.append(inputs.select_chosen(arguments[0]))
        return (head_inputs[-1][:1] if only_first else head_inputs[-1], *arguments[1:])

    handle = head.register_forward_pre_hook(gather)
    try:
        logits = network(**inputs.arguments).logits
    finally:
        handle.remove()
    if not head_inputs:
        raise ValueError(
            f"{type(network).__name__} does not call its output embeddings as a module: its logits cannot be "
            "restricted to action tokens"
        )
    return logits, head_inputs[0], head


@torch.no_grad()
def _find_chunk_obstacle(network: nn.Module, head: nn.Module, hidden_AD: Tensor, first: Tensor) -> str:
    """Return why the head cannot compute logits in chunks; empty if it can."""
    if any(isinstance(parameter, DTensor) for parameter in head.parameters()):
        return "has its output embeddings sharded over ranks"
    if network not in _CHUNKABLE and not torch.equal(head(hidden_AD[:1]), first):
        return "changes its logits after the output embeddings (a cap or a scale)"
    _CHUNKABLE.add(network)
    return ""


def _score_in_chunks(
    score: Any, logits: Logits, target_A: Tensor, size: int, reference: Logits | None
) -> Sequence[Tensor | None]:
    """Score in chunks whose logits are recomputed in the backward pass."""

    def score_chunk(part: Tensor, target_C: Tensor, reference_part: Tensor | None) -> Any:
        other_logits = (
            None if reference is None or reference_part is None else reference.compute(reference_part)
        )
        return score(logits.compute(part), target_C, other_logits)

    parts, targets = logits.split(size), torch.split(target_A, size)
    reference_parts = [None] * len(parts) if reference is None else reference.split(size)
    chunks = [
        checkpoint(score_chunk, *arguments, use_reentrant=False, preserve_rng_state=False)
        for arguments in zip(parts, targets, reference_parts, strict=True)
    ]
    return [None if column[0] is None else torch.cat(column) for column in zip(*chunks, strict=True)]


def _scatter(values_A: Tensor, place: tuple[Tensor, ...], like_BT: Tensor) -> Tensor:
    """Put each value at the token after its place, (B, T), and zero elsewhere."""
    out_BT = torch.zeros(like_BT.shape, dtype=values_A.dtype, device=like_BT.device)
    return out_BT.index_put((place[0], place[1] + 1), values_A)


def _compute_scores(
    logits_AV: Tensor, target_A: Tensor, reference_AV: Tensor | None, *,
    temperature: float, with_entropy: bool, entropy_grad: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    log_probs_AV = torch.log_softmax(ensure_float32(logits_AV) / temperature, dim=-1)
    logp_A = log_probs_AV.gather(1, target_A.unsqueeze(1)).squeeze(1)
    kl_A = None if reference_AV is None else compute_vocabulary_kl(reference_AV, log_probs_AV, temperature)
    if not with_entropy:
        return logp_A, None, kl_A
    with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
        return logp_A, -(log_probs_AV.exp() * log_probs_AV).sum(-1), kl_A


def recompute_layers(network: nn.Module) -> AbstractContextManager[None]:
    """Make layers keep only their inputs and run again in the backward pass.

    transformers' own switch needs training mode, which would also enable dropout.

    Raises:
        ValueError: If the network marks no layers that can be recomputed.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [module for module in network.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ValueError(
            f"checkpoint_activations=true: {type(network).__name__} marks no layers that can be recomputed"
        )

    def run_again(_: nn.Module, forward: Forward) -> Forward:
        return functools.partial(checkpoint, forward, use_reentrant=False, preserve_rng_state=False)

    return patch_forwards(layers, run_again)
