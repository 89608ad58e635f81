"""Recording, replay and balancing of the router choices of a mixture of experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, pad
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from lit_agentrl.models.packing import ATTENTION, Packing, Segments
from lit_agentrl.models.patching import Forward, patch_forwards
from lit_agentrl.models.routers import find_routers
from lit_agentrl.models.segment_attention import pick

NO_EXPERT = -1  # marks tokens without a recorded choice; the router then chooses itself
_TOPK = (torch.topk, torch.Tensor.topk)


class Routers:
    """The routers of one network.

    Args:
        network: A mixture of experts of transformers.
        option: The option that needs routers, for messages.

    Attributes:
        num_choices: Number of experts chosen per token, over all layers.

    Raises:
        ValueError: If the network has no routers, or routers whose choice cannot be set.
    """

    def __init__(self, network: PreTrainedModel, option: str) -> None:
        self._network = network
        self.modules = find_routers(network)
        if not self.modules:
            raise ValueError(
                f"{option} needs a mixture of experts, and {type(network).__name__} has no router; leave it out"
            )
        self.num_choices = 0
        try:
            reason = self._find_obstacle()
        except (TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
        if reason:
            raise ValueError(
                f"{option} does not fit the routers of {type(network).__name__}: {reason}; leave it out"
            )

    @contextmanager
    def trace(
        self,
        tokens_BT: Tensor | None = None,
        packing: Packing | None = None,
        experts_BK: Tensor | None = None,
    ) -> Iterator[Pass]:
        """Record the routers' choices in passes over these rows, and set them if given.

        A backward pass that recomputes layers must be inside the context too.

        Args:
            tokens_BT: Rows as in `score_tokens`, whose last column is not read; None for any tokens, whose choices
                are recorded in their order.
            packing: Packing of the rows, as in `score_tokens`.
            experts_BK: (B, T x `num_choices`) choices of each token, as `Pass.collect_experts` returns them; None
                lets the routers choose.
        """
        layout = None
        if tokens_BT is not None:
            is_packed = packing is not None and self._network.config._attn_implementation == ATTENTION
            layout = Layout.of(tokens_BT, packing if is_packed else None)
        trace = Pass(len(self.modules), self.num_choices, layout)
        if experts_BK is not None and tokens_BT is not None and layout is not None:
            width = tokens_BT.shape[1] * self.num_choices  # filler rows have no choices
            given_BK = pad(experts_BK[:, :width], (0, max(0, width - experts_BK.shape[1])), value=NO_EXPERT)
            chosen_NK = layout.flatten(given_BK.reshape(len(given_BK), -1, self.num_choices))
            trace.given = chosen_NK.long().view(len(chosen_NK), len(self.modules), -1)
        layers = {id(module): layer for layer, module in enumerate(self.modules)}

        def watch(module: nn.Module, forward: Forward) -> Forward:
            return partial(trace.route, layers[id(module)], module, forward)

        with patch_forwards(self.modules, watch):
            yield trace

    def count_choices(self, experts_BK: Tensor, is_counted_BT: Tensor) -> Tensor:
        """Count the tokens that chose each expert, (layers, experts).

        Args:
            experts_BK: (B, T x `num_choices`) choices, as `Pass.collect_experts` returns them.
            is_counted_BT: True for tokens that are counted; each of them must have choices.
        """
        layers, size = len(self.modules), max(cast(int, module.num_experts) for module in self.modules)
        chosen_NLk = experts_BK.view(*is_counted_BT.shape, layers, -1)[is_counted_BT].long()
        place_NLk = chosen_NLk + size * torch.arange(layers, device=chosen_NLk.device)[:, None]
        return torch.bincount(place_NLk.flatten(), minlength=layers * size).view(layers, size)

    @torch.no_grad()
    def _find_obstacle(self) -> str:
        """Run three tokens and return why choices cannot be recorded or set; else empty."""
        tokens_1T = torch.tensor([[1, 2, 3, 4]], device=self._network.device)
        inputs = {"input_ids": tokens_1T[:, :-1], "use_cache": False}
        with self.trace(tokens_1T) as unforced:
            self._network(**inputs)
        if None in unforced.logits or any(
            logits.shape[0] != 3 or logits.dim() != 2 for logits in unforced.logits
        ):
            return "they do not give logits for each token"
        sizes = {indices.shape for indices in unforced.indices}
        if len(sizes) > 1:
            return "their layers choose different numbers of experts"
        self.num_choices = sum(indices.shape[1] for indices in unforced.indices)
        top_k = self.num_choices // len(self.modules)
        least = torch.stack([logits.topk(top_k, largest=False).indices for logits in unforced.logits], 1)
        given_BK = pad(least.flatten(1), (0, 0, 0, 1), value=NO_EXPERT).to(torch.int32).view(1, -1)
        with self.trace(tokens_1T, experts_BK=given_BK) as forced:
            self._network(**inputs)
        if not all(torch.equal(i, least[:, layer]) for layer, i in enumerate(forced.indices)):
            return "they do not use the experts that they are given"
        is_finite = all(bool(weights.isfinite().all() and (weights != 0).all()) for weights in forced.weights)
        return "" if is_finite else "experts that they are given have no weight"


@dataclass(frozen=True)
class Layout:
    """The positions of row tokens in the network's input, which omits the last column.

    Attributes:
        shape: Rows and columns of the tokens.
        segments: Segments of packed rows; None for padded rows.
    """

    shape: tuple[int, int]
    segments: Segments | None

    @classmethod
    def of(cls, tokens_BT: Tensor, packing: Packing | None) -> Layout:
        rows, width = tokens_BT.shape
        if packing is None:
            return cls((rows, width), None)
        return cls((rows, width), Segments.of(packing.drop_last_tokens(), width - 1, tokens_BT.device))

    def flatten(self, x_BTK: Tensor) -> Tensor:
        """Return (N, K) from (B, at least T, K), in the order of tokens read."""
        x_NK = x_BTK[:, : self.shape[1] - 1].flatten(0, 1)
        return x_NK if self.segments is None else x_NK[self.segments.token_N]

    def unflatten(self, x_NK: Tensor, fill: float) -> Tensor:
        """Return (B, T, K) from (N, K); ``fill`` in the last column, arbitrary at padding."""
        if self.segments is None:
            x_BTK = x_NK.reshape(self.shape[0], -1, x_NK.shape[1])
        elif x_NK.is_floating_point():
            x_BTK = pick(x_NK, self.segments.place_BT.flatten()).reshape(
                *self.segments.place_BT.shape, x_NK.shape[1]
            )
        else:
            x_BTK = x_NK[self.segments.place_BT]
        return pad(x_BTK, (0, 0, 0, 1), value=fill)


class _GivenExperts(TorchFunctionMode):
    """A mode that replaces a router's choice of experts with given ones.

    The given experts have the router's weights.  Model families differ in how they weight and normalise, but all choose
    by ``topk`` over the experts; those with groups first choose by a ``topk`` over the groups.
    """

    def __init__(self, given_NK: Tensor, num_experts: int, num_groups: int | None) -> None:
        super().__init__()
        self.given_NK = given_NK
        self.flips: Tensor | None = None
        self._num_experts = num_experts
        self._num_groups = num_groups

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func not in _TOPK or args[0].dim() != 2:
            return output
        scores_NE, own_NK = args[0], output.indices
        is_own_N1 = self.given_NK[:, :1] == NO_EXPERT
        if scores_NE.shape[1] == self._num_experts and own_NK.shape == self.given_NK.shape:
            index_NK = torch.where(is_own_N1, own_NK, self.given_NK)
            is_same_NK = (index_NK[:, :, None] == own_NK[:, None, :]).any(2)
            self.flips = torch.stack([(~is_same_NK).sum(), (~is_own_N1).sum() * own_NK.shape[1]])
            return torch.return_types.topk((scores_NE.gather(1, index_NK), index_NK))
        if scores_NE.shape[1] == self._num_groups:
            # select the groups of the given experts instead of the router's own
            group_NK = self.given_NK // (self._num_experts // scores_NE.shape[1])
            index_NG = torch.where(is_own_N1, own_NK[:, :1], group_NK)
            index_NG = torch.cat([torch.where(is_own_N1, own_NK, index_NG[:, :1]), index_NG], 1)
            return torch.return_types.topk((scores_NE.gather(1, index_NG), index_NG))
        return output


@dataclass
class Pass:
    """The router outputs of passes inside `Routers.trace`.

    Attributes:
        logits: (N, E) of each layer, with gradient.
        indices: (N, k) chosen experts of each layer.
        given: (N, layers, k) experts to choose, `NO_EXPERT` for the router's own choice.
        weights: (N, k) weights of the chosen experts.
        flips: For each layer, the number of given choices that the router would not have made, and of all given
            choices.
    """

    num_layers: int
    num_choices: int
    layout: Layout | None
    given: Tensor | None = None
    logits: list[Any] = field(init=False)
    indices: list[Any] = field(init=False)
    weights: list[Any] = field(init=False)
    flips: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.logits, self.indices, self.weights, self.flips = ([None] * self.num_layers for _ in range(4))

    def route(self, layer: int, router: Any, forward: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Run a router's forward, with given experts if any, and record its outputs."""
        if self.given is None:
            output = forward(*args, **options)
        else:
            with _GivenExperts(
                self.given[:, layer], router.num_experts, getattr(router, "num_group", None)
            ) as choice:
                output = forward(*args, **options)
            self.flips[layer] = choice.flips
        self.logits[layer], self.weights[layer], self.indices[layer] = output
        return output

    def collect_experts(self) -> Tensor:
        """Return the chosen experts, int32.

        (B, T x `Routers.num_choices`) if the pass has rows, else (N, `Routers.num_choices`).
        """
        taken_NK = torch.cat(self.indices, dim=1).to(torch.int32)
        return taken_NK if self.layout is None else self.layout.unflatten(taken_NK, NO_EXPERT).flatten(1)

    def compute_balance(self, is_real_BT: Tensor) -> Tensor:
        """Compute how unequally each row's tokens load the experts, (B,), with gradient.

        ``E sum_e f_e P_e``, the mean over layers: ``f_e`` is the fraction of a row's tokens that chose expert e, and
        ``P_e`` the mean of their softmax of the router's logits (Switch Transformer, arXiv 2101.03961, equations 4 to
        6; per sequence as in DeepSeek-V3, arXiv 2412.19437, equation 17).  The result is k for equal loads.  Gradient
        flows through ``P_e``.  Padding, and the last token of a row, which the network does not read, do not count.

        Args:
            is_real_BT: False at padding.
        """
        assert self.layout is not None
        is_read_BT1 = find_read_tokens(is_real_BT)[..., None]
        count_B1 = is_read_BT1.sum(1).clamp(min=1)
        losses = []
        for logits_NE, indices_NK in zip(self.logits, self.indices, strict=True):
            prob_NE = _compute_probs(logits_NE)
            taken_NE = one_hot(indices_NK, logits_NE.shape[-1]).sum(1).to(prob_NE)
            sums = [self.layout.unflatten(x_NE, 0.0) * is_read_BT1 for x_NE in (prob_NE, taken_NE)]
            prob_BE, load_BE = (x_BTE.sum(1) / count_B1 for x_BTE in sums)
            losses.append(logits_NE.shape[-1] * (prob_BE * load_BE).sum(-1))
        return torch.stack(losses).mean(0)

    def compute_batch_balance(self, is_counted_BT: Tensor, load_LE: Tensor) -> Tensor:
        """Sum over these tokens how unequally a whole batch loads the experts.

        ``E sum_e f_e sum_t p_te``, the mean over layers: ``p_te`` is token t's softmax of the router's logits, and
        ``f_e`` is the fraction of the tokens that chose expert e, counted over the *whole* batch.
        Divided by the number of tokens of the batch and summed over its parts this is ``E sum_e f_e P_e`` of the batch
        (arXiv 2501.11873), k for equal loads.  A row whose tokens all choose the same experts adds no
        loss here if other rows choose other experts.  Gradient flows through ``p_te``.  Layers are balanced one by one;
        ``load_balancing_loss_func`` of transformers pools them first.

        Example: 4 experts, k = 1; two rows of two tokens choose (0, 0) and (1, 1), with p = 0.7 for the chosen one and
        0.1 for each other.  f = (1/2, 1/2, 0, 0), P = (0.4, 0.4, 0.1, 0.1): 4 (0.2 + 0.2) = 1.6 of the batch, where
        each row by itself has 4 x 0.7 = 2.8.

        Args:
            is_counted_BT: True for tokens of the batch that the network reads.
            load_LE: f of each layer, from `Routers.count_choices` over the whole batch; no gradient.
        """
        assert self.layout is not None
        losses = []
        for logits_NE, load_E in zip(self.logits, load_LE, strict=True):
            size = logits_NE.shape[-1]
            prob_BTE = self.layout.unflatten(_compute_probs(logits_NE), 0.0) * is_counted_BT[..., None]
            losses.append(size * (prob_BTE.sum((0, 1)) * load_E[:size].to(prob_BTE)).sum())
        return torch.stack(losses).mean()


def _compute_probs(logits_NE: Tensor) -> Tensor:
    """Return the softmax of a router's logits, in float32 at least."""
    return torch.softmax(logits_NE.float() if logits_NE.dtype != torch.float64 else logits_NE, -1)


def find_read_tokens(is_real_BT: Tensor) -> Tensor:
    """Return the mask without the last token of each row."""
    return is_real_BT & pad(is_real_BT[:, 1:], (0, 1), value=False)
