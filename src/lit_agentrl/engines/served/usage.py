"""What a server was asked for, counted: requests, tokens, money."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from lit_agentrl.checks import require_number
from lit_agentrl.engines.served.answers import Answer


class Usage:
    """Counts the tokens of all answers, also of those that come too late to be used: they are billed alike.

    Args:
        price_in, price_out, price_cached: of a million tokens that the server read, wrote, and took from its cache in
            place of reading them; ``price_cached=None``: as much as reading.

    Raises:
        ValueError: a price is no number >= 0.
    """

    def __init__(self, price_in: float, price_out: float, price_cached: float | None) -> None:
        prices = {"price_in": price_in, "price_out": price_out}
        if price_cached is not None:
            prices["price_cached"] = price_cached
        for name, price in prices.items():
            require_number(name, price, "a number >= 0", lambda value: value >= 0)
        self._prices = {
            "in": price_in, "out": price_out, "cached": price_in if price_cached is None else price_cached,
        }  # fmt: skip
        self._tokens = {"in": 0, "out": 0, "cached": 0}
        self._lock = threading.Lock()

    def add(self, answer: Answer) -> None:
        """Count an answer; from any thread."""
        with self._lock:
            self._tokens["in"] += answer.read
            self._tokens["out"] += answer.written
            self._tokens["cached"] += answer.cached

    def row(self, sent: Mapping[str, int]) -> dict[str, float]:
        """All counts by name; ``cost`` where there are prices.

        Args:
            sent: see ``Server.counts``.
        """
        retried = {name: count for name, count in sent.items() if name.startswith("retried_")}
        row: dict[str, float] = {"requests": sent.get("requests", 0), "failed": sent.get("failed", 0)}
        row |= {"retried": sum(retried.values()), **retried}
        row |= {f"tokens_{name}": count for name, count in self._tokens.items()}
        if any(self._prices.values()):
            tokens, prices = self._tokens, self._prices
            read = (tokens["in"] - tokens["cached"]) * prices["in"]
            row["cost"] = (read + tokens["cached"] * prices["cached"] + tokens["out"] * prices["out"]) / 1e6
        return {name: float(value) for name, value in row.items()}
