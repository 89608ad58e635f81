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
from lit_agentrl.envs.webshop.catalogue import hash_files, load
from lit_agentrl.envs.webshop.goals import KINDS, Goal, Kind, compute_reward, draw_goal, has_goals
from lit_agentrl.envs.webshop.invented import invent
from lit_agentrl.envs.webshop.pages import Page, View, to_json
from lit_agentrl.envs.webshop.search import HITS, SEARCHES, Search, Shop
from lit_agentrl.envs.webshop.shopper import plan_purchase
from lit_agentrl.envs.webshop.words import find_search_words

_GOAL = 73  # purpose key
_ACTION = re.compile(r"\s*(search|click)\s*\[(.*)\]\s*", re.IGNORECASE | re.DOTALL)


class WebShop(TextEnv):
    """One purchase per episode; its reward is from 0 to 1, and 1 is success.

    Best play knows the product of the goal.  An action is ``search[words]``, on the search page, or
    ``click[button]``; anything else changes nothing.

    Args:
        products: number of invented products; without effect if ``path`` is set.
        path: a folder with the files of the original, ``items_shuffle*.json`` and ``items_ins_v2*.json``, and
            ``items_human_ins*.json`` for human goals; each may be packed (``.gz``).  None: invented products.
        goals: ``synthetic``, generated from a product and options; ``human``, instructions written by people.
        results: products per page of results.
        partial: whether a purchase earns its partial reward; False: only 1 for a perfect one.
        search: the index: ``fts5`` of SQLite, or ``bm25s`` of the library with this name.
        split: ``train``, ``val`` or ``test``, decided by the product of the goal.

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
        self._source = str(path) if path is not None else products
        self._kind, self._results, self._partial, self._search = goals, results, partial, search
        self._eligible = [product for product in self._shop.products if has_goals(product, goals)]
        of_split = [product for product in self._eligible if split_of(product.id) == split]
        require(bool(of_split), "goals", goals, f"a kind that the split {split} has")
        self.max_solution = 3 + max(len(product.options) for product in self._eligible)
        self._goal = Goal("", "", (), (), None)
        self._page = Page()

    @classmethod
    def home(cls, options: Mapping[str, Any]) -> Path:
        return super().home(options) if options["path"] is None else Path(options["path"]) / "products"

    @classmethod
    def identity(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options with the hash of the files' content in place of their folder.

        The default search is left out, so that identities from before that option existed stay valid.
        """
        own_options = {key: value for key, value in options.items() if (key, value) != ("search", "fts5")}
        return (
            own_options
            if own_options["path"] is None
            else {**own_options, "path": hash_files(own_options["path"])}
        )

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
        """Search random words of the instruction on the search page, else click any button."""
        buttons = list(self._get_view().find_targets())
        if buttons:
            return f"click[{buttons[int(rng.integers(len(buttons)))]}]"
        words = find_search_words(self._goal.text)
        count = int(rng.integers(1, 4))
        return f"search[{' '.join(words[int(rng.integers(len(words)))] for _ in range(count))}]"

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        """Return search, product, options and purchase.

        None: the episode is over, or no search finds the product.
        """
        require_whole("horizon", horizon, 1)
        if not self._is_running:
            return None
        plan = plan_purchase(self._goal, self._target, self._get_view(), self._shop.find)
        return plan[:horizon] if plan else None

    @property
    def _shop(self) -> Shop:
        return _open_shop(self._source, self._search, os.getpid())  # one per process, also after a fork

    @property
    def _target(self) -> int:
        return self._shop.numbers[self._goal.product]

    def _get_view(self) -> View:
        hits = self._shop.find(self._page.words) if self._page.words is not None else ()
        return View(self._page, hits, self._results, self._shop.products)

    def _draw_instance(self, seed: int) -> str:
        def propose(attempt: int) -> Iterator[Goal]:
            rng = keyed_rng(seed, attempt, _GOAL)
            yield draw_goal(self._eligible[int(rng.integers(len(self._eligible)))], self._kind, rng)

        self._goal = draw_for_split(propose, lambda goal: goal.product, split=self.split)
        self._page = Page()
        return self._goal.json

    def _observe(self) -> str:
        return f"Instruction: {self._goal.text}\n{self._get_view().render()}"

    def _play(self, action: str) -> Outcome:
        match = _ACTION.fullmatch(action)
        if not match:
            return Outcome(action_is_valid=False)
        command, argument = match[1].lower(), match[2].strip()
        if command == "search":
            if self._page.words is not None or not find_search_words(argument):
                return Outcome(action_is_valid=False)
            self._page = Page(words=argument)
            return Outcome()
        page = self._get_view().find_targets().get(argument.lower())
        if page is None:
            return Outcome(action_is_valid=False)
        self._page = page
        if not page.bought:
            return Outcome()
        assert page.product is not None
        products = self._shop.products
        reward = compute_reward(
            self._goal, products[self._target], products[page.product], page.chosen.values()
        )
        is_solved = reward >= 1
        paid = reward if self._partial else float(is_solved)
        return Outcome({"purchase": paid}, terminated=True, success=is_solved)

    def _get_state(self) -> dict[str, Any]:
        return {"goal": json.loads(self._goal.json), "page": to_json(self._page)}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        self._goal, self._page = Goal.read(state["goal"]), Page(**state["page"])


@lru_cache(4)
def _open_shop(source: str | int, search: Search, process: int) -> Shop:
    return Shop(load(source) if isinstance(source, str) else invent(source), search)
