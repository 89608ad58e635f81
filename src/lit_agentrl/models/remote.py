"""A model behind an API: there is no network here, and its texts are recorded as bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from lit_agentrl.models.policy import shipped_template
from lit_agentrl.models.routers import Routing

_Fast: Any = PreTrainedTokenizerFast  # which carries no types
_MARKERS = ("<|im_start|>", "<|im_end|>")  # of the template


@dataclass(frozen=True)
class RemotePolicy:
    """What stands for a policy whose tokenizer nobody has told.

    Attributes:
        tokenizer: one token a byte, so that any text is recorded and read back as it was.
        name: for messages.
        network: there is none here, and so there are neither adapters nor routers.
    """

    tokenizer: PreTrainedTokenizerBase
    name: str
    network: None = None
    adapters: None = None
    routing: Routing = field(default_factory=Routing)


def load_remote() -> RemotePolicy:
    """The stand-in; which model answers is said by ``engine.model``."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(marker, special=True, normalized=False) for marker in _MARKERS])
    tokenizer: PreTrainedTokenizerBase = _Fast(tokenizer_object=made, eos_token=_MARKERS[1])
    tokenizer.chat_template = shipped_template("append_only_chatml")
    return RemotePolicy(tokenizer, "remote")
