"""The title of a report, and its result in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from lit_agentrl.report.page.cells import Cell, GameSplit
from lit_agentrl.report.page.held_out import state_held_out
from lit_agentrl.report.page.results import Comparison, Report, Result

_LEVEL = 0.05  # adjusted p-value up to which a test is passed
_NAMED = 3  # most cells or games that a title names


def make_title(report: Report) -> str:
    """Make a title of the cells that are compared and the games that they played."""
    games = list(dict.fromkeys(result.name.game for result in report.results))
    where = f" on {_join(games)}" if games else ""
    if len(report.cells) == 1:
        (cell,) = report.cells
        return (cell.label if "=" in cell.label else "Runs") + where
    if len(report.cells) > _NAMED:
        words = [word for cell in report.cells for word in cell.label.split() if "=" in word]
        keys = list(dict.fromkeys(word.partition("=")[0] for word in words))
        return f"{len(report.cells)} cells of {_join(keys, noun='options') if keys else 'runs'}{where}"
    return _join([cell.name for cell in report.cells], " against ") + where


def _join(names: Sequence[str], last: str = " and ", noun: str = "games") -> str:
    if len(names) > _NAMED:
        return f"{len(names)} {noun}"
    return last.join(filter(None, (", ".join(names[:-1]), names[-1])))


def state_result(report: Report) -> str:
    """State for each game which cell is better, or that it is undecided.

    If no run was measured on a game, do so for held-out data.
    """
    names = list(dict.fromkeys(result.name for result in report.results))
    if not names:
        return state_held_out(report.held_out, report.stage) or (
            "There is nothing to compare: no run was measured on a game or on held-out data."
        )
    if len(names) > _NAMED:
        return _state_games(report, names)
    return " ".join(_state_game(report, name) + _state_levels(report, name) for name in names)


def _state_games(report: Report, names: Sequence[GameSplit]) -> str:
    """State on how many of several games each cell is the best."""
    games_by_best: dict[str, list[str]] = {}
    for name in names:
        ranked, pairs = _rank(report, name)
        is_best = bool(pairs) and len(pairs) == len(ranked) - 1 and all(map(_is_decided, pairs))
        games_by_best.setdefault(ranked[0].cell.name if is_best else "", []).append(name.game)
    undecided = len(games_by_best.pop("", []))
    parts = [
        f"{cell} is better than all others on {len(games)} ({_join(games)})"
        for cell, games in games_by_best.items()
    ]
    parts += [f"{undecided} {'is' if undecided == 1 else 'are'} undecided"] if undecided else []
    return f"Of {len(names)} games ({report.stage} weights), {'; '.join(parts)}."


def _rank(report: Report, name: GameSplit) -> tuple[list[Result], list[Comparison]]:
    """Return the results on a game, best first, and the comparisons of the best."""
    results = [result for result in report.results if result.name == name]
    ranked = sorted(results, key=lambda result: -_get_mean(result))
    best = ranked[0].cell
    pairs = [
        _put_first(c, best)
        for c in report.comparisons
        if c.name == name and any(x is best for x in (c.a, c.b))
    ]
    order = [result.cell for result in ranked]
    return ranked, sorted(pairs, key=lambda pair: next(n for n, cell in enumerate(order) if cell is pair.b))


def _state_game(report: Report, name: GameSplit) -> str:
    ranked, pairs = _rank(report, name)
    where = f"On {name.game} ({name.split}, {report.stage} weights)"
    if len(ranked) == 1:
        return _state_alone(ranked[0], report.stage, where)
    if not pairs:
        return f"{where} nothing was compared: see the warnings."
    open_pairs = [pair for pair in pairs if not _is_decided(pair)]
    best, pair = ranked[0].cell, (open_pairs or pairs)[0]
    other = next(result for result in ranked if result.cell is pair.b)
    numbers = f"success {_get_mean(ranked[0]):.3f} against {_get_mean(other):.3f}, {_describe(pair)}"
    if open_pairs:
        return (
            f"{where} it is undecided whether {best.name} is better than {pair.b.name}: {numbers}; "
            f"{_explain_doubt(pair)}."
        )
    if len(pairs) < len(ranked) - 1:
        return f"{where} {best.name} has the highest success, and is better than {pair.b.name}: {numbers}."
    if len(pairs) > 1:
        return f"{where} {best.name} is better than all {len(pairs)} others; the next is {pair.b.name}: {numbers}."
    return f"{where} {best.name} is better than {pair.b.name}: {numbers}."


def _state_levels(report: Report, name: GameSplit) -> str:
    """State chance and oracle of a game, or that no cell is above chance."""
    ranked, _ = _rank(report, name)
    best = ranked[0]
    if best.chance is None or not best.values:
        return ""
    if _get_mean(best) <= best.chance:
        return f" Nothing here is above chance, {best.chance:.3f}: random play does as well."
    return f" Chance is {best.chance:.3f}" + (
        "." if best.oracle is None else f", the oracle {best.oracle:.3f}."
    )


def _state_alone(result: Result, stage: str, where: str) -> str:
    start, value = result.stages["start"], result.stages[stage]
    runs = f"{len(result.values)} seeds" if len(result.values) > 1 else "one run, one seed"
    if value is None:
        return f"{where} {result.cell.name} has no score yet."
    ends = "" if value.low is None or value.high is None else f" [{value.low:.3f}, {value.high:.3f}]"
    before = "" if start is None else f", {start.value:.3f} at the start"
    return f"{where} success is {value.value:.3f}{ends}{before} ({runs}, 95 % interval)."


def _get_mean(result: Result) -> float:
    return sum(result.values) / len(result.values)


def _put_first(comparison: Comparison, best: Cell) -> Comparison:
    """Return the comparison with ``best`` as its first cell."""
    if comparison.a is best:
        return comparison
    value, low, high = comparison.difference.bounds
    bounds = comparison.difference.bounds._replace(
        value=0.0 - value, low=None if high is None else 0.0 - high, high=None if low is None else 0.0 - low
    )
    difference = comparison.difference._replace(bounds=bounds)
    return Comparison(comparison.b, comparison.a, comparison.name, difference, None, comparison.adjusted)


def _is_decided(pair: Comparison) -> bool:
    """Return whether the interval is above 0.

    An interval without width, which comes from equal differences, also needs a passed test.
    """
    _, low, high = pair.difference.bounds
    return low is not None and low > 0 and (high != low or _is_significant(pair))


def _is_significant(pair: Comparison) -> bool:
    return pair.adjusted is not None and pair.adjusted <= _LEVEL


def _describe(pair: Comparison) -> str:
    value, low, high = pair.difference.bounds
    has_width = low is not None and high is not None and low < high
    interval = f" with the 95 % interval [{low:.3f}, {high:.3f}]" if has_width else ""
    doubt = ""
    if _is_decided(pair) and not _is_significant(pair):
        doubt = "; too few runs for a permutation test to be passed"
        doubt += "" if pair.adjusted is None else f" (p {pair.adjusted:.2g})"
    return f"a difference of {value:.3f}{interval} over {pair.difference.units}{doubt}"


def _explain_doubt(pair: Comparison) -> str:
    _, low, high = pair.difference.bounds
    if low is None:
        return "each needs at least two seeds, better five"
    return "equal differences have no interval: play more seeds" if low == high else "the interval contains 0"
