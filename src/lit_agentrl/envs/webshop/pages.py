"""The pages of the shop: what is told, and what can be clicked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lit_agentrl.envs.webshop.catalogue import Product

BACK, PREVIOUS, NEXT, BUY = "back to search", "< prev", "next >", "buy now"
TEXTS = ("description", "features")
_LONGEST = 2000  # characters of a text of a product; none of the invented ones is as long


@dataclass(frozen=True)
class Page:
    """Where the shopper stands.

    Attributes:
        words: what was searched; None: nothing yet.
        number: of the page of results, from 0.
        product: number of the one that is looked at; None: none.
        text: which of its texts is read; empty: none.
        chosen: group -> value.
        bought: nothing can be done any more.
    """

    words: str | None = None
    number: int = 0
    product: int | None = None
    text: str = ""
    chosen: Mapping[str, str] = field(default_factory=dict)
    bought: bool = False


@dataclass(frozen=True)
class View:
    """A page with what it shows.

    Args:
        page: where the shopper stands.
        hits: numbers of the products that were found.
        per_page: how many a page tells.
        products: of the shop.
    """

    page: Page
    hits: tuple[int, ...]
    per_page: int
    products: Sequence[Product]

    @property
    def told(self) -> list[int]:
        """Products on this page of results."""
        start = self.page.number * self.per_page
        return list(self.hits[start : start + self.per_page])

    def targets(self) -> dict[str, Page]:
        """What can be clicked, in lower case, and where it leads."""
        page = self.page
        if page.bought or page.words is None:
            return {}
        found = {BACK: Page()}
        if page.product is None:
            if page.number:
                found[PREVIOUS] = replace(page, number=page.number - 1)
            if (page.number + 1) * self.per_page < len(self.hits):
                found[NEXT] = replace(page, number=page.number + 1)
            return found | {self.products[each].id.lower(): replace(page, product=each) for each in self.told}
        if page.text:
            return found | {PREVIOUS: replace(page, text="")}
        found[PREVIOUS] = replace(page, product=None, chosen={})
        found |= {name: replace(page, text=name) for name in TEXTS}
        found[BUY] = replace(page, bought=True)
        for group, value, button in self.options():
            found[button] = replace(page, chosen={**page.chosen, group: value})
        return found

    def options(self) -> Iterator[tuple[str, str, str]]:
        """Group, value and button of each option; where two groups share a value, the button names the group."""
        groups = self._product.options
        taken = [value for values in groups.values() for value in values] + [
            BACK,
            PREVIOUS,
            NEXT,
            BUY,
            *TEXTS,
        ]
        for group, values in groups.items():
            for value in values:
                yield group, value, value if taken.count(value) == 1 else f"{group}: {value}"

    @property
    def _product(self) -> Product:
        assert self.page.product is not None
        return self.products[self.page.product]

    def text(self) -> str:
        """What is told below the instruction; what stands in brackets can be clicked."""
        page = self.page
        if page.bought:
            return "Thank you for your purchase."
        if page.words is None:
            return "Search the shop: search[words]"
        return "\n".join(self._results() if page.product is None else self._item())

    def _results(self) -> list[str]:
        count, told = len(self.hits), self.told
        first = self.page.number * self.per_page + 1
        where = f"Results {first} to {first + len(told) - 1} of {count}" if count else "Nothing was found"
        lines = [where]
        for each in told:
            product = self.products[each]
            lines.append(f"[{product.id.lower()}] {product.title}, {product.price_tag}")
        return [*lines, self._links()]

    def _item(self) -> list[str]:
        product, page = self._product, self.page
        if page.text:
            lines = (
                [product.description] if page.text == TEXTS[0] else [f"- {each}" for each in product.bullets]
            )
            told = "\n".join(lines)
            told = told if len(told) <= _LONGEST else f"{told[:_LONGEST]}…"
            return [product.title, f"{page.text}: {told or 'none'}", self._links()]
        lines = [product.title, f"price: {product.price_tag}"]
        buttons: dict[str, list[str]] = {}
        for group, _, button in self.options():
            buttons.setdefault(group, []).append(f"[{button}]")
        for group, shown in buttons.items():
            lines.append(f"{group}: {' '.join(shown)} chosen: {page.chosen.get(group, 'none')}")
        return [*lines, self._links()]

    def _links(self) -> str:
        shown = (BACK, PREVIOUS, NEXT, *TEXTS, BUY)
        targets = self.targets()
        return " ".join(f"[{name}]" for name in shown if name in targets)


def saved(page: Page) -> dict[str, Any]:
    """A page in plain JSON values."""
    return {**vars(page), "chosen": dict(page.chosen)}
