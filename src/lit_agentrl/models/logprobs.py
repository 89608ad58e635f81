"""The one place that shifts: logits at position t-1 score the token at position t."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from lit_agentrl.models.packing import ATTENTION, Packing, Segments, pick
from lit_agentrl.models.patched import Forward, patched

_log = logging.getLogger(__name__)
_WHOLE: WeakSet[nn.Module] = WeakSet()  # networks whose logits cannot be had in chunks


class TokenScores(NamedTuple):
    """Per-token scores, zero where ``is_action_BT`` is False."""

    logp_BT: Tensor  # nats, of token t at position t
    entropy_BT: Tensor | None  # nats, of the distribution that token t was drawn from
    hidden_AD: Tensor | None = None  # what the head reads before each of the A action tokens, row by row


def at_least_float32(x: Tensor) -> Tensor:
    """float64 as it is, any other precision as float32."""
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
    is_checked: bool = False,
) -> TokenScores:
    r"""Log-probability of every action token under ``network``, from one parallel forward.

    ``logp[b, t] = log softmax(z[b, t-1] / temperature)[tokens[b, t]]``, float32 unless the network's
    precision is float64.  Rows must be right-padded: under causal attention padding cannot reach real tokens,
    so no mask is passed and the fused causal kernel is used.  The head sees the hidden states before action
    tokens alone: logits are (A, V) for the A action tokens, never (B, T, V).

    Args:
        network: causal LM; gradient flows into its parameters unless grad mode is off.
        tokens_BT: int64 ids.
        is_action_BT: True at tokens to score; position 0 has no predecessor and must be False.
        temperature: the sampling temperature (> 0).
        with_entropy: also return the entropy (costs one more pass over the vocabulary).
        with_hidden: also return the hidden states that the logits were read from, for a value head.
        entropy_grad: whether the entropy carries gradient.
        logits_chunk: largest number of tokens whose logits exist at a time; more are scored in chunks, whose
            logits are computed again in the backward pass.  None: all at once.
            A network whose head cannot be asked for a part goes without chunks, which the log says once.
        packing: the rows go through a network prepared by `enable_packing` as one row without padding.
        is_checked: the caller knows that no action is at position 0 (asking waits for a GPU).

    Raises:
        ValueError: an action token at position 0.
    """
    if not is_checked and bool(is_action_BT[:, 0].any()):
        raise ValueError("the first token of a row is an action: nothing precedes it that could score it")
    # the last column is never a predecessor
    chosen = is_action_BT[:, 1:]
    place = torch.nonzero(chosen, as_tuple=True)
    inputs = _inputs(network, tokens_BT, place, packing)
    in_chunks = logits_chunk is not None and len(place[0]) > logits_chunk
    logits, hidden_AD, head = _read(network, inputs, in_chunks=in_chunks)
    target_A = tokens_BT[:, 1:][place]
    score = functools.partial(
        _scores_of, temperature=temperature, with_entropy=with_entropy, entropy_grad=entropy_grad
    )
    if logits is None:
        assert logits_chunk is not None
        logp_A, entropy_A = _in_chunks(score, head, hidden_AD, target_A, logits_chunk)
    else:
        logp_A, entropy_A = score(logits, target_A)

    logp_BT = _scattered(logp_A, place, tokens_BT)
    entropy_BT = None if entropy_A is None else _scattered(entropy_A, place, tokens_BT)
    return TokenScores(logp_BT, entropy_BT, hidden_AD if with_hidden else None)


def action_logits(network: PreTrainedModel, *, tokens_BT: Tensor, is_action_BT: Tensor) -> Tensor:
    """The logits that each action token was drawn from, (A, V), row by row; all of them exist at once.

    Rows are as of `score_tokens`; position 0 must be no action.
    """
    place = torch.nonzero(is_action_BT[:, 1:], as_tuple=True)
    logits, _, _ = _forward(network, _inputs(network, tokens_BT, place, None), only_first=False)
    return logits


def hidden_before(
    network: nn.Module, *, tokens_BT: Tensor, is_action_BT: Tensor, packing: Packing | None = None
) -> Tensor:
    """The last hidden state before each action token, (A, D), row by row; gradient into the trunk.

    Of a causal LM the whole is called, if with one position for its head: where it is cut up over ranks, its trunk
    cannot compute alone.
    """
    place = torch.nonzero(is_action_BT[:, 1:], as_tuple=True)
    return _states(network, _inputs(network, tokens_BT, place, packing))


def hidden_at(
    network: nn.Module, *, tokens_BT: Tensor, is_read_BT: Tensor, packing: Packing | None = None
) -> Tensor:
    """The last hidden state after each token where ``is_read_BT`` is True, (A, D), row by row; as `hidden_before`."""
    wider_BT = torch.nn.functional.pad(tokens_BT, (0, 1))
    place = torch.nonzero(is_read_BT, as_tuple=True)
    if (
        packing is not None
    ):  # of which the last token of each row is left out, as nothing is predicted from it
        packing = Packing([length + 1 for length in packing.lengths], packing.common)
    return _states(network, _inputs(network, wider_BT, place, packing))


def _states(network: Any, inputs: _Inputs) -> Tensor:
    trunk: Any = getattr(network, "base_model", network)
    kept: list[Tensor] = []
    with trunk.register_forward_hook(lambda _module, _inputs, output: kept.append(output.last_hidden_state)):
        network(**inputs.arguments, **({} if trunk is network else {"logits_to_keep": 1}))
    return inputs.at_chosen(kept[0])


class _Inputs(NamedTuple):
    """What a network takes, and what picks the hidden states before action tokens out of what it makes of it."""

    arguments: dict[str, Any]
    at_chosen: Callable[[Tensor], Tensor]


def _inputs(network: Any, tokens_BT: Tensor, place: tuple[Tensor, ...], packing: Packing | None) -> _Inputs:
    if packing is None or network.config._attn_implementation != ATTENTION:
        return _Inputs({"input_ids": tokens_BT[:, :-1], "use_cache": False}, lambda hidden: hidden[place])
    segments = Segments.of(packing.without_last(), tokens_BT.shape[1] - 1, tokens_BT.device)
    place_A = segments.place_BT[place]
    return _Inputs(
        {**segments.inputs(tokens_BT[:, :-1]), "use_cache": False},
        lambda hidden: pick(hidden[0], place_A),
    )


def _read(
    network: PreTrainedModel, inputs: _Inputs, *, in_chunks: bool
) -> tuple[Tensor | None, Tensor, nn.Module]:
    """Logits of the chosen states, None if the head shall give them in chunks; what it read, and the head."""
    if in_chunks and network not in _WHOLE:
        first, hidden_AD, head = _forward(network, inputs, only_first=True)
        if not (reason := _why_whole(head, hidden_AD, first)):
            return None, hidden_AD, head
        _WHOLE.add(network)
        _log.warning(
            "update.logits_chunk has no effect: the model %s; all logits of a micro-batch exist", reason
        )
    return _forward(network, inputs, only_first=False)


def _forward(
    network: PreTrainedModel, inputs: _Inputs, *, only_first: bool
) -> tuple[Tensor, Tensor, nn.Module]:
    """Logits of the chosen states, or of the first of them alone, what the head read at all, and the head.

    The network's own forward runs, with whatever it does to logits; its head is handed less to read.
    """
    head: Any = network.get_output_embeddings()  # type: ignore[no-untyped-call]
    read: list[Tensor] = []

    def gather(_: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        read.append(inputs.at_chosen(arguments[0]))
        return (read[-1][:1] if only_first else read[-1], *arguments[1:])

    handle = head.register_forward_pre_hook(gather)
    try:
        logits = network(**inputs.arguments).logits
    finally:
        handle.remove()
    if not read:
        raise ValueError(
            f"{type(network).__name__} does not call its output embeddings as a module: its logits cannot be "
            "restricted to action tokens"
        )
    return logits, read[0], head


@torch.no_grad()
def _why_whole(head: nn.Module, hidden_AD: Tensor, first: Tensor) -> str:
    """Why logits cannot be had from the head a chunk at a time; empty if they can."""
    if any(isinstance(parameter, DTensor) for parameter in head.parameters()):
        return "has its output embeddings cut up over ranks"
    if not torch.equal(head(hidden_AD[:1]), first):
        return "changes its logits after the output embeddings (a cap or a scale)"
    return ""


def _in_chunks(
    score: Any, head: nn.Module, hidden_AD: Tensor, target_A: Tensor, size: int
) -> tuple[Tensor, Tensor | None]:
    """Scores in chunks whose logits are made again in the backward pass."""

    def one(hidden_CD: Tensor, target_C: Tensor) -> Any:
        return score(head(hidden_CD), target_C)

    found = [
        checkpoint(one, h, t, use_reentrant=False, preserve_rng_state=False)
        for h, t in zip(torch.split(hidden_AD, size), torch.split(target_A, size), strict=True)
    ]
    logp, entropy = zip(*found, strict=True)
    return torch.cat(logp), None if entropy[0] is None else torch.cat(entropy)


def _scattered(values_A: Tensor, place: tuple[Tensor, ...], like_BT: Tensor) -> Tensor:
    """Zeros, and each value at the token after the place that it was predicted from."""
    out_BT = torch.zeros(like_BT.shape, dtype=values_A.dtype, device=like_BT.device)
    return out_BT.index_put((place[0], place[1] + 1), values_A)


def _scores_of(
    logits_AV: Tensor, target_A: Tensor, *, temperature: float, with_entropy: bool, entropy_grad: bool
) -> tuple[Tensor, Tensor | None]:
    log_probs_AV = torch.log_softmax(at_least_float32(logits_AV) / temperature, dim=-1)
    logp_A = log_probs_AV.gather(1, target_A.unsqueeze(1)).squeeze(1)
    if not with_entropy:
        return logp_A, None
    with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
        return logp_A, -(log_probs_AV.exp() * log_probs_AV).sum(-1)


def recomputed(network: nn.Module) -> AbstractContextManager[None]:
    """Layers run inside keep their inputs alone and run again in the backward pass.

    transformers' own switch acts in training mode only, which would also turn dropout on.

    Raises:
        ValueError: the network marks no layers that can be run again.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [each for each in network.modules() if isinstance(each, GradientCheckpointingLayer)]
    if not layers:
        raise ValueError(
            f"checkpoint_activations=true: {type(network).__name__} marks no layers that can be run again"
        )

    def run_again(_: nn.Module, forward: Forward) -> Forward:
        return functools.partial(checkpoint, forward, use_reentrant=False, preserve_rng_state=False)

    return patched(layers, run_again)
