"""Invented products: families that differ only in a trait, a price or an option."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from lit_agentrl.envs.splits import keyed_rng
from lit_agentrl.envs.webshop.catalogue import Product
from lit_agentrl.envs.webshop.stock import KINDS, LINES, OPTIONS, SAYS, SYLLABLES, TRAITS, WANTS

_STOCK = 72  # purpose key
_GROUPS = {"fit": "size", "shoe": "size", "volume": "size", "pack": "pack size"}  # names that the shop shows
_SIGNS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@lru_cache(2)
def invent(count: int) -> tuple[Product, ...]:
    """Return the first ``count`` products; a larger shop contains the products of a smaller one."""
    products: list[Product] = []
    for family in range(count):
        if len(products) >= count:
            break
        products += _draw_family(family)
    return tuple(products[:count])


def _draw_family(family: int) -> Iterator[Product]:
    """Yield three to six products of one kind and brand, with different traits."""
    rng = keyed_rng(family, 0, _STOCK)
    kinds = [line.split(" | ") for line in KINDS.strip().splitlines()]
    path, query, prices, pool, groups = kinds[family % len(kinds)]
    brand = "".join(_choose(part.split(), rng) for part in SYLLABLES)
    traits = _choose_some(TRAITS[pool].split(", "), 8, rng)
    base, others = traits[:2], traits[2:]
    low, high = map(float, prices.split())
    middle = float(np.exp(rng.uniform(np.log(low), np.log(high))))
    for index in range(int(rng.integers(3, 7))):
        chosen_traits = (
            [*base, others[index]]
            if rng.random() < 0.7
            else [base[index % 2], others[index], others[index - 1]]
        )
        options = {}
        for group in groups.split():
            values = OPTIONS[group].split(", ")
            chosen = _choose_some(values, int(rng.integers(2, min(len(values), 7) + 1)), rng)
            options[_GROUPS.get(group, group)] = tuple(sorted(chosen, key=values.index))
        id = "B0" + "".join(_choose(_SIGNS, rng) for _ in range(8))
        price = round(middle * float(rng.uniform(0.7, 1.4)), 2)
        yield _make_product(
            id, brand, path.split(" > "), query, chosen_traits, options, _draw_prices(price, rng), rng
        )


def _draw_prices(price: float, rng: np.random.Generator) -> tuple[float, ...]:
    """Draw the prices of a product.

    9 % of the products have a lowest and a highest price.  Another 9 % have the price 100, which stands for a missing
    price.
    """
    kind = rng.random()
    if kind < 0.09:
        return price, round(price * float(rng.uniform(1.1, 1.6)), 2)
    return (100.0,) if kind < 0.18 else (price,)


def _make_product(
    id: str,
    brand: str,
    path: Sequence[str],
    query: str,
    traits: Sequence[str],
    options: dict[str, tuple[str, ...]],
    prices: tuple[float, ...],
    rng: np.random.Generator,
) -> Product:
    noun = query.title()
    shown = _choose_some(traits, len(traits), rng)
    title = f"{brand} {noun}, {shown[0].title()}, for {path[1]} and {path[0]}"
    sentences = [text.format(brand=brand, thing=query) for text in _choose_some(SAYS, 3, rng)]
    # a search reads only the first of these lines, which names no trait, so a shopper must read the others
    lines = [sentences[2], *(_choose(LINES, rng).format(trait=trait.capitalize()) for trait in traits)]
    wanted = tuple(_choose_some(traits, int(rng.integers(1, len(traits) + 1)), rng))
    instruction = _choose(WANTS, rng).format(thing=query, traits=" and ".join(wanted))
    return Product(
        id=id,
        title=title,
        category=path[0].lower(),
        query=query,
        path=tuple(path),
        prices=prices,
        description=f"{sentences[0]} Good to know: {shown[1]}. {sentences[1]}",
        bullets=tuple(lines),
        options=options,
        attributes=tuple(traits),
        instruction=instruction,
        wanted=wanted,
    )


def _choose(values: Sequence[str], rng: np.random.Generator) -> str:
    return values[int(rng.integers(len(values)))]


def _choose_some(values: Sequence[str], count: int, rng: np.random.Generator) -> list[str]:
    return [values[int(index)] for index in rng.permutation(len(values))[:count]]
