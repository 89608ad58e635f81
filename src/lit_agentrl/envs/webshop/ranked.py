"""Search by bm25s: BM25 as in Lucene (k1 0.9, b 0.4), over Porter2 stems."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence

import numpy as np

_WORD = re.compile(r"[^\W_]+")


class Bm25sIndex:
    """An index of texts by the library bm25s.

    Args:
        texts: texts, in the order that breaks ties.

    Raises:
        ValueError: the library is missing.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        try:
            import bm25s
            import Stemmer
        except ImportError as error:
            raise ValueError(
                f"search=bm25s needs bm25s and PyStemmer ({error}); pip install 'lit-agentrl[search]'"
            ) from error
        self._stemmer, self._lock = Stemmer.Stemmer("english"), threading.Lock()
        tokens = [self._stemmer.stemWords(_WORD.findall(text.lower())) for text in texts]
        self._index = bm25s.BM25(method="lucene", k1=0.9, b=0.4)
        self._index.index(tokens, show_progress=False)
        self._known = {token for document in tokens for token in document}

    def rank(self, words: Sequence[str], most: int) -> tuple[int, ...]:
        """Return the indices of the texts with at least one of the words, best first."""
        with self._lock:  # the stemmer has a cache
            tokens = [token for token in self._stemmer.stemWords(list(words)) if token in self._known]
        if not tokens:
            return ()
        scores = self._index.get_scores(tokens)
        order = np.argsort(-scores, kind="stable")[:most]
        return tuple(int(number) for number in order if scores[number] > 0)
