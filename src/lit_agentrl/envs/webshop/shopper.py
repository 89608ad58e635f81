"""Scripted shoppers: one that knows the product, and one that follows rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from lit_agentrl.envs.webshop.goals import Goal
from lit_agentrl.envs.webshop.pages import BACK, BUY, NEXT, PREVIOUS, Page, View
from lit_agentrl.envs.webshop.words import are_similar, extract_colour, find_search_words

Find = Callable[[str], tuple[int, ...]]
_BOUND = re.compile(r", and price lower than (\d+\.\d\d) dollars$")


def plan_purchase(goal: Goal, target: int, view: View, find: Find) -> list[str] | None:
    """Return the actions that buy the goal's product; None: no search finds it."""
    page, product = view.page, view.products[target]
    at_item = replace(view, page=replace(page, product=target, text="", chosen={}))
    if page.bought:
        return None
    if page.product == target:
        back = [_click(PREVIOUS)] if page.text else []
        return [*back, *_plan_clicks(goal, at_item, page.chosen)]
    if page.product is None and page.words is not None and target in view.hits:
        return [*_turn_pages(view, target), *_plan_clicks(goal, at_item, {})]
    back = [_click(BACK)] if page.words is not None else []
    for words in (product.title, f"{product.title} {' '.join(product.bullets[:1])} {product.description}"):
        hits = find(words)
        if target in hits:
            results = replace(view, page=Page(words), hits=hits)
            return [
                *back,
                f"search[{words}]",
                *_turn_pages(results, target),
                *_plan_clicks(goal, at_item, {}),
            ]
    return None


def _turn_pages(view: View, target: int) -> list[str]:
    """Return the clicks through pages of results to the product."""
    pages = view.hits.index(target) // view.per_page - view.page.number
    turns = [_click(NEXT if pages > 0 else PREVIOUS)] * abs(pages)
    return [*turns, _click(view.products[target].id.lower())]


def _plan_clicks(goal: Goal, view: View, chosen: Mapping[str, str]) -> list[str]:
    """Return the clicks on wanted options that are not chosen yet, then the purchase."""
    clicks, groups = [], set[str]()
    for wanted in goal.options:
        fits = [option for option in view.list_options() if option[0] not in groups]
        exact = [option for option in fits if option[1] == wanted]
        similar = [
            option for option in fits if are_similar(extract_colour(option[1]), extract_colour(wanted))
        ]
        for group, value, button in (exact or similar)[:1]:
            groups.add(group)
            if chosen.get(group) != value:
                clicks.append(_click(button))
    return [*clicks, _click(BUY)]


def _click(button: str) -> str:
    return f"click[{button}]"


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
        return _click(BACK)
    if lines[0].startswith("Results"):
        rows = [re.match(r"\[(\w+)\] .*, \$([\d.]+)[^,]*$", line) for line in lines]
        results = [(row[1], float(row[2])) for row in rows if row]
        cheap = [id for id, price in results if not bound or price <= float(bound[1])]
        return _click(cheap[0] if cheap else results[0][0])
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
            return _click(max(named, key=len))
    return _click(BUY)
