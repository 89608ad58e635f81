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
    """A frozen model with the same tokenizer, for on-policy distillation by a KL term.

    Args:
        path: folder of a finished run, or of a model in Hugging Face's format.

    Raises:
        ValueError: there is no model; in `make`, it cannot be loaded, or its token ids are not the policy's.
    """

    path: str
    _fingerprint: str = field(default="", init=False, repr=False)

    def __post_init__(self) -> None:
        find_network(self.path)

    def make(self, policy: Policy, dtype: str | None) -> Any:
        """Load the model in the requested precision."""
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
        """Return the fingerprint of the model."""
        return {"fingerprint": self._fingerprint}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Check that the model is that of the checkpoint, see `Reference`."""
        saved = state.get("fingerprint", "")
        if saved != self._fingerprint:
            raise ValueError(
                f"reference.path={self.path} holds weights {self._fingerprint[:12]}, but this run was trained with "
                f"{saved[:12]}; restore that model"
            )
