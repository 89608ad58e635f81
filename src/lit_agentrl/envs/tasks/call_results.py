"""Match the results of tools to the calls whose ids they name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lit_agentrl.envs.tasks.message_parts import (
    BadRow,
    has_calls_alone,
    is_of_tool,
)
from lit_agentrl.envs.tasks.tables import parse_json


def sort_results(messages: list[Any], column: str) -> list[Any]:
    """Sort the results of tools into the order of the calls whose ids they name.

    Templates tell results apart by their order.  Results without an id fill the places that are left, in their order.
    Where the calls have no ids, or one call has one result, the order of the file stays.

    Raises:
        BadRow: ids do not say which result belongs to which call.
    """
    ordered, ids = list(messages), list[str | None]()
    first = 0  # index of the first result after the last calls
    for place, message in enumerate([*messages, None]):
        given = message if isinstance(message, Mapping) else {}
        if is_of_tool(given):
            continue
        ordered[first:place] = _match(ordered[first:place], ids, column)
        # `join_calls` joins such a message to the calls before it
        continues_calls = place == first and has_calls_alone(given)
        ids = [*(ids if continues_calls else []), *_list_ids(given)]
        first = place + 1
    return ordered


def _list_ids(message: Mapping[str, Any]) -> list[str | None]:
    """Return the ids of a message's calls; None stands for a missing id."""
    calls = message.get("tool_calls")
    calls = parse_json(calls) if isinstance(calls, str) else calls
    calls = [calls] if isinstance(calls, Mapping) else calls
    if not isinstance(calls, list):
        return [None] if has_calls_alone(message) or message.get("function_call") else []
    names = [call.get("id") if isinstance(call, Mapping) else None for call in calls]
    return [None if name is None else str(name) for name in names]


def _match(results: list[Any], ids: list[str | None], column: str) -> list[Any]:
    """Return results in the order of their calls."""
    result_ids = [each.get("tool_call_id") for each in results]
    known = [call_id for call_id in ids if call_id is not None]
    if not known or all(result_id is None for result_id in result_ids) or len(results) == len(ids) == 1:
        return results
    placed: dict[int, Any] = {}
    for result, result_id in zip(results, result_ids, strict=True):
        if result_id is None:
            continue
        if str(result_id) not in known:
            raise BadRow(
                "bad_result",
                f"column {column}: tool_call_id {str(result_id)[:40]!r} names no call of the reply before it; write "
                "the id of one, or leave ids out where results stand in the order of the calls",
            )
        if (place := ids.index(str(result_id))) in placed:
            raise BadRow(
                "bad_result", f"column {column}: two results name the call {str(result_id)[:40]!r}; keep one"
            )
        placed[place] = result
    free = [place for place in range(len(ids) + len(results)) if place not in placed]
    unnamed = [result for result, result_id in zip(results, result_ids, strict=True) if result_id is None]
    placed |= dict(zip(free, unnamed, strict=False))
    if gaps := [place for place in range(max(placed)) if place not in placed]:
        raise BadRow(
            "bad_result",
            f"column {column}: the call {str(ids[gaps[0]])[:40]!r} has no result, and a later one has; write it",
        )
    return [placed[place] for place in sorted(placed)]
