"""Another model as the reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lit_agentrl.checks import name_errors
from lit_agentrl.models.frozen import find_network, load_frozen
from lit_agentrl.models.lora import hash_parameters
from lit_agentrl.models.policy import DTYPES, Policy
from lit_agentrl.text.token_bytes import hash_tokenizer
from lit_agentrl.update.reference import Reference


@dataclass(kw_only=True)
class Teacher(Reference):
    """A model of the same tokenizer, frozen: with a KL term the policy learns from it on what the policy itself plays.

    Args:
        path: folder of a run that has ended, or of a model in Hugging Face's format.

    Raises:
        ValueError: there is no model; at start, one that cannot be loaded, or whose token ids are not the policy's.
    """

    path: str
    _fingerprint: str = field(default="", init=False, repr=False)

    def __post_init__(self) -> None:
        find_network(self.path)

    def make(self, policy: Policy, dtype: str | None) -> Any:
        """The model, in that precision."""
        with name_errors("reference"):
            network = load_frozen(
                self.path,
                policy.tokenizer,
                fingerprint=hash_tokenizer,
                vocabulary=policy.network.config.get_text_config().vocab_size,
                dtype=policy.network.dtype if dtype is None else DTYPES[dtype],
            )
        self._fingerprint = hash_parameters(network)
        return network

    def state_dict(self) -> dict[str, Any]:
        """Which model it is."""
        return {"fingerprint": self._fingerprint}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Reference`."""
        saved = state.get("fingerprint", "")
        if saved != self._fingerprint:
            raise ValueError(
                f"reference.path={self.path} holds weights {self._fingerprint[:12]}, and this run was trained with "
                f"{saved[:12]}; put the model back"
            )
