"""Rendering of episodes as Markdown.

Text from a policy is data: it is shown as code and cannot become markup.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from lit_agentrl.episode import Episode, Segment, Turn
from lit_agentrl.text.dialects.answer import ANSWER
from lit_agentrl.text.dialects.base import Dialect

Decode = Callable[[list[int]], str]
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")


def clean(text: str) -> str:
    """Escape control characters and lone surrogates, so that text can be stored and shown."""
    escaped = CONTROL.sub(lambda match: f"\\x{ord(match.group()):02x}", text)
    return escaped.encode("utf-8", "backslashreplace").decode("utf-8")


def format_code_block(text: str) -> str:
    """Wrap ``text`` in a code block, with a fence longer than any backticks inside."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{clean(text)}\n{fence}"


def format_code_span(text: str) -> str:
    """Format ``text`` as a one-line code span.

    Backticks become quotes, since a span cannot hold a run of them.
    """
    flat = " ".join(clean(text).split()).replace("`", "'")
    return f"`{flat}`" if flat else "–"


def split_reply(turn: Turn, dialect: Dialect = ANSWER) -> Iterator[tuple[str, str]]:
    """Yield the (role, text) pieces of a reply in order: ``think``, ``answer`` and ``other``."""
    in_think = len(turn.reply_segments) > 0 and turn.reply_segments[0] == Segment.THINK
    end = 0
    for block in dialect.spans(turn.reply_text, in_think=in_think):
        yield "other", turn.reply_text[end : block.start]
        yield block.kind, turn.reply_text[block.start : block.end]
        end = block.end
    yield "other", turn.reply_text[end:]


def decode_forced(turn: Turn, decode: Decode | None) -> str:
    """Decode the tokens before the reply that are neither prompt nor observation."""
    forced = turn.prefix_tokens[turn.prefix_segments == Segment.FORCED].tolist()
    if not forced:
        return ""
    return decode(forced) if decode is not None else f"({len(forced)} tokens)"


def format_turn(number: int, turn: Turn, decode: Decode | None, dialect: Dialect = ANSWER) -> str:
    """Format one turn: its pieces by role, then its outcome."""
    if turn.starts_row and number > 1:  # the policy reads a new prompt, not the dialogue above
        pieces = [
            (
                "prompt",
                decode(turn.prefix_tokens.tolist()) if decode else f"({len(turn.prefix_tokens)} tokens)",
            )
        ]
    else:
        pieces = [("observation", turn.observation), ("forced", decode_forced(turn, decode))]
    pieces += list(split_reply(turn, dialect))
    blocks = [f"#### turn {number}"]
    blocks += [f"**{role}**\n\n{format_code_block(text)}" for role, text in pieces if text.strip()]
    outcome = [f"**reward** {turn.reward:+.3g}", f"**actions** {format_code_span(' || '.join(turn.actions))}"]
    if turn.shaped_reward is not None:
        added = ", ".join(f"{name} {reward:+.3g}" for name, reward in turn.shaping.items() if reward)
        outcome.insert(1, f"**trained on** {turn.shaped_reward:+.3g}{f' ({added})' if added else ''}")
    if turn.num_surplus_actions:
        outcome.append(f"**surplus actions** {turn.num_surplus_actions}")
    if turn.problem:
        outcome.append(f"**problem** {format_code_span(turn.problem)}")
    outcome.append(f"**reply ended by** {turn.finish.name.lower()}")
    return "\n\n".join([*blocks, " · ".join(outcome)])


def format_episode(episode: Episode, decode: Decode | None = None, dialect: Dialect = ANSWER) -> str:
    """Format a whole episode, with a header that identifies it and says how it ended.

    Args:
        episode: the episode.
        decode: the tokenizer's ids-to-text function; without it, forced tokens are only counted.
        dialect: format of its replies.
    """
    outcome = "success" if episode.success else "failure"
    head = (
        f"### {format_code_span(episode.task_name)} group {episode.group}, member {episode.member}: {outcome}\n\n"
        f"**return** {episode.total_reward:+.3g} · **turns** {len(episode.turns)} · "
        f"**end** {episode.end.name.lower()} · **task** {format_code_span(episode.instance_id)}"
    )
    if episode.error:
        head += f"\n\n**error** {format_code_span(episode.error)}"
    turns = [format_turn(number, turn, decode, dialect) for number, turn in enumerate(episode.turns, 1)]
    return "\n\n".join([head, *turns])
