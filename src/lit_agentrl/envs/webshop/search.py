"""Search over titles, descriptions, first bullets and options: SQLite's full-text index, ranked by BM25."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from functools import lru_cache

from lit_agentrl.envs.webshop.catalogue import Product
from lit_agentrl.envs.webshop.words import search_words

HITS = 50  # products that a search finds at most
_WORDS = 64  # of a search; what follows is not looked for


class Shop:
    """Products with an index in memory.

    Args:
        products: in the order that decides between equal ranks.

    Attributes:
        numbers: of a product's id.
        find: `_find`, which remembers the last searches.

    Raises:
        ValueError: this Python's SQLite has no full-text search.
    """

    def __init__(self, products: Sequence[Product]) -> None:
        self.products = products
        self.numbers = {product.id: number for number, product in enumerate(products)}
        self.find = lru_cache(512)(self._find)
        self._lock = threading.Lock()
        self._opened = sqlite3.connect(":memory:", check_same_thread=False)
        try:
            self._opened.execute("CREATE VIRTUAL TABLE shelf USING fts5(text, tokenize='porter unicode61')")
        except sqlite3.OperationalError as error:
            raise ValueError(f"webshop needs SQLite with FTS5 ({error}); use a Python that has it") from error
        rows = enumerate(map(_text, products))
        self._opened.executemany("INSERT INTO shelf(rowid, text) VALUES (?, ?)", rows)

    def _find(self, text: str) -> tuple[int, ...]:
        """Numbers of the products that hold at least one word of a text, best first, at most `HITS`."""
        words = search_words(text)[:_WORDS]
        query = " OR ".join(f'"{word}"' for word in words)
        order = "SELECT rowid FROM shelf WHERE shelf MATCH ? ORDER BY bm25(shelf), rowid LIMIT ?"
        with self._lock:
            return tuple(number for (number,) in self._opened.execute(order, (query, HITS)))


def _text(product: Product) -> str:
    options = (f"{name}: {', '.join(values)}" for name, values in product.options.items())
    return "\n".join([product.title, product.description, *product.bullets[:1], *options])
