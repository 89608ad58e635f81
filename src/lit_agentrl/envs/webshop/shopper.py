"""A scripted shopper that knows the product."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from lit_agentrl.envs.webshop.goals import Goal
from lit_agentrl.envs.webshop.pages import BACK, BUY, NEXT, PREVIOUS, Page, View
from lit_agentrl.envs.webshop.words import are_similar, extract_colour

Find = Callable[[str], tuple[int, ...]]


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
