"""Loading a language policy: a network with its tokenizer, from the package or from Hugging Face files."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from lit_agentrl.checks import name_errors, require, require_one_of
from lit_agentrl.models.lora import LoRA, adapter_layers, merged, save_adapter
from lit_agentrl.models.pretrained import held_back, load_network, load_tokenizer
from lit_agentrl.models.routers import Routing, freeze
from lit_agentrl.models.routing import Routers

NANO_FOLDER = Path(__file__).parent / "nano"
EMBEDDED = ("nano", "nano_tools")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_OS_ERROR = re.compile(r"\(os error (\d+)\)")  # how Rust tells of the system's


@dataclass
class Policy:
    """A causal language model and the tokenizer whose ids it speaks.

    With adapters on the network, ``adapters`` says on which base they sit (see `LoRA.attach`).  ``routing`` is what is
    done about the routers of a mixture of experts.
    """

    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    adapters: dict[str, Any] | None = None
    routing: Routing = field(default_factory=Routing)

    def save(self, folder: str | Path) -> None:
        """Write a folder that ``AutoModelForCausalLM.from_pretrained`` and ``AutoTokenizer`` load.

        Adapters are merged into the weights, and written by themselves under ``adapter/``.

        Raises:
            OSError: it cannot be written, also where a library has another error for that.
        """
        network = self.network if self.adapters is None else merged(self.network)
        try:
            network.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
            if self.adapters is not None:
                save_adapter(self.network, Path(folder) / "adapter")
        except Exception as error:  # libraries in Rust raise errors of their own
            if (found := _OS_ERROR.search(str(error))) and not isinstance(error, OSError):
                raise OSError(int(found[1]), os.strerror(int(found[1]))) from error
            raise


def named_weights(network: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, those that are shared between modules once; not copies, without gradient."""
    return {name: tensor.detach() for name, tensor in (*network.named_parameters(), *network.named_buffers())}


def plain_parameters(network: PreTrainedModel) -> dict[str, Tensor]:
    """Parameters by the names of a network without adapters, which are merged in; tied ones once, without gradient."""
    plain = merged(network) if adapter_layers(network) else network
    return {name: parameter.detach() for name, parameter in plain.named_parameters()}


@torch.no_grad()
def copy_weights(weights: Mapping[str, Tensor], network: nn.Module) -> None:
    """Write weights into a network in place; those not named keep their value."""
    own = named_weights(network)
    for name, tensor in weights.items():
        own[name].copy_(tensor)


def shipped_template(name: str) -> str:
    """The text of a chat template that comes with the package.

    Raises:
        ValueError: there is none of that name.
    """
    folder = resources.files("lit_agentrl.models") / "templates"
    names = sorted(
        entry.name.removesuffix(".jinja") for entry in folder.iterdir() if entry.name.endswith(".jinja")
    )
    require(name in names, "chat_template", name, f"one of {', '.join(names)}, or null")
    return (folder / f"{name}.jinja").read_text(encoding="utf-8")


def load_pretrained(
    name: str,
    *,
    dtype: str = "float32",
    chat_template: str | None = None,
    lora: LoRA | None = None,
    router_loss: float = 0.0,
    freeze_router: bool = False,
    routing_replay: Literal["none", "old"] = "none",
) -> Policy:
    """A policy from a local folder or a hub name.

    Args:
        name: folder with ``config.json``, safetensors weights and a tokenizer, or a hub id.
        dtype: storage precision of the weights: ``float32`` | ``bfloat16`` | ``float16``.
        chat_template: name of a template shipped in ``models/templates`` that replaces the tokenizer's own, also where
            the policy is saved.
        lora: puts adapters on the network, which alone are then trained.
        router_loss: of a mixture of experts: weight of its load-balancing loss; see `Routing`.
        freeze_router: its routers are not trained.
        routing_replay: ``none`` or ``old``; see `Routing`.

    Raises:
        ValueError: unknown ``dtype`` or ``chat_template``, files that cannot be loaded, weights that are not finite,
            adapters that do not fit, or an option of routers where there are none, naming the option.
    """
    routing = Routing(loss=router_loss, frozen=freeze_router, replay=routing_replay)
    require_one_of("dtype", dtype, tuple(DTYPES))
    template = None if chat_template is None else shipped_template(chat_template)
    try:
        with held_back():
            tokenizer = load_tokenizer(name)
            network = load_network(AutoModelForCausalLM, name, DTYPES[dtype])
    except ValueError as error:
        raise ValueError(
            f"name={name} could not be loaded ({error}); give a folder with config.json, safetensors weights and a "
            "tokenizer of a causal language model, or a hub id that this machine can reach"
        ) from error
    for key, weight in network.named_parameters():
        if not bool(weight.isfinite().all()):
            raise ValueError(f"name={name} holds weights that are not finite, in {key}; give an intact model")
    network.train(False)
    if routing.given():
        Routers(network, routing.given())  # which refuses a network without
    with name_errors("lora"):
        adapters = None if lora is None else lora.attach(network, name)
    if routing.frozen:
        freeze(network)
    if template is not None:
        tokenizer.chat_template = template
    return Policy(network=network, tokenizer=tokenizer, name=name, adapters=adapters, routing=routing)


def load_nano(*, name: str = "nano", lora: LoRA | None = None) -> Policy:
    """An embedded policy of about one million parameters (see ``docs/findings/embedded_policy.md`` for their recipes).

    Args:
        name: ``nano`` plays the embedded games, ``nano_tools`` Taxi and PocketWorld's level 0.
        lora: puts adapters on the network, which alone are then trained.

    Raises:
        ValueError: there is none of this name, or it is missing from the package.
    """
    require_one_of("name", name, EMBEDDED)
    folder = NANO_FOLDER.with_name(name)
    if not (folder / "model.safetensors").exists():
        raise ValueError(f"the embedded policy is missing from {folder}; run scripts/build_{name}.py")
    # the folder is local and small: transformers' progress bar for it is noise
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.getLogger("transformers").setLevel(logging.ERROR)
    policy = load_pretrained(str(folder), lora=lora)
    policy.name = name
    if policy.adapters is not None:
        policy.adapters["base"] = name  # wherever the package lies
    return policy
