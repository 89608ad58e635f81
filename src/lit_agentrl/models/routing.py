"""Passes of a mixture of experts: what its routers choose is seen, told, and held to equal loads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, pad
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from lit_agentrl.models.packing import ATTENTION, Packing, Segments, pick
from lit_agentrl.models.patched import Forward, patched
from lit_agentrl.models.routers import routers_of

NO_EXPERT = -1  # stands where no choice was recorded: the router's own counts there
_TOPK = (torch.topk, torch.Tensor.topk)


class Routers:
    """The routers of one network.

    Args:
        network: a mixture of experts of transformers.
        option: for messages.

    Attributes:
        num_choices: experts of a token, over all layers.

    Raises:
        ValueError: it has no routers, or ones that cannot be told what to choose.
    """

    def __init__(self, network: PreTrainedModel, option: str) -> None:
        self._network = network
        self.modules = routers_of(network)
        if not self.modules:
            raise ValueError(
                f"{option} needs a mixture of experts, and {type(network).__name__} has no router; leave it out"
            )
        self.num_choices = 0
        try:
            reason = self._why_not()
        except (TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
        if reason:
            raise ValueError(
                f"{option} does not fit the routers of {type(network).__name__}: {reason}; leave it out"
            )

    @contextmanager
    def routed(
        self,
        tokens_BT: Tensor | None = None,
        packing: Packing | None = None,
        experts_BK: Tensor | None = None,
    ) -> Iterator[Pass]:
        """Inside, passes of the network over these rows are seen, and take the experts that are given.

        A backward pass that runs layers again must lie inside too.

        Args:
            tokens_BT: rows as `score_tokens` takes them, of which the last column is not read; None: any tokens, whose
                choices come in their order.
            packing: as there.
            experts_BK: (B, T x `num_choices`) choices of each token, as `Pass.experts` gives them; None: the
                routers' own.
        """
        layout = None
        if tokens_BT is not None:
            is_packed = packing is not None and self._network.config._attn_implementation == ATTENTION
            layout = Layout.of(tokens_BT, packing if is_packed else None)
        found = Pass(len(self.modules), self.num_choices, layout)
        if experts_BK is not None and tokens_BT is not None and layout is not None:
            width = tokens_BT.shape[1] * self.num_choices  # a filler row brings none
            told_BK = pad(experts_BK[:, :width], (0, max(0, width - experts_BK.shape[1])), value=NO_EXPERT)
            chosen_NK = layout.flat(told_BK.reshape(len(told_BK), -1, self.num_choices))
            found.told = chosen_NK.long().view(len(chosen_NK), len(self.modules), -1)
        layers = {id(module): layer for layer, module in enumerate(self.modules)}

        def watched(module: nn.Module, forward: Forward) -> Forward:
            return partial(found.route, layers[id(module)], module, forward)

        with patched(self.modules, watched):
            yield found

    @torch.no_grad()
    def _why_not(self) -> str:
        """Try three tokens: what is seen, and whether the routers take other experts than their own."""
        tokens_1T = torch.tensor([[1, 2, 3, 4]], device=self._network.device)
        inputs = {"input_ids": tokens_1T[:, :-1], "use_cache": False}
        with self.routed(tokens_1T) as own:
            self._network(**inputs)
        if None in own.logits or any(logits.shape[0] != 3 or logits.dim() != 2 for logits in own.logits):
            return "they do not give logits for each token"
        sizes = {indices.shape for indices in own.indices}
        if len(sizes) > 1:
            return "their layers choose different numbers of experts"
        self.num_choices = sum(indices.shape[1] for indices in own.indices)
        top_k = self.num_choices // len(self.modules)
        least = torch.stack([logits.topk(top_k, largest=False).indices for logits in own.logits], 1)
        told_BK = pad(least.flatten(1), (0, 0, 0, 1), value=NO_EXPERT).to(torch.int32).view(1, -1)
        with self.routed(tokens_1T, experts_BK=told_BK) as other:
            self._network(**inputs)
        if not all(torch.equal(i, least[:, layer]) for layer, i in enumerate(other.indices)):
            return "they do not take the experts that they are told"
        is_finite = all(bool(weights.isfinite().all() and (weights != 0).all()) for weights in other.weights)
        return "" if is_finite else "experts that they are told have no weight"


@dataclass(frozen=True)
class Layout:
    """Where the tokens of rows lie in what a network reads: the last column is not read.

    Attributes:
        shape: rows and columns of the tokens.
        segments: of packed rows; None: they are padded.
    """

    shape: tuple[int, int]
    segments: Segments | None

    @classmethod
    def of(cls, tokens_BT: Tensor, packing: Packing | None) -> Layout:
        rows, width = tokens_BT.shape
        if packing is None:
            return cls((rows, width), None)
        return cls((rows, width), Segments.of(packing.without_last(), width - 1, tokens_BT.device))

    def flat(self, x_BTK: Tensor) -> Tensor:
        """(B, at least T, K) -> (N, K), token by token as the network reads them."""
        x_NK = x_BTK[:, : self.shape[1] - 1].flatten(0, 1)
        return x_NK if self.segments is None else x_NK[self.segments.token_N]

    def rows(self, x_NK: Tensor, fill: float) -> Tensor:
        """(N, K) -> (B, T, K), ``fill`` in the last column; anything at padding."""
        if self.segments is None:
            x_BTK = x_NK.reshape(self.shape[0], -1, x_NK.shape[1])
        elif x_NK.is_floating_point():
            x_BTK = pick(x_NK, self.segments.place_BT.flatten()).reshape(
                *self.segments.place_BT.shape, x_NK.shape[1]
            )
        else:
            x_BTK = x_NK[self.segments.place_BT]
        return pad(x_BTK, (0, 0, 0, 1), value=fill)


class _Told(TorchFunctionMode):
    """Inside a router's forward, its choice of experts is one that is given; weights are those of the given ones.

    Families differ in how they weigh and normalise, but all choose by ``topk`` over the experts, and those with groups
    by a ``topk`` over the groups before it.
    """

    def __init__(self, told_NK: Tensor, num_experts: int, num_groups: int | None) -> None:
        super().__init__()
        self.told_NK = told_NK
        self.flips: Tensor | None = None
        self._num_experts = num_experts
        self._num_groups = num_groups

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func not in _TOPK or args[0].dim() != 2:
            return found
        scores_NE, own_NK = args[0], found.indices
        is_own_N1 = self.told_NK[:, :1] == NO_EXPERT
        if scores_NE.shape[1] == self._num_experts and own_NK.shape == self.told_NK.shape:
            index_NK = torch.where(is_own_N1, own_NK, self.told_NK)
            is_same_NK = (index_NK[:, :, None] == own_NK[:, None, :]).any(2)
            self.flips = torch.stack([(~is_same_NK).sum(), (~is_own_N1).sum() * own_NK.shape[1]])
            return torch.return_types.topk((scores_NE.gather(1, index_NK), index_NK))
        if scores_NE.shape[1] == self._num_groups:
            # open are the groups of the experts that are told, in place of those that would be
            told_NK = self.told_NK // (self._num_experts // scores_NE.shape[1])
            index_NG = torch.where(is_own_N1, own_NK[:, :1], told_NK)
            index_NG = torch.cat([torch.where(is_own_N1, own_NK, index_NG[:, :1]), index_NG], 1)
            return torch.return_types.topk((scores_NE.gather(1, index_NG), index_NG))
        return found


@dataclass
class Pass:
    """What routers did in the passes of a network inside `Routers.routed`.

    Attributes:
        logits: (N, E) of each layer, with gradient.
        indices: (N, k) experts taken, of each layer.
        told: (N, layers, k) experts to take, `NO_EXPERT` where there is none.
        weights: (N, k) of these.
        flips: of each layer, how many of the choices told the router would not have made itself, and all of them.
    """

    num_layers: int
    num_choices: int
    layout: Layout | None
    told: Tensor | None = None
    logits: list[Any] = field(init=False)
    indices: list[Any] = field(init=False)
    weights: list[Any] = field(init=False)
    flips: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.logits, self.indices, self.weights, self.flips = ([None] * self.num_layers for _ in range(4))

    def route(self, layer: int, router: Any, forward: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """The forward of a router."""
        if self.told is None:
            output = forward(*args, **options)
        else:
            with _Told(self.told[:, layer], router.num_experts, getattr(router, "num_group", None)) as told:
                output = forward(*args, **options)
            self.flips[layer] = told.flips
        self.logits[layer], self.weights[layer], self.indices[layer] = output
        return output

    def experts(self) -> Tensor:
        """The experts taken: (B, T x `Routers.num_choices`) int32 of rows, else (N, `Routers.num_choices`)."""
        taken_NK = torch.cat(self.indices, dim=1).to(torch.int32)
        return taken_NK if self.layout is None else self.layout.rows(taken_NK, NO_EXPERT).flatten(1)

    def balance(self, is_real_BT: Tensor) -> Tensor:
        """How unequally each row's tokens load the experts, (B,), with gradient; k where they are loaded alike.

        ``E sum_e f_e P_e``, the mean over layers: ``f_e`` is the number of a row's tokens that took expert e, over
        their number, and ``P_e`` the mean of their softmax of the router's logits (Switch Transformer, arXiv
        2101.03961, equations 4 to 6; of each sequence by itself as DeepSeek-V3, arXiv 2412.19437, equation 17).
        Gradient flows through ``P_e``.  Padding, and the last token of a row, which the network does not read, do
        not count.

        Args:
            is_real_BT: not padding.
        """
        assert self.layout is not None
        is_read_BT1 = _is_read(is_real_BT)[..., None]
        count_B1 = is_read_BT1.sum(1).clamp(min=1)
        losses = []
        for logits_NE, indices_NK in zip(self.logits, self.indices, strict=True):
            share_NE = torch.softmax(logits_NE.float() if logits_NE.dtype != torch.float64 else logits_NE, -1)
            taken_NE = one_hot(indices_NK, logits_NE.shape[-1]).sum(1).to(share_NE)
            found = [self.layout.rows(x_NE, 0.0) * is_read_BT1 for x_NE in (share_NE, taken_NE)]
            share_BE, load_BE = (x_BTE.sum(1) / count_B1 for x_BTE in found)
            losses.append(logits_NE.shape[-1] * (share_BE * load_BE).sum(-1))
        return torch.stack(losses).mean(0)


def _is_read(is_real_BT: Tensor) -> Tensor:
    """Without the last token of each row."""
    return is_real_BT & pad(is_real_BT[:, 1:], (0, 1), value=False)
