"""A model behind an API, without a network here; its texts are recorded as bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from lit_agentrl.models.options import DATE
from lit_agentrl.models.policy import read_shipped_template
from lit_agentrl.models.routers import Routing

_Fast: Any = PreTrainedTokenizerFast  # the class of transformers has no type annotations
_MARKERS = ("<|im_start|>", "<|im_end|>")  # markers of the template


@dataclass(frozen=True)
class RemotePolicy:
    """The stand-in for a policy whose tokenizer is unknown.

    Attributes:
        tokenizer: One token per byte, so that any text can be recorded and read back unchanged.
        name: Name for messages.
        network: Always None, so there are neither adapters nor routers.
        date: See `Policy`.
    """

    tokenizer: PreTrainedTokenizerBase
    name: str
    network: None = None
    adapters: None = None
    routing: Routing = field(default_factory=Routing)
    date: str = DATE


def load_remote() -> RemotePolicy:
    """Create the stand-in for a model behind an API; ``engine.model`` names the model that answers."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(marker, special=True, normalized=False) for marker in _MARKERS])
    tokenizer: PreTrainedTokenizerBase = _Fast(tokenizer_object=backend, eos_token=_MARKERS[1])
    tokenizer.chat_template = read_shipped_template("append_only_chatml")
    return RemotePolicy(tokenizer, "remote")
