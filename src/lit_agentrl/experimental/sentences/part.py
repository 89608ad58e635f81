"""Rewards of sentences or other spans inside a reply, each paid at its last token."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from lit_agentrl.episode import Episode, Turn
from lit_agentrl.rewards.base import Places, RewardContext, Rewards, Shaping
from lit_agentrl.rewards.function import call_function, list_names
from lit_agentrl.text.token_bytes import get_token_pieces

GIVEN = ("sentence", "index", "reply", "turn", "success", "episode")  # arguments that a function may take


def split_spans(text: str, split: re.Pattern[str]) -> list[tuple[int, int]]:
    r"""Split a text into spans of characters that end where the pattern ends.

    What matches belongs to the span before it.  Spans of white space alone are joined to the one before.

    >>> split_spans("It is. No?\n", re.compile(r"[.?]\s*"))
    [(0, 7), (7, 11)]
    """
    ends = sorted({*(found.end() for found in split.finditer(text)), len(text)} - {0})
    spans: list[tuple[int, int]] = []
    for start, end in zip([0, *ends], ends, strict=False):
        if spans and not text[start:end].strip():
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return spans


def find_last_tokens(ends: Sequence[int], text: str, pieces: Sequence[bytes]) -> list[int]:
    """Return the index of the token that completes each span, given its end in characters.

    ``text`` is the decoded bytes of all tokens; a byte that is no UTF-8 is a surrogate, as Python escapes it.
    """
    sizes = list(accumulate(map(len, pieces)))
    return [
        next(k for k, size in enumerate(sizes) if size >= len(text[:end].encode("utf-8", "surrogateescape")))
        for end in ends
    ]


@dataclass(kw_only=True)
class Sentences(Shaping):
    """Rewards of sentences, each paid at its last token: fine-grained RLHF, arXiv 2306.01693.

    ``r_t`` of the token that completes sentence j is ``weight f_j``, in reward units; the reward of the turn is their
    sum.  Token-wise advantages (``algo/advantage=gae_token``, ``mc_return``) pay each token for its sentence and the
    later ones alone; those of whole trajectories see the sum.  ``fn`` is called with the arguments that it names among
    ``sentence`` (its text), ``index`` (counts from 0), ``reply`` (the whole text), ``turn`` (counts from 0),
    ``success`` (of the episode) and ``episode`` (do not modify it).

    Departs: the paper was not at hand; from memory its rewards are those of several trained models, each with segments
    of its own.  Here a function rewards, and a second model is a second entry of ``reward`` with another ``split``.

    Args:
        fn: the function; it returns a finite number or a bool.
        split: regular expression that ends a sentence.
        weight: reward per unit of ``fn``, not 0.

    Raises:
        ValueError: the function takes other arguments, or the pattern is none; the message names the option.
    """

    fn: Callable[..., float]
    split: str = r"[.!?]+(\s+|$)|\n+"
    weight: float = 1.0
    _places: dict[int, list[dict[int, float]]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._names = list_names(self.fn, GIVEN)
        try:
            self._split = re.compile(self.split)
        except (re.error, TypeError) as error:
            raise ValueError(f"split={self.split} is no regular expression ({error}); mend it") from error

    def setup(self, context: RewardContext) -> None:
        self._piece_of = get_token_pieces(context.tokenizer)

    def score(self, episodes: Sequence[Episode], *, iteration: int) -> Rewards:
        """Return the sum over the sentences of each turn."""
        self._places = {
            id(e): [self._reward_turn(e, k, turn) for k, turn in enumerate(e.turns)] for e in episodes
        }
        return [[math.fsum(early.values()) for early in self._places[id(e)]] for e in episodes]

    def places(self, episodes: Sequence[Episode]) -> Places:
        """Return the weighted reward of each token that completes a sentence."""
        return [
            [{place: self.weight * value for place, value in early.items()} for early in self._places[id(e)]]
            for e in episodes
        ]

    def _reward_turn(self, episode: Episode, number: int, turn: Turn) -> dict[int, float]:
        """Return the function's values in a turn by index of token."""
        pieces = [self._piece_of(token) for token in turn.reply_tokens.tolist()]
        text = b"".join(pieces).decode("utf-8", "surrogateescape")
        spans = split_spans(text, self._split)
        found: dict[int, float] = {}
        places = find_last_tokens([end for _, end in spans], text, pieces)
        for index, ((start, end), place) in enumerate(zip(spans, places, strict=True)):
            given = {
                "sentence": _replace_escapes(text[start:end].strip()), "index": index,
                "reply": _replace_escapes(text), "turn": number,
                "success": episode.success, "episode": episode,
            }  # fmt: skip
            found[place] = found.get(place, 0.0) + call_function(
                self.fn, self._names, given, episode, f"turn {number + 1}, sentence {index + 1}"
            )
        return found


def _replace_escapes(text: str) -> str:
    """Replace bytes that are no UTF-8 by the replacement character."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
