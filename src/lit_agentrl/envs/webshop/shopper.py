"""Who shops: one that knows the product, and one that goes by rules of what it reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from lit_agentrl.envs.webshop.goals import Goal
from lit_agentrl.envs.webshop.pages import BACK, BUY, NEXT, PREVIOUS, Page, View
from lit_agentrl.envs.webshop.words import are_alike, coloured, search_words

Find = Callable[[str], tuple[int, ...]]
_BOUND = re.compile(r", and price lower than (\d+\.\d\d) dollars$")


def best(goal: Goal, target: int, view: View, find: Find) -> list[str] | None:
    """The actions that buy the product of the goal with its options; None: no search finds it."""
    page, product = view.page, view.products[target]
    at_item = replace(view, page=replace(page, product=target, text="", chosen={}))
    if page.bought:
        return None
    if page.product == target:
        back = [_click(PREVIOUS)] if page.text else []
        return [*back, *_purchase(goal, at_item, page.chosen)]
    if page.product is None and page.words is not None and target in view.hits:
        return [*_turned(view, target), *_purchase(goal, at_item, {})]
    back = [_click(BACK)] if page.words is not None else []
    for words in (product.title, f"{product.title} {' '.join(product.bullets[:1])} {product.description}"):
        hits = find(words)
        if target in hits:
            found = replace(view, page=Page(words), hits=hits)
            return [*back, f"search[{words}]", *_turned(found, target), *_purchase(goal, at_item, {})]
    return None


def _turned(view: View, target: int) -> list[str]:
    """Over pages of results to the product."""
    pages = view.hits.index(target) // view.per_page - view.page.number
    turns = [_click(NEXT if pages > 0 else PREVIOUS)] * abs(pages)
    return [*turns, _click(view.products[target].id.lower())]


def _purchase(goal: Goal, view: View, chosen: Mapping[str, str]) -> list[str]:
    """The options that are wanted and not yet chosen, then the purchase."""
    clicks, groups = [], set[str]()
    for wanted in goal.options:
        fits = [each for each in view.options() if each[0] not in groups]
        exact = [each for each in fits if each[1] == wanted]
        alike = [each for each in fits if are_alike(coloured(each[1]), coloured(wanted))]
        for group, value, button in (exact or alike)[:1]:
            groups.add(group)
            if chosen.get(group) != value:
                clicks.append(_click(button))
    return [*clicks, _click(BUY)]


def _click(button: str) -> str:
    return f"click[{button}]"


def by_rules(told: str) -> str:
    """The next action of a shopper that reads nothing but the observation.

    It searches with the words of the instruction, takes the first result within the price, else the first, chooses
    the options that the instruction names, and buys.
    """
    first, *lines = told.split("\n")
    instruction = first.removeprefix("Instruction: ")
    bound = _BOUND.search(instruction)
    if lines[0].startswith("Search the shop"):
        return f"search[{instruction[: bound.start()] if bound else instruction}]"
    if lines[0].startswith("Nothing was found"):
        return _click(BACK)
    if lines[0].startswith("Results"):
        rows = [re.match(r"\[(\w+)\] .*, \$([\d.]+)[^,]*$", line) for line in lines]
        found = [(row[1], float(row[2])) for row in rows if row]
        cheap = [id for id, price in found if not bound or price <= float(bound[1])]
        return _click(cheap[0] if cheap else found[0][0])
    wanted = f" {' '.join(search_words(instruction))} "
    for line in lines:
        group = re.match(r"[^:\[]+: (\[.+\]) chosen: none$", line)
        if not group:
            continue
        buttons = re.findall(r"\[([^\]]+)\]", group[1])
        named = [
            each for each in buttons if f" {' '.join(search_words(each))} " in wanted and search_words(each)
        ]
        if named:
            return _click(max(named, key=len))
    return _click(BUY)
