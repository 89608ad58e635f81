"""Usage of a server: requests, tokens, money."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from lit_agentrl.checks import require_number
from lit_agentrl.engines.served.answers import Answer


class Usage:
    """Counts the tokens of all answers, also of answers that arrive too late.

    Args:
        price_in, price_out, price_cached: Price per million tokens read, written, and read from the server's cache;
            ``price_cached=None`` is ``price_in``.

    Raises:
        ValueError: If a price is no number >= 0.
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
        """Count an answer; callable from any thread."""
        with self._lock:
            self._tokens["in"] += answer.num_read
            self._tokens["out"] += answer.num_written
            self._tokens["cached"] += answer.num_cached

    def build_row(self, request_counts: Mapping[str, int]) -> dict[str, float]:
        """Return all counts by name, and ``cost`` if there are prices.

        Args:
            request_counts: Counts of requests, see ``Server.counts``.
        """
        retried = {name: count for name, count in request_counts.items() if name.startswith("retried_")}
        metrics: dict[str, float] = {
            "requests": request_counts.get("requests", 0),
            "failed": request_counts.get("failed", 0),
        }
        metrics |= {"retried": sum(retried.values()), **retried}
        metrics |= {f"tokens_{name}": count for name, count in self._tokens.items()}
        if any(self._prices.values()):
            tokens, prices = self._tokens, self._prices
            read = (tokens["in"] - tokens["cached"]) * prices["in"]
            metrics["cost"] = (
                read + tokens["cached"] * prices["cached"] + tokens["out"] * prices["out"]
            ) / 1e6
        return {name: float(value) for name, value in metrics.items()}
