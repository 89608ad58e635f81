"""Check the limits of episodes against prompts and replies of random play."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import numpy as np

from lit_agentrl import screen
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.random_calls import draw_call
from lit_agentrl.episode import Episode
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.text.chat import ChatRenderer

_CALLS = 8  # calls that are drawn to measure their length


def check_limits(
    task: Task,
    episodes: Sequence[Episode],
    rules: Rules,
    *,
    max_reply_tokens: int | None,
    max_positions: int | None = None,
    exceeded: Sequence[str] = (),
) -> list[str]:
    """Refuse a game that exceeds its limits, with all of them in one message.

    If an episode can continue beyond all exceeded limits, they are only warnings, which are printed and returned.

    Args:
        task: the game.
        episodes: episodes of random play; at least one has a turn.
        rules: the rules of play, with the tokens of a prompt and its reply.
        max_reply_tokens: tokens of a reply; None if not known.
        max_positions: positions that the model has, more than which no limit may allow; None if not known.
        exceeded: limits that were exceeded before, each with its remedy.

    Raises:
        ValueError: a limit does not allow a single reply, or ``exceeded`` is not empty.
    """
    refused, warned = list(exceeded), []
    opening = len(next(episode.turns[0] for episode in episodes if episode.turns).prefix_tokens)
    longest = [max(_measure_prompts(episode)) for episode in episodes if len(episode.turns) > 1]
    replies = [
        len(turn.reply_tokens) + 1  # with the end token
        for episode in episodes for turn in episode.turns if turn.actions and turn.is_valid
    ]  # fmt: skip
    if not replies and max_reply_tokens is not None:
        replies = _measure_calls(task, rules.chat)
    max_context_tokens = rules.max_context_tokens
    limit = f"rollout.max_context_tokens={max_context_tokens}"
    room = 1 + max([max_reply_tokens or 0, *replies])
    if opening >= max_context_tokens:
        refused.append(
            f"{limit} leaves no room for a reply: the prompt of {task.name} alone has {opening} tokens; raise it to "
            f"{_name_size(max([opening, *longest]) + room, max_positions)}"
        )
    elif longest and min(longest) >= max_context_tokens:
        warned.append(
            f"{limit} ends every episode of {task.name} that was tried: its prompts grow to {min(longest)} tokens; "
            f"raise it to {_name_size(max(longest) + room, max_positions)}, or choose context=window"
        )
    if replies and max_reply_tokens is not None and min(replies) > max_reply_tokens:
        warned.append(
            f"rollout.max_reply_tokens={max_reply_tokens} cuts every action of {task.name}: the shortest reply that "
            f"was tried has {min(replies)} tokens without a thought; raise it to {max(replies)} and more"
        )
    if not refused:
        for line in warned:
            screen.note(f"warning: {line}")
        return warned
    lines = [*refused, *warned]
    if len(lines) > 1:
        lines = [f"({number}) {line}" for number, line in enumerate(lines, 1)]
        raise ValueError(f"env: {len(lines)} limits are too low for {task.name}: {'; '.join(lines)}")
    raise ValueError(lines[0])


def _name_size(needed: int, max_positions: int | None) -> str:
    """Name the needed tokens, and the positions of the model if they are fewer."""
    if max_positions is None or needed <= max_positions:
        return str(needed)
    return f"{needed}, for which the model has too few positions ({max_positions}): take another model"


def _measure_prompts(episode: Episode) -> Iterator[int]:
    """Yield the number of tokens of the prompt of each turn."""
    count = 0
    for turn in episode.turns:
        count = len(turn.prefix_tokens) + (0 if turn.starts_row else count)
        yield count
        count += len(turn.reply_tokens)


def _measure_calls(task: Task, chat: ChatRenderer) -> list[int]:
    """Return the tokens of calls that are drawn from schemas, and not played.

    Empty for a game without tools, and for one whose state cannot be saved: it may stand for something real.
    """
    if task.play_class is not None or task.hosting.where != "inline":
        return []
    with closing(task.make("train")) as env:
        if not env.has_state:
            return []
        env.reset(seed=0)
        if env.action_format() != "tools":
            return []
        calls = [draw_call(env.tools(), np.random.default_rng(seed)) for seed in range(_CALLS)]
    texts = [chat.dialect.write([str(call)], thought=None) for call in calls if call is not None]
    return [len(chat.encode(text)) + 1 for text in texts]
