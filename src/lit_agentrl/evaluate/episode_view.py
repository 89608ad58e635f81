"""Terminal view of an episode: each turn's observation, reply and outcome.

Text from games and policies is data: control characters become escapes, and nothing is read as markup.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from lit_agentrl.callbacks.markup import Decode, clean, split_reply
from lit_agentrl.episode import Episode, FinishReason, Turn
from lit_agentrl.text.dialects.base import Dialect

_MAX_WIDTH = 34  # widest observation that leaves room for the reply to its right, on 80 columns
_STYLES = {"think": "dim", "answer": "bold"}


def render_episode(episode: Episode, dialect: Dialect, note: str = "", decode: Decode | None = None) -> Group:
    """Render the whole episode, with its outcome as the header.

    Args:
        episode: the episode.
        dialect: format of its replies.
        note: a line below the header.
        decode: turns tokens into text; if given, all tokens before each reply are shown in place of the observation.
    """
    outcome = ("solved", "bold green") if episode.success else ("not solved", "bold red")
    count = len(episode.turns)
    head = Text.assemble(
        (clean(episode.task_name), "bold"), ": ", outcome, f" in {count} turn{'s' * (count != 1)}, ",
        f"return {episode.total_reward:+.3g}, ended by {episode.end.name.lower().replace('_', ' ')}",
    )  # fmt: skip
    parts: list[RenderableType] = [head]
    if note:
        parts.append(Text(clean(note), "dim"))
    if episode.error:
        parts.append(Text(clean(f"error: {episode.error}"), "red"))
    for number, turn in enumerate(episode.turns, 1):
        parts += [Rule(f"turn {number}", align="left", style="dim"), render_turn(turn, dialect, decode)]
    return Group(*parts)


def render_turn(turn: Turn, dialect: Dialect, decode: Decode | None = None) -> RenderableType:
    """Render one turn: observation left if narrow, else above; reply and outcome right or below.

    With ``decode``, all that the policy reads before the reply is shown above it.
    """
    read = turn.observation if decode is None else decode(turn.prefix_tokens.tolist())
    observation = Text(clean(read).strip("\n"))
    details = Table.grid(padding=(0, 1))
    details.add_column(style="cyan", no_wrap=True)
    details.add_column(overflow="fold")
    for label, text in _describe_turn(turn, dialect):
        details.add_row(label, text)
    if decode or max(map(cell_len, observation.plain.splitlines()), default=0) > _MAX_WIDTH:
        return Group(observation, Text(), details)
    columns = Table.grid(padding=(0, 3))
    columns.add_column(no_wrap=True)
    columns.add_column()
    columns.add_row(observation, details)
    return columns


def _describe_turn(turn: Turn, dialect: Dialect) -> Iterator[tuple[str, Text]]:
    for role, text in split_reply(turn, dialect):
        if text.strip():
            yield (
                {"think": "thinks", "answer": "answers"}.get(role, "writes"),
                Text(clean(text.strip()), _STYLES.get(role, "")),
            )
    if turn.finish != FinishReason.STOP:
        yield "cut off", Text(f"by {turn.finish.name.lower()}", "red")
    if turn.problem:
        yield "problem", Text(clean(turn.problem.replace("_", " ")), "yellow" if turn.is_valid else "red")
    surplus = f" (and {turn.num_surplus_actions} beyond the limit)" if turn.num_surplus_actions else ""
    yield "plays", Text((", ".join(clean(action) for action in turn.actions) or "nothing") + surplus)
    shaped = "" if turn.shaped_reward is None else f" ({turn.shaped_reward:+.3g} for training)"
    yield "earns", Text(f"{turn.reward:+.3g}{shaped}")
