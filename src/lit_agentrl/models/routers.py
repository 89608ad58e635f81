"""The routers of a mixture of experts, and the options of a run for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import nn
from transformers.utils.output_capturing import OutputRecorder

from lit_agentrl.checks import require, require_number, require_one_of

REPLAYS = ("none", "old")
SPANS = ("row", "batch")


@dataclass(frozen=True, kw_only=True)
class Routing:
    """Options for the routers of a policy; the defaults change nothing.

    Args:
        loss: weight of the load-balancing loss in the loss of the policy.
        loss_over: tokens whose loads are compared: with ``row`` those of each row (`routing.Pass.compute_balance`),
            with ``batch`` those of all rows of an optimizer step (`routing.Pass.compute_batch_balance`).  ``batch``
            takes one more pass per step, or none with ``replay="old"``.
        frozen: True if the routers are not trained.
        replay: experts that the update uses: with ``none`` those that the router chooses at that time, with ``old``
            those that it chose before the iteration's first step, found by one more pass over the rows.

    Raises:
        ValueError: a value is out of range; the message names the option of `load_pretrained`.
    """

    loss: float = 0.0
    loss_over: Literal["row", "batch"] = "row"
    frozen: bool = False
    replay: Literal["none", "old"] = "none"

    def __post_init__(self) -> None:
        require_number(
            "router_loss", self.loss, "a finite number >= 0", lambda value: 0 <= value < float("inf")
        )
        require_one_of("router_loss_over", self.loss_over, SPANS)
        if self.loss_over != "row" and not self.loss:
            raise ValueError(
                f"router_loss_over={self.loss_over} has no effect with router_loss=0; set router_loss, such as 0.01"
            )
        require(isinstance(self.frozen, bool), "freeze_router", self.frozen, "true or false")
        require_one_of("routing_replay", self.replay, REPLAYS)

    def format_first_option(self) -> str:
        """Return the first active option as typed on the command line, or an empty string."""
        typed = {
            f"router_loss={self.loss}": self.loss,
            f"freeze_router={str(self.frozen).lower()}": self.frozen,
            f"routing_replay={self.replay}": self.replay != "none",
        }
        return next((text for text, is_on in typed.items() if is_on), "")


def find_routers(network: nn.Module) -> list[nn.Module]:
    """Return the modules that choose experts, in order; empty for a dense network.

    These are the modules whose logits transformers records as ``router_logits``.
    """
    kinds: list[Any] = []
    for module in network.modules():
        recorded = getattr(module, "_can_record_outputs", None) or {}
        entries = recorded.get("router_logits", ())
        kinds += list(entries) if isinstance(entries, list | tuple) else [entries]
    classes = tuple({kind.target_class if isinstance(kind, OutputRecorder) else kind for kind in kinds})
    return [module for module in network.modules() if classes and isinstance(module, classes)]


def freeze_routers(network: nn.Module) -> None:
    """Freeze the routers, so that they have no gradient and no optimizer updates them."""
    for router in find_routers(network):
        for parameter in router.parameters():
            parameter.requires_grad_(False)
