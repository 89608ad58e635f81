"""Goals of purchases, and the reward of a purchase."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from lit_agentrl.envs.webshop.catalogue import Product
from lit_agentrl.envs.webshop.words import are_similar, extract_colour, find_content_words

Kind = Literal["synthetic", "human"]
KINDS: tuple[Kind, ...] = ("synthetic", "human")
_BOUNDS = [10.0 * step for step in range(1, 100)]  # dollars


@dataclass(frozen=True)
class Goal:
    """An instruction, and what a purchase is compared with.

    Attributes:
        product: id of the product from which the goal was made.
        text: the instruction that the shopper reads.
        attributes: traits that the purchase should have.
        options: values that the purchase should have, in lower case.
        most: highest price, dollars; None: any price.
    """

    product: str
    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    most: float | None

    @property
    def json(self) -> str:
        """The whole goal in one line of JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def read(cls, saved: Mapping[str, Any]) -> Goal:
        """Create a goal from the values of `json`."""
        lists = {name: tuple(saved[name]) for name in ("attributes", "options")}
        return cls(saved["product"], saved["text"], most=saved["most"], **lists)


def draw_goal(product: Product, kind: Kind, rng: np.random.Generator) -> Goal:
    """Draw a goal for a product: its options, and a limit of the price.

    Of the next four multiples of 10 dollars above the price, below 1000, two are drawn; the limit is the larger one.
    There is no limit if fewer than two remain.
    """
    if kind == "human":
        wish = product.wishes[int(rng.integers(len(product.wishes)))]
        text, attributes, options = wish.text.rstrip(". "), wish.attributes, wish.options
    else:
        chosen_values = {
            name: values[int(rng.integers(len(values)))] for name, values in sorted(product.options.items())
        }
        chosen_text = ", and ".join(f"{name}: {value}" for name, value in chosen_values.items())
        text = f"{product.instruction.rstrip('. ')}{' with ' * bool(chosen_text)}{chosen_text}"
        attributes, options = product.wanted, tuple(chosen_values.values())
    higher_bounds = [bound for bound in _BOUNDS if bound > product.price][:4]
    max_price = (
        max(rng.choice(higher_bounds, size=2, replace=False).tolist()) if len(higher_bounds) > 1 else None
    )
    text += f", and price lower than {max_price:.2f} dollars" if max_price else ""
    return Goal(product.id, text, attributes, options, max_price)


def has_goals(product: Product, kind: Kind) -> bool:
    """Return whether a goal of this kind can be made from a product."""
    return bool(product.wishes if kind == "human" else product.instruction and product.wanted)


def compute_reward(goal: Goal, wanted: Product, bought: Product, chosen: Iterable[str]) -> float:
    """Compute the reward of a purchase, from 0 to 1.

    With the type match of `match_type` (Yao et al. 2022, https://arxiv.org/abs/2207.01206)::

        type * (attributes met + options met + [price <= most]) / (attributes + options + 1)

    Args:
        goal: the goal of the episode.
        wanted: the product from which the goal was made.
        bought: the product that was bought.
        chosen: the values of the chosen options.
    """
    attributes = sum(_has_attribute(bought, attribute) for attribute in goal.attributes)
    options = count_options_met(goal.options, list(chosen))
    is_cheap = goal.most is None or bought.price <= goal.most
    met = attributes + options + is_cheap
    return match_type(wanted, bought) * met / (len(goal.attributes) + len(goal.options) + 1)


def match_type(wanted: Product, bought: Product) -> float:
    """Compare two products by query, categories and title: 1, 0.5, 0.1 or 0."""
    words = find_content_words(wanted.title)
    share = len(words & find_content_words(bought.title)) / len(words) if words else 0.2
    if share < 0.1:
        return 0.1 if share > 0 else 0.0
    is_near = bought.query == wanted.query or len({*bought.path} & {*wanted.path}) >= 2
    return 1.0 if is_near or share > 0.2 else 0.5


def count_options_met(wanted: Sequence[str], chosen: Sequence[str]) -> int:
    """Count the wanted options that are similar to a chosen one."""
    colours = [extract_colour(value) for value in chosen]
    return sum(any(are_similar(colour, extract_colour(value)) for colour in colours) for value in wanted)


def _has_attribute(product: Product, attribute: str) -> bool:
    if any(are_similar(product_attribute, attribute) for product_attribute in product.attributes):
        return True
    texts = (product.title, " ".join(product.bullets), product.description)
    return any(attribute in text.lower() for text in texts)
