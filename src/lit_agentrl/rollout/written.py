"""The tokens of a reply that an engine wrote as a text."""

from __future__ import annotations

import math

from lit_agentrl.engines.base import TurnResult
from lit_agentrl.text.chat import ChatRenderer


def encode(result: TurnResult, chat: ChatRenderer) -> None:
    """The tokens that a text stands for here: up to where a reply is complete, an empty one as a space."""
    dialect = chat.dialect
    text = (result.text or "") + (dialect.write(result.calls, thought=None) if result.calls else "")
    rule, state = dialect.stop(chat.tokenizer), ""
    for token in chat.encode(text or " "):
        result.tokens.append(token)
        state, is_complete = rule.update(state, token)
        if is_complete:
            break
    result.logps = result.entropies = [math.nan] * len(result.tokens)
    result.policy_version = -1
