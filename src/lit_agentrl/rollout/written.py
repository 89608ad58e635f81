"""Replies: the tokens of one that an engine wrote as a text, and what one means."""

from __future__ import annotations

import math

import numpy as np

from lit_agentrl.actions import Actions
from lit_agentrl.engines.base import TurnResult
from lit_agentrl.episode import Segment, Turn
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.dialects.base import Reply
from lit_agentrl.text.ledger import reply_segments


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


def read(turn: Turn, rules: Rules, actions: Actions) -> Reply:
    """What a reply means; its tokens are given their roles.  A plan is a reply without actions.

    Raises:
        ValueError: the dialect fails, be it of a user, or at names of the game's that it cannot tell apart.
    """
    chat, dialect = rules.chat, rules.chat.dialect
    text = (dialect.think_start if chat.forced_think else "") + turn.reply_text
    turn.reply_segments = np.full(len(turn.reply_tokens), Segment.OTHER, np.int8)
    try:
        segments = reply_segments(
            chat.tokenizer, turn.reply_tokens.tolist(), forced_think=chat.forced_think, dialect=dialect
        )
        turn.reply_segments = np.array(segments, np.int8)
        if turn.is_plan:
            has_think = bool((turn.reply_segments == Segment.THINK).any())
            return Reply(True, (), "", "", has_think)
        reply = dialect.parse(text, actions, think=rules.prompt.think)
    except (Exception, SystemExit) as error:
        kind = type(dialect).__name__
        raise ValueError(f"dialect {kind} failed: {type(error).__name__}: {error}") from error
    if not isinstance(reply, Reply):
        raise ValueError(f"dialect: parse must return a Reply, and returned {type(reply).__name__}")
    return reply
