"""An episode as Markdown.  What a policy writes is data: it is shown in code and cannot become markup."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from lit_agentrl.episode import Episode, Segment, Turn
from lit_agentrl.text.dialects.answer import ANSWER
from lit_agentrl.text.dialects.base import Dialect

Decode = Callable[[list[int]], str]
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")


def clean(text: str) -> str:
    """Text that can be stored and shown: control characters and lone surrogates become escapes."""
    escaped = CONTROL.sub(lambda found: f"\\x{ord(found.group()):02x}", text)
    return escaped.encode("utf-8", "backslashreplace").decode("utf-8")


def fenced(text: str) -> str:
    """A code block around ``text``, with a fence longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{clean(text)}\n{fence}"


def inline(text: str) -> str:
    """``text`` as a one-line code span; backticks become quotes, since a span cannot hold a run of them."""
    flat = " ".join(clean(text).split()).replace("`", "'")
    return f"`{flat}`" if flat else "–"


def reply_parts(turn: Turn, dialect: Dialect = ANSWER) -> Iterator[tuple[str, str]]:
    """The (role, text) pieces of a reply in order; roles are ``think``, ``answer`` and ``other``."""
    in_think = len(turn.reply_segments) > 0 and turn.reply_segments[0] == Segment.THINK
    end = 0
    for block in dialect.spans(turn.reply_text, in_think=in_think):
        yield "other", turn.reply_text[end : block.start]
        yield block.kind, turn.reply_text[block.start : block.end]
        end = block.end
    yield "other", turn.reply_text[end:]


def forced_text(turn: Turn, decode: Decode | None) -> str:
    """The tokens put before the reply that are neither prompt nor observation."""
    forced = turn.prefix_tokens[turn.prefix_segments == Segment.FORCED].tolist()
    if not forced:
        return ""
    return decode(forced) if decode is not None else f"({len(forced)} tokens)"


def turn_markdown(number: int, turn: Turn, decode: Decode | None, dialect: Dialect = ANSWER) -> str:
    """One turn: its pieces by role, then what came of it."""
    if turn.starts_row and number > 1:  # the policy reads something else than the dialogue above
        pieces = [
            (
                "prompt",
                decode(turn.prefix_tokens.tolist()) if decode else f"({len(turn.prefix_tokens)} tokens)",
            )
        ]
    else:
        pieces = [("observation", turn.observation), ("forced", forced_text(turn, decode))]
    pieces += list(reply_parts(turn, dialect))
    blocks = [f"#### turn {number}"]
    blocks += [f"**{role}**\n\n{fenced(text)}" for role, text in pieces if text.strip()]
    outcome = [f"**reward** {turn.reward:+.3g}", f"**actions** {inline(' || '.join(turn.actions))}"]
    if turn.shaped_reward is not None:
        added = ", ".join(f"{name} {points:+.3g}" for name, points in turn.shaping.items() if points)
        outcome.insert(1, f"**trained on** {turn.shaped_reward:+.3g}{f' ({added})' if added else ''}")
    if turn.num_surplus_actions:
        outcome.append(f"**surplus actions** {turn.num_surplus_actions}")
    if turn.problem:
        outcome.append(f"**problem** {inline(turn.problem)}")
    outcome.append(f"**reply ended by** {turn.finish.name.lower()}")
    return "\n\n".join([*blocks, " · ".join(outcome)])


def episode_markdown(episode: Episode, decode: Decode | None = None, dialect: Dialect = ANSWER) -> str:
    """A whole episode, headed by who it is and how it ended.

    Args:
        episode: what happened.
        decode: the tokenizer's ids-to-text function; without it forced tokens are only counted.
        dialect: how its replies are written.
    """
    outcome = "success" if episode.success else "failure"
    head = (
        f"### {inline(episode.task_name)} group {episode.group}, member {episode.member}: {outcome}\n\n"
        f"**return** {episode.total_reward:+.3g} · **turns** {len(episode.turns)} · "
        f"**end** {episode.end.name.lower()} · **instance** {inline(episode.instance_id)}"
    )
    if episode.error:
        head += f"\n\n**error** {inline(episode.error)}"
    turns = [turn_markdown(number, turn, decode, dialect) for number, turn in enumerate(episode.turns, 1)]
    return "\n\n".join([head, *turns])
