"""A shopper that reads only the observation, to compare others with; docs/findings/worlds.md has its scores."""

from __future__ import annotations

import re

from lit_agentrl.envs.webshop.pages import BACK, BUY
from lit_agentrl.envs.webshop.words import find_search_words

_BOUND = re.compile(r", and price lower than (\d+\.\d\d) dollars$")


def play_by_rules(observation: str) -> str:
    """Return the next action of a shopper that reads only the observation.

    It searches with the words of the instruction, takes the first result within the price limit, else the first one,
    chooses the options that the instruction names, and buys.
    """
    first, *lines = observation.split("\n")
    instruction = first.removeprefix("Instruction: ")
    bound = _BOUND.search(instruction)
    if lines[0].startswith("Search the shop"):
        return f"search[{instruction[: bound.start()] if bound else instruction}]"
    if lines[0].startswith("Nothing was found"):
        return f"click[{BACK}]"
    if lines[0].startswith("Results"):
        rows = [re.match(r"\[(\w+)\] .*, \$([\d.]+)[^,]*$", line) for line in lines]
        results = [(row[1], float(row[2])) for row in rows if row]
        cheap = [id for id, price in results if not bound or price <= float(bound[1])]
        return f"click[{cheap[0] if cheap else results[0][0]}]"
    wanted = f" {' '.join(find_search_words(instruction))} "
    for line in lines:
        group = re.match(r"[^:\[]+: (\[.+\]) chosen: none$", line)
        if not group:
            continue
        buttons = re.findall(r"\[([^\]]+)\]", group[1])
        named = [
            button
            for button in buttons
            if f" {' '.join(find_search_words(button))} " in wanted and find_search_words(button)
        ]
        if named:
            return f"click[{max(named, key=len)}]"
    return f"click[{BUY}]"
