"""Another model as the reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM

from lit_agentrl.checks import named, require, require_local
from lit_agentrl.models.lora import fingerprint
from lit_agentrl.models.policy import DTYPES, Policy
from lit_agentrl.models.pretrained import held_back, load_network, load_tokenizer
from lit_agentrl.text.token_bytes import tokenizer_fingerprint
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
        require(
            isinstance(self.path, str) and bool(self.path.strip()),
            "path",
            self.path,
            "a folder of a run or model",
        )
        require_local("path", self.path)
        _ = self._folder

    @property
    def _folder(self) -> Path:
        given = Path(self.path).expanduser()
        for folder in (given / "hf", given):
            if (folder / "config.json").is_file():
                return folder
        if not given.exists():
            raise ValueError(f"path={self.path} is not there; looked for {given.absolute()}")
        raise ValueError(
            f"path={self.path} holds no model: no config.json in it, nor in its hf/; give the folder of a run that has "
            "ended, or of a model"
        )

    def make(self, policy: Policy, dtype: str | None) -> Any:
        """The model, in that precision."""
        with named("reference"):
            network = self._loaded(policy, dtype)
        self._fingerprint = fingerprint(network)
        return network

    def _loaded(self, policy: Policy, dtype: str | None) -> Any:
        folder = str(self._folder)
        precision = policy.network.dtype if dtype is None else DTYPES[dtype]
        try:
            with held_back():
                tokenizer = load_tokenizer(folder)
                network = load_network(AutoModelForCausalLM, folder, precision)
        except ValueError as error:
            raise ValueError(
                f"path={self.path} could not be loaded ({error}); give another folder"
            ) from error
        if tokenizer_fingerprint(tokenizer) != tokenizer_fingerprint(policy.tokenizer):
            raise ValueError(
                f"path={self.path} reads token ids of another tokenizer than the policy's; give a model of the same one"
            )
        mine, its = (each.config.get_text_config().vocab_size for each in (policy.network, network))
        if its < mine:
            raise ValueError(
                f"path={self.path} knows {its} token ids, and the policy can sample {mine}; give a model that knows all"
            )
        for name, weight in network.named_parameters():
            if not bool(weight.isfinite().all()):
                raise ValueError(
                    f"path={self.path} holds weights that are not finite, in {name}; give an intact model"
                )
        return network.train(False).requires_grad_(False)

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
