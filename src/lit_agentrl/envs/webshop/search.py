"""Search over titles, descriptions, first bullets and options: SQLite's index or bm25s; both rank by BM25."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from lit_agentrl.envs.webshop.catalogue import Product
from lit_agentrl.envs.webshop.ranked import Ranked
from lit_agentrl.envs.webshop.words import search_words

HITS = 50  # products that a search finds at most
Search = Literal["fts5", "bm25s"]
SEARCHES: tuple[Search, ...] = ("fts5", "bm25s")
_WORDS = 64  # of a search; what follows is not looked for


class Shop:
    """Products with an index in memory.

    Args:
        products: in the order that decides between equal ranks.
        search: the index.

    Attributes:
        numbers: of a product's id.
        find: `_find`, which remembers the last searches.

    Raises:
        ValueError: this Python's SQLite has no full-text search, or bm25s is missing.
    """

    def __init__(self, products: Sequence[Product], search: Search = "fts5") -> None:
        self.products = products
        self.numbers = {product.id: number for number, product in enumerate(products)}
        self.find = lru_cache(512)(self._find)
        texts = [_text(product) for product in products]
        self._index = FullText(texts) if search == "fts5" else Ranked(texts)

    def _find(self, text: str) -> tuple[int, ...]:
        """Numbers of the products that hold at least one word of a text, best first, at most `HITS`."""
        words = search_words(text)[:_WORDS]
        return self._index.best(words, HITS) if words else ()


class FullText:
    """An index of texts, of SQLite.

    Args:
        texts: in the order that decides between equal ranks.

    Raises:
        ValueError: this Python's SQLite has no full-text search.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._opened = sqlite3.connect(":memory:", check_same_thread=False)
        try:
            self._opened.execute("CREATE VIRTUAL TABLE shelf USING fts5(text, tokenize='porter unicode61')")
        except sqlite3.OperationalError as error:
            raise ValueError(f"webshop needs SQLite with FTS5 ({error}); use a Python that has it") from error
        self._opened.executemany("INSERT INTO shelf(rowid, text) VALUES (?, ?)", enumerate(texts))

    def best(self, words: Sequence[str], most: int) -> tuple[int, ...]:
        """Numbers of the texts that hold at least one of the words, best first."""
        query = " OR ".join(f'"{word}"' for word in words)
        order = "SELECT rowid FROM shelf WHERE shelf MATCH ? ORDER BY bm25(shelf), rowid LIMIT ?"
        with self._lock:
            return tuple(number for (number,) in self._opened.execute(order, (query, most)))


def _text(product: Product) -> str:
    options = (f"{name}: {', '.join(values)}" for name, values in product.options.items())
    return "\n".join([product.title, product.description, *product.bullets[:1], *options])
