"""What is to be bought, and what a purchase is worth."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from lit_agentrl.envs.webshop.catalogue import Product
from lit_agentrl.envs.webshop.words import are_alike, coloured, content_words

Kind = Literal["synthetic", "human"]
KINDS: tuple[Kind, ...] = ("synthetic", "human")
_BOUNDS = [10.0 * step for step in range(1, 100)]  # dollars


@dataclass(frozen=True)
class Goal:
    """An instruction, and what a purchase is measured by.

    Attributes:
        product: id of the product that it was made of.
        options: values, in lower case.
        most: dollars; None: any price.
    """

    product: str
    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    most: float | None

    @property
    def json(self) -> str:
        """All of it, in one line."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def read(cls, saved: Mapping[str, Any]) -> Goal:
        """From the values of `json`."""
        lists = {name: tuple(saved[name]) for name in ("attributes", "options")}
        return cls(saved["product"], saved["text"], most=saved["most"], **lists)


def goal_of(product: Product, kind: Kind, rng: np.random.Generator) -> Goal:
    """A goal for a product that has some of this kind: its options, and a bound of its price, are drawn.

    The bound is the larger of two of the next four multiples of 10 dollars above the price; there is none for
    prices that fewer than two lie above.
    """
    if kind == "human":
        wish = product.wishes[int(rng.integers(len(product.wishes)))]
        text, attributes, options = wish.text.rstrip(". "), wish.attributes, wish.options
    else:
        named = {
            name: values[int(rng.integers(len(values)))] for name, values in sorted(product.options.items())
        }
        told = ", and ".join(f"{name}: {value}" for name, value in named.items())
        text = f"{product.instruction.rstrip('. ')}{' with ' * bool(told)}{told}"
        attributes, options = product.wanted, tuple(named.values())
    above = [bound for bound in _BOUNDS if bound > product.price][:4]
    most = max(rng.choice(above, size=2, replace=False).tolist()) if len(above) > 1 else None
    text += f", and price lower than {most:.2f} dollars" if most else ""
    return Goal(product.id, text, attributes, options, most)


def has_goals(product: Product, kind: Kind) -> bool:
    """Whether a goal can be made of it."""
    return bool(product.wishes if kind == "human" else product.instruction and product.wanted)


def worth(goal: Goal, wanted: Product, bought: Product, chosen: Iterable[str]) -> float:
    """Points of a purchase, 0 to 1.

    With the type match of `type_match` (Yao et al. 2022, https://arxiv.org/abs/2207.01206)::

        type * (attributes met + options met + [price <= most]) / (attributes + options + 1)

    Args:
        goal: what is to be bought.
        wanted: the product that the goal was made of.
        bought: the product that was bought.
        chosen: values of its options.
    """
    attributes = sum(_has(bought, attribute) for attribute in goal.attributes)
    options = options_met(goal.options, list(chosen))
    is_cheap = goal.most is None or bought.price <= goal.most
    met = attributes + options + is_cheap
    return type_match(wanted, bought) * met / (len(goal.attributes) + len(goal.options) + 1)


def type_match(wanted: Product, bought: Product) -> float:
    """1, 0.5, 0.1 or 0: whether it is the same sort of thing, by query, by categories and by the words of the title."""
    words = content_words(wanted.title)
    share = len(words & content_words(bought.title)) / len(words) if words else 0.2
    if share < 0.1:
        return 0.1 if share > 0 else 0.0
    is_near = bought.query == wanted.query or len({*bought.path} & {*wanted.path}) >= 2
    return 1.0 if is_near or share > 0.2 else 0.5


def options_met(wanted: Sequence[str], chosen: Sequence[str]) -> int:
    """How many of the options that are wanted are like one that was chosen."""
    own = [coloured(value) for value in chosen]
    return sum(any(are_alike(value, coloured(each)) for value in own) for each in wanted)


def _has(product: Product, attribute: str) -> bool:
    if any(are_alike(own, attribute) for own in product.attributes):
        return True
    texts = (product.title, " ".join(product.bullets), product.description)
    return any(attribute in text.lower() for text in texts)
