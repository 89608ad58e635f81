"""Search over the texts of products with BM25, by SQLite's index or bm25s."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from lit_agentrl.envs.webshop.catalogue import Product
from lit_agentrl.envs.webshop.ranked import Bm25sIndex
from lit_agentrl.envs.webshop.words import find_search_words

HITS = 50  # most products that a search finds
Search = Literal["fts5", "bm25s"]
SEARCHES: tuple[Search, ...] = ("fts5", "bm25s")
_WORDS = 64  # words of a search; further ones are ignored


class Shop:
    """Products with an index in memory.

    Args:
        products: products, in the order that breaks ties.
        search: the index.

    Attributes:
        numbers: index of a product by its id.
        find: `_find`, with a cache of the last searches.

    Raises:
        ValueError: this Python's SQLite has no full-text search, or bm25s is missing.
    """

    def __init__(self, products: Sequence[Product], search: Search = "fts5") -> None:
        self.products = products
        self.numbers = {product.id: number for number, product in enumerate(products)}
        self.find = lru_cache(512)(self._find)
        texts = [_join_texts(product) for product in products]
        self._index = SqliteIndex(texts) if search == "fts5" else Bm25sIndex(texts)

    def _find(self, text: str) -> tuple[int, ...]:
        """Return the indices of at most `HITS` matching products, best first.

        A product matches if it has at least one word of the text.
        """
        words = find_search_words(text)[:_WORDS]
        return self._index.rank(words, HITS) if words else ()


class SqliteIndex:
    """SQLite's full-text index of texts.

    Args:
        texts: texts, in the order that breaks ties.

    Raises:
        ValueError: this Python's SQLite has no full-text search.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        try:
            self._database.execute("CREATE VIRTUAL TABLE shelf USING fts5(text, tokenize='porter unicode61')")
        except sqlite3.OperationalError as error:
            raise ValueError(f"webshop needs SQLite with FTS5 ({error}); use a Python that has it") from error
        self._database.executemany("INSERT INTO shelf(rowid, text) VALUES (?, ?)", enumerate(texts))

    def rank(self, words: Sequence[str], limit: int) -> tuple[int, ...]:
        """Return the indices of at most ``limit`` texts with one of the words, best first."""
        query = " OR ".join(f'"{word}"' for word in words)
        statement = "SELECT rowid FROM shelf WHERE shelf MATCH ? ORDER BY bm25(shelf), rowid LIMIT ?"
        with self._lock:
            return tuple(number for (number,) in self._database.execute(statement, (query, limit)))


def _join_texts(product: Product) -> str:
    options = (f"{name}: {', '.join(values)}" for name, values in product.options.items())
    return "\n".join([product.title, product.description, *product.bullets[:1], *options])
