"""Certificates as tables of directions, variances and invariances."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lit_agentrl.certificates.certificate import EXACT, MEMBERS, SIZES, Certificate, Direction, format_cosine
from lit_agentrl.certificates.games import TableGame
from lit_agentrl.certificates.shipped import GAMES

_WIDTH = 100
LEGEND = (
    "=: the expected update is a positive multiple, within 1e-10, of the gradient of the return, or of",
    "the return less the KL term if there is one.  A number is the cosine of the two.",
    "The last column names the nearest candidate, with = where it is exact.",
)


def format_directions(certificates: Sequence[Certificate]) -> list[str]:
    """Return the table of directions, a line for each certificate."""
    shown = [each for each in certificates if not each.missing]
    games = [direction.game for direction in shown[0].directions] if shown else []
    width = max([len(each.name) for each in certificates], default=0) + 1
    cells = [max(6, len(game) + 1) for game in games]
    head = (
        " " * width
        + "".join(game.rjust(cell) for game, cell in zip(games, cells, strict=True))
        + "  maximises"
    )
    lines = [head]
    for each in certificates:
        if each.missing:
            lines.append((each.name.ljust(width) + f"– {each.missing}")[:_WIDTH])
            continue
        row = "".join(_format_cell(d).rjust(cell) for d, cell in zip(each.directions, cells, strict=True))
        lines.append(f"{each.name.ljust(width)}{row}  {_name_objective(each)}")
    return lines


def _format_cell(direction: Direction) -> str:
    if direction.is_exact:
        return "="
    return "0" if direction.scale == 0 else format_cosine(direction.cosine, 2)


def _name_objective(certificate: Certificate) -> str:
    on_policy = [direction for direction in certificate.directions if not direction.lag]
    if all(direction.scale == 0 for direction in on_policy):
        return "nothing"
    worst = min(on_policy, key=lambda each: (each.is_exact, each.cosine))
    if worst.is_exact:
        return "= return"
    if worst.scale == 0:
        return "blind: 0"  # the expected update is 0 in a game, but not in all
    return f"{'=' if worst.objective_bias <= EXACT else '≈'} {worst.objective}"


def format_details(certificate: Certificate) -> list[str]:
    """Return a table of one certificate with its bias, a line a game."""
    lines = ["game       cosine       bias      scale  meant          nearest"]
    for each in certificate.directions:
        nearest = f"{'=' if each.objective_bias <= EXACT and each.scale else '≈'} {each.objective}"
        interval = f"  ± {each.half_width:.1g} (sampled)" if each.half_width else ""
        lines.append(
            f"{each.game:<9}{each.cosine:>8.4f}{each.bias:>11.1e}{each.scale:>11.3g}  "
            f"{each.meant:<14} {nearest}{interval}"
        )
    return lines


def format_variances(certificates: Sequence[Certificate]) -> list[str]:
    """Return the table of variances and invariances, without missing certificates."""
    shown = [each for each in certificates if not each.missing]
    if not shown:
        return []
    width = max(len(each.name) for each in shown) + 1
    names = list(shown[0].invariances)
    lines = [
        " " * width + "".join(f"N={size}".rjust(7) for size in SIZES) + "".join(n.rjust(8) for n in names)
    ]
    for each in shown:
        numbers = "".join(("–" if math.isinf(v) else f"{v:.2f}").rjust(7) for v in each.variances)
        lines.append(
            f"{each.name.ljust(width)}{numbers}" + "".join(each.invariances[n].rjust(8) for n in names)
        )
    return lines


def format_page(
    certificates: Sequence[Certificate], games: Sequence[TableGame] = GAMES, *, members: int = MEMBERS
) -> list[str]:
    """Return both tables with what they mean, at most 100 columns wide."""
    lines = [f"Direction of the expected update, groups of {members}, first step of an iteration", ""]
    lines += [*format_directions(certificates), "", *LEGEND, ""]
    if len(certificates) == 1 and not certificates[0].missing:
        lines += [*format_details(certificates[0]), ""]
    lines += [f"{game.name}: {game.says}" for game in games]
    if variances := format_variances(certificates):
        lines += [
            "",
            "Variance of the update in `one turn`, relative to leave-one-out, in groups of N; and invariances",
            "",
            *variances,
        ]
        lines += [
            "",
            "shift of returns: the updates stay the same, or their mean does, or it moves.",
            "scale of rewards: the updates are linear in it, or free of it, or move.",
            "length, turns: forced tokens or turns leave the direction the same, or it moves.",
            "order of members: the updates stay the same, or move.",
        ]
    return lines
