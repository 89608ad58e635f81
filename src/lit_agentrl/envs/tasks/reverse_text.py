"""Write a short text backwards: one reply, with a graded reward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from typing import Any

import numpy as np

from lit_agentrl.checks import require_one_of, require_whole
from lit_agentrl.envs.base import Outcome, TextEnv
from lit_agentrl.envs.splits import draw_for_split, keyed_rng

UNITS = ("characters", "words")
# fmt: off
WORDS = (
    "air", "apple", "arm", "bag", "ball", "bank", "bear", "bed", "bell", "bird", "boat", "bone", "book", "box", "boy",
    "bread", "brick", "bridge", "brush", "bus", "cake", "camp", "car", "card", "cat", "chair", "city", "clock", "cloud",
    "coat", "corn", "cow", "cup", "day", "desk", "dog", "door", "dream", "dress", "drum", "duck", "ear", "earth", "egg",
    "eye", "face", "farm", "field", "fire", "fish", "flag", "floor", "fog", "foot", "fork", "fox", "frog", "fruit",
    "game", "garden", "gate", "girl", "glass", "gold", "grass", "hair", "hand", "hat", "head", "heart", "hill", "home",
    "horse", "house", "ice", "iron", "jar", "key", "king", "kite", "lake", "lamp", "leaf", "leg", "letter", "light",
    "lion", "lock", "map", "milk", "mind", "moon", "mouse", "mouth", "name", "nest", "night", "nose", "ocean", "oil",
    "paper", "park", "pen", "piano", "plant", "plate", "pot", "queen", "rain", "ring", "river", "road", "rock", "roof",
    "room", "root", "rope", "rose", "salt", "sand", "school", "sea", "seed", "sheep", "ship", "shoe", "shop", "silver",
    "sky", "snow", "song", "spoon", "spring", "star", "stone", "street", "sugar", "summer", "sun", "table", "tea",
    "tent", "tiger", "time", "town", "train", "tree", "wall", "water", "wave", "wheel", "wind", "window", "wing",
    "winter", "wolf", "wood", "wool", "world", "yard", "year",
)
# fmt: on
_TEXT = 97  # purpose key


class ReverseText(TextEnv):
    """A text of common words, to be written backwards.

    The reward is the similarity of the answer and the reversed text, ``2 M / T`` with ``M`` matching and ``T``
    characters in all (`difflib.SequenceMatcher.ratio`, as in the reverse-text environment of verifiers and prime-rl).
    Success is an exact reversal.  Random play answers with the reversal of another text of as many words.

    Args:
        unit: ``characters``: ``ice cup`` becomes ``puc eci``; ``words``: it becomes ``cup ice``, which is easier.
        min_words, max_words: Least and greatest number of words of a text; each number is equally frequent.
        partial: Whether an answer that is not exact earns its similarity; False: it earns 0.
        split: ``train``, ``val`` or ``test``, by the hash of the text.

    Raises:
        ValueError: An option is out of range.
    """

    def __init__(
        self,
        *,
        unit: str = "characters",
        min_words: int = 1,
        max_words: int = 3,
        partial: bool = True,
        split: str = "train",
    ) -> None:
        super().__init__(split=split)
        require_one_of("unit", unit, UNITS)
        require_whole("max_words", max_words, 1, 50)
        require_whole("min_words", min_words, 2 if unit == "words" else 1, max_words)
        self._unit, self._sizes, self._partial = unit, (min_words, max_words), partial
        self._text, self._is_answered = "", False

    @property
    def rules(self) -> str:
        what = (
            "letter by letter, spaces included"
            if self._unit == "characters"
            else "with its words in reverse order"
        )
        example = "puc eci" if self._unit == "characters" else "cup ice"
        return (
            f"Write the text backwards, {what}: ice cup becomes {example}.\n"
            "Actions: the reversed text.\n"
            f"Rewards: {'how much of it is right, from 0 to 1' if self._partial else '1 if all of it is right'}."
        )

    def random_action(self, rng: np.random.Generator) -> str:
        """Return the reversal of another text of as many words."""
        return self._invert(_draw_text(rng, len(self._text.split()) or 1))

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        """Return the reversed text; None after the answer."""
        require_whole("horizon", horizon, 1)
        return None if self._is_answered else [self._invert(self._text)]

    def best_thought(self) -> str:
        """Return the text in pieces, as one may write it down first."""
        return " ".join(self._text) if self._unit == "characters" else self._text

    def _invert(self, text: str) -> str:
        return text[::-1] if self._unit == "characters" else " ".join(reversed(text.split()))

    def _draw_instance(self, seed: int) -> str:
        low, high = self._sizes

        def propose(attempt: int) -> Iterator[str]:
            rng = keyed_rng(seed, attempt, _TEXT)
            yield _draw_text(rng, int(rng.integers(low, high + 1)))

        self._text, self._is_answered = draw_for_split(propose, str, split=self.split), False
        return self._text

    def _observe(self) -> str:
        return self._text

    def _play(self, action: str) -> Outcome:
        answer, right = action.strip(), self._invert(self._text)
        self._is_answered, is_right = True, answer == right
        # a very long answer is cut, so that the comparison stays fast
        similarity = SequenceMatcher(None, answer[: 4 * len(right)], right, autojunk=False).ratio()
        reward = similarity if self._partial else float(is_right)
        return Outcome({"reversal": reward}, terminated=True, success=is_right)

    def _get_state(self) -> dict[str, Any]:
        return {"text": self._text, "is_answered": self._is_answered}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        self._text, self._is_answered = str(state["text"]), bool(state["is_answered"])


def _draw_text(rng: np.random.Generator, size: int) -> str:
    return " ".join(WORDS[int(rng.integers(len(WORDS)))] for _ in range(size))
