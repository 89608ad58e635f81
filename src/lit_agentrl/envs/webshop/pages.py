"""The pages of the shop: their texts, and what can be clicked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lit_agentrl.envs.webshop.catalogue import Product

BACK, PREVIOUS, NEXT, BUY = "back to search", "< prev", "next >", "buy now"
TEXTS = ("description", "features")
_LONGEST = 2000  # characters of a product's text that are shown; invented texts are shorter


@dataclass(frozen=True)
class Page:
    """Position of the shopper.

    Attributes:
        words: the words of the last search; None: no search yet.
        number: index of the page of results, from 0.
        product: index of the product that is shown; None: none.
        text: which of `TEXTS` of the product is shown; empty: none.
        chosen: the chosen value of each option group.
        bought: whether the purchase was made, which ends the episode.
    """

    words: str | None = None
    number: int = 0
    product: int | None = None
    text: str = ""
    chosen: Mapping[str, str] = field(default_factory=dict)
    bought: bool = False


@dataclass(frozen=True)
class View:
    """A page with its content.

    Args:
        page: position of the shopper.
        hits: indices of the products that the search found.
        per_page: products per page of results.
        products: products of the shop.
    """

    page: Page
    hits: tuple[int, ...]
    per_page: int
    products: Sequence[Product]

    @property
    def listed(self) -> list[int]:
        """Indices of the products on this page of results."""
        start = self.page.number * self.per_page
        return list(self.hits[start : start + self.per_page])

    def find_targets(self) -> dict[str, Page]:
        """Return what can be clicked, in lower case, and the page to which it leads."""
        page = self.page
        if page.bought or page.words is None:
            return {}
        targets = {BACK: Page()}
        if page.product is None:
            if page.number:
                targets[PREVIOUS] = replace(page, number=page.number - 1)
            if (page.number + 1) * self.per_page < len(self.hits):
                targets[NEXT] = replace(page, number=page.number + 1)
            return targets | {
                self.products[index].id.lower(): replace(page, product=index) for index in self.listed
            }
        if page.text:
            return targets | {PREVIOUS: replace(page, text="")}
        targets[PREVIOUS] = replace(page, product=None, chosen={})
        targets |= {name: replace(page, text=name) for name in TEXTS}
        targets[BUY] = replace(page, bought=True)
        for group, value, button in self.list_options():
            targets[button] = replace(page, chosen={**page.chosen, group: value})
        return targets

    def list_options(self) -> Iterator[tuple[str, str, str]]:
        """Yield group, value and button of each option.

        If two groups share a value, the button names the group, too.
        """
        groups = self._product.options
        labels = [value for values in groups.values() for value in values] + [
            BACK,
            PREVIOUS,
            NEXT,
            BUY,
            *TEXTS,
        ]
        for group, values in groups.items():
            for value in values:
                yield group, value, value if labels.count(value) == 1 else f"{group}: {value}"

    @property
    def _product(self) -> Product:
        assert self.page.product is not None
        return self.products[self.page.product]

    def render(self) -> str:
        """Return the text below the instruction; what is in brackets can be clicked."""
        page = self.page
        if page.bought:
            return "Thank you for your purchase."
        if page.words is None:
            return "Search the shop: search[words]"
        return "\n".join(self._render_results() if page.product is None else self._render_product())

    def _render_results(self) -> list[str]:
        count, listed = len(self.hits), self.listed
        first = self.page.number * self.per_page + 1
        heading = f"Results {first} to {first + len(listed) - 1} of {count}" if count else "Nothing was found"
        lines = [heading]
        for index in listed:
            product = self.products[index]
            lines.append(f"[{product.id.lower()}] {product.title}, {product.price_tag}")
        return [*lines, self._render_links()]

    def _render_product(self) -> list[str]:
        product, page = self._product, self.page
        if page.text:
            lines = (
                [product.description]
                if page.text == TEXTS[0]
                else [f"- {bullet}" for bullet in product.bullets]
            )
            text = "\n".join(lines)
            text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
            return [product.title, f"{page.text}: {text or 'none'}", self._render_links()]
        lines = [product.title, f"price: {product.price_tag}"]
        buttons: dict[str, list[str]] = {}
        for group, _, button in self.list_options():
            buttons.setdefault(group, []).append(f"[{button}]")
        for group, group_buttons in buttons.items():
            lines.append(f"{group}: {' '.join(group_buttons)} chosen: {page.chosen.get(group, 'none')}")
        return [*lines, self._render_links()]

    def _render_links(self) -> str:
        names = (BACK, PREVIOUS, NEXT, *TEXTS, BUY)
        targets = self.find_targets()
        return " ".join(f"[{name}]" for name in names if name in targets)


def to_json(page: Page) -> dict[str, Any]:
    """Convert a page to plain JSON values."""
    return {**vars(page), "chosen": dict(page.chosen)}
