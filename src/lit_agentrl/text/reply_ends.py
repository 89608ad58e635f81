"""Token ids that end a reply, as the files of a model name them."""

from __future__ import annotations

from typing import Any


def list_model_ends(network: Any, tokenizer: Any) -> tuple[int, ...]:
    """Return the end tokens of a model's generation config and config.

    Each config names one id or a list (Llama 3, Qwen, Gemma, GLM).  Only added tokens of the tokenizer count.  The
    default of the config's class is left out, since it says nothing about the model.

    Args:
        network: A causal network; None if it is not in this process.
        tokenizer: Its tokenizer.
    """
    if network is None:
        return ()
    config = network.config.get_text_config()
    default = getattr(type(config)(), "eos_token_id", None)
    end_ids: list[int] = []
    for source in (getattr(network, "generation_config", None), network.config, config):
        ids = getattr(source, "eos_token_id", None)
        end_ids += ids if isinstance(ids, list | tuple) else [] if ids is None or ids == default else [ids]
    added_tokens = tokenizer.added_tokens_decoder
    return tuple(dict.fromkeys(int(i) for i in end_ids if i in added_tokens and i < config.vocab_size))
