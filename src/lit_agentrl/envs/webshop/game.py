"""WebShop: find a product by an instruction, choose its options, buy it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from lit_agentrl.checks import require, require_one_of, require_whole
from lit_agentrl.envs.base import Outcome, TextEnv
from lit_agentrl.envs.splits import draw_for_split, keyed_rng, split_of
from lit_agentrl.envs.webshop.catalogue import digest, load
from lit_agentrl.envs.webshop.goals import KINDS, Goal, Kind, goal_of, has_goals, worth
from lit_agentrl.envs.webshop.invented import invent
from lit_agentrl.envs.webshop.pages import Page, View, saved
from lit_agentrl.envs.webshop.search import HITS, SEARCHES, Search, Shop
from lit_agentrl.envs.webshop.shopper import best
from lit_agentrl.envs.webshop.words import search_words

_GOAL = 73  # purpose key
_ACTION = re.compile(r"\s*(search|click)\s*\[(.*)\]\s*", re.IGNORECASE | re.DOTALL)


class WebShop(TextEnv):
    """One purchase an episode, worth 0 to 1; solved is a purchase worth 1.

    Best play knows the product of the goal.  An action is ``search[words]``, on the page for it, or
    ``click[button]``; anything else changes nothing.

    Args:
        products: how many are invented; of no effect beside ``path``.
        path: a folder with the files of the original, ``items_shuffle*.json`` and ``items_ins_v2*.json``, and
            ``items_human_ins*.json`` for human goals; each may be packed (``.gz``).  None: invented products.
        goals: ``synthetic``, made of a product and options; ``human``, instructions that people wrote.
        results: products on a page of results.
        partial: pay the worth of a purchase; False: only 1 for one that is worth 1.
        search: ``fts5``, of SQLite; ``bm25s``, of the library of this name.
        split: ``train``, ``val`` or ``test``, by the product that the goal was made of.

    Raises:
        ValueError: a value out of range, a file that cannot be used, or no goal of this kind in this split.
    """

    def __init__(
        self,
        *,
        products: int = 1000,
        path: str | None = None,
        goals: Kind = "synthetic",
        results: int = 10,
        partial: bool = True,
        search: Search = "fts5",
        split: str = "train",
    ) -> None:
        super().__init__(split=split)
        require_one_of("search", search, SEARCHES)
        require_whole("products", products, 30, 100_000)
        require_one_of("goals", goals, KINDS)
        require_whole("results", results, 1, HITS)
        require(isinstance(partial, bool), "partial", partial, "true or false")
        is_known = path is not None or goals == "synthetic"
        require(is_known, "goals", goals, "synthetic where path=null: nobody wrote of invented products")
        self._which = str(path) if path is not None else products
        self._kind, self._results, self._partial, self._search = goals, results, partial, search
        self._able = [product for product in self._shop.products if has_goals(product, goals)]
        own = [product for product in self._able if split_of(product.id) == split]
        require(bool(own), "goals", goals, f"a kind of which the split {split} has one")
        self.max_solution = 3 + max(len(product.options) for product in self._able)
        self._goal = Goal("", "", (), (), None)
        self._page = Page()

    @classmethod
    def home(cls, options: Mapping[str, Any]) -> Path:
        return super().home(options) if options["path"] is None else Path(options["path"]) / "products"

    @classmethod
    def identity(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """The content of the files in place of their folder; the search that was there first is not named."""
        own = {key: value for key, value in options.items() if (key, value) != ("search", "fts5")}
        return own if own["path"] is None else {**own, "path": digest(own["path"])}

    @property
    def rules(self) -> str:
        return (
            "Buy the product that fits the instruction best. Its kind, its traits, its options and its price count.\n"
            "search[words] looks for products, on the search page. click[button] clicks what a page shows in "
            "brackets: a product, an option, a text to read, back to search, buy now. Choose the options before you "
            "buy. The purchase ends the game.\nRewards: up to 1 for the purchase."
        )

    @property
    def system_text(self) -> str:
        return f"You are shopping in a web shop.\n{self.rules}"

    def random_action(self, rng: np.random.Generator) -> str:
        """Some words of the instruction on the search page, else any button."""
        buttons = list(self._view().targets())
        if buttons:
            return f"click[{buttons[int(rng.integers(len(buttons)))]}]"
        words = search_words(self._goal.text)
        count = int(rng.integers(1, 4))
        return f"search[{' '.join(words[int(rng.integers(len(words)))] for _ in range(count))}]"

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        """Search, product, options, purchase; None: the episode is over, or no search finds the product."""
        require_whole("horizon", horizon, 1)
        if not self._is_running:
            return None
        plan = best(self._goal, self._target, self._view(), self._shop.find)
        return plan[:horizon] if plan else None

    @property
    def _shop(self) -> Shop:
        return _shop(self._which, self._search, os.getpid())  # of each process, also after a fork

    @property
    def _target(self) -> int:
        return self._shop.numbers[self._goal.product]

    def _view(self) -> View:
        hits = self._shop.find(self._page.words) if self._page.words is not None else ()
        return View(self._page, hits, self._results, self._shop.products)

    def _draw_instance(self, seed: int) -> str:
        def propose(attempt: int) -> Iterator[Goal]:
            rng = keyed_rng(seed, attempt, _GOAL)
            yield goal_of(self._able[int(rng.integers(len(self._able)))], self._kind, rng)

        self._goal = draw_for_split(propose, lambda goal: goal.product, split=self.split)
        self._page = Page()
        return self._goal.json

    def _observe(self) -> str:
        return f"Instruction: {self._goal.text}\n{self._view().text()}"

    def _play(self, action: str) -> Outcome:
        found = _ACTION.fullmatch(action)
        if not found:
            return Outcome(action_is_valid=False)
        what, argument = found[1].lower(), found[2].strip()
        if what == "search":
            if self._page.words is not None or not search_words(argument):
                return Outcome(action_is_valid=False)
            self._page = Page(words=argument)
            return Outcome()
        page = self._view().targets().get(argument.lower())
        if page is None:
            return Outcome(action_is_valid=False)
        self._page = page
        if not page.bought:
            return Outcome()
        assert page.product is not None
        products = self._shop.products
        points = worth(self._goal, products[self._target], products[page.product], page.chosen.values())
        is_solved = points >= 1
        paid = points if self._partial else float(is_solved)
        return Outcome({"purchase": paid}, terminated=True, success=is_solved)

    def _get_state(self) -> dict[str, Any]:
        return {"goal": json.loads(self._goal.json), "page": saved(self._page)}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        self._goal, self._page = Goal.read(state["goal"]), Page(**state["page"])


@lru_cache(4)
def _shop(which: str | int, search: Search, process: int) -> Shop:
    return Shop(load(which) if isinstance(which, str) else invent(which), search)
