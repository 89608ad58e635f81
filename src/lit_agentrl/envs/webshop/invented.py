"""Invented products: families of things alike but for a trait, a price or an option, so that looking pays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from lit_agentrl.envs.splits import keyed_rng
from lit_agentrl.envs.webshop.catalogue import Product
from lit_agentrl.envs.webshop.stock import KINDS, LINES, OPTIONS, SAYS, SYLLABLES, TRAITS, WANTS

_STOCK = 72  # purpose key
_SIGNS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@lru_cache(2)
def invent(count: int) -> tuple[Product, ...]:
    """The first so many products; a larger shop has those of a smaller one."""
    found: list[Product] = []
    for number in range(count):
        if len(found) >= count:
            break
        found += _family(number)
    return tuple(found[:count])


def _family(number: int) -> Iterator[Product]:
    """Three to six things of one kind and brand, each with a trait that the others have not."""
    rng = keyed_rng(number, 0, _STOCK)
    kinds = [line.split(" | ") for line in KINDS.strip().splitlines()]
    path, query, prices, pool, groups = kinds[number % len(kinds)]
    brand = "".join(_one(part.split(), rng) for part in SYLLABLES)
    traits = _some(TRAITS[pool].split(", "), 8, rng)
    base, own = traits[:2], traits[2:]
    low, high = map(float, prices.split())
    middle = float(np.exp(rng.uniform(np.log(low), np.log(high))))
    for place in range(int(rng.integers(3, 7))):
        kept = [*base, own[place]] if rng.random() < 0.7 else [base[place % 2], own[place], own[place - 1]]
        options = {}
        for group in groups.split():
            values = OPTIONS[group].split(", ")
            chosen = _some(values, int(rng.integers(2, min(len(values), 7) + 1)), rng)
            options[_GROUPS.get(group, group)] = tuple(sorted(chosen, key=values.index))
        id = "B0" + "".join(_one(_SIGNS, rng) for _ in range(8))
        price = round(middle * float(rng.uniform(0.7, 1.4)), 2)
        yield _made(id, brand, path.split(" > "), query, kept, options, _tagged(price, rng), rng)


_GROUPS = {"fit": "size", "shoe": "size", "volume": "size", "pack": "pack size"}


def _tagged(price: float, rng: np.random.Generator) -> tuple[float, ...]:
    """Most have one price; one in eleven a range, and one in eleven the price that unpriced things have."""
    kind = rng.random()
    if kind < 0.09:
        return price, round(price * float(rng.uniform(1.1, 1.6)), 2)
    return (100.0,) if kind < 0.18 else (price,)


def _made(
    id: str,
    brand: str,
    path: Sequence[str],
    query: str,
    traits: Sequence[str],
    options: dict[str, tuple[str, ...]],
    prices: tuple[float, ...],
    rng: np.random.Generator,
) -> Product:
    thing = query.title()
    shown = _some(traits, len(traits), rng)
    title = f"{brand} {thing}, {shown[0].title()}, for {path[1]} and {path[0]}"
    says = [text.format(brand=brand, thing=query) for text in _some(SAYS, 3, rng)]
    # a search reads the first line only, so who wants all traits must read the others
    lines = [says[2], *(_one(LINES, rng).format(trait=trait.capitalize()) for trait in traits)]
    wanted = tuple(_some(traits, int(rng.integers(1, len(traits) + 1)), rng))
    want = _one(WANTS, rng).format(thing=query, traits=" and ".join(wanted))
    return Product(
        id=id,
        title=title,
        category=path[0].lower(),
        query=query,
        path=tuple(path),
        prices=prices,
        description=f"{says[0]} Good to know: {shown[1]}. {says[1]}",
        bullets=tuple(lines),
        options=options,
        attributes=tuple(traits),
        instruction=want,
        wanted=wanted,
    )


def _one(values: Sequence[str], rng: np.random.Generator) -> str:
    return values[int(rng.integers(len(values)))]


def _some(values: Sequence[str], count: int, rng: np.random.Generator) -> list[str]:
    return [values[int(place)] for place in rng.permutation(len(values))[:count]]
