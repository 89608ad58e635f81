"""Rewards of sentences or other spans inside a reply, each paid at its last token."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from lit_agentrl.episode import Episode, Turn
from lit_agentrl.rewards.base import Places, RewardContext, Rewards, Shaping
from lit_agentrl.rewards.function import call_function, select_argument_names
from lit_agentrl.text.token_bytes import get_token_pieces

GIVEN = ("sentence", "index", "reply", "turn", "success", "episode")  # arguments that a function may take


def split_spans(text: str, split: re.Pattern[str]) -> list[tuple[int, int]]:
    r"""Split a text into spans of characters that end where the pattern ends.

    The text that matches belongs to the span that it ends.  A span of white space alone is joined to the one before.

    >>> split_spans("It is. No?\n", re.compile(r"[.?]\s*"))
    [(0, 7), (7, 11)]
    """
    ends = sorted({*(match.end() for match in split.finditer(text)), len(text)} - {0})
    spans: list[tuple[int, int]] = []
    for start, end in zip([0, *ends], ends, strict=False):
        if spans and not text[start:end].strip():
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return spans


def find_last_tokens(ends: Sequence[int], text: str, pieces: Sequence[bytes]) -> list[int]:
    """Return the index of the token that completes each span, given its end in characters.

    ``text`` is decoded from the bytes of all tokens with ``errors="surrogateescape"``.
    """
    sizes = list(accumulate(map(len, pieces)))
    return [
        next(k for k, size in enumerate(sizes) if size >= len(text[:end].encode("utf-8", "surrogateescape")))
        for end in ends
    ]


@dataclass(kw_only=True)
class Sentences(Shaping):
    """Rewards of sentences, each paid at its last token: fine-grained RLHF, arXiv 2306.01693.

    The token that completes sentence j gets the reward ``weight f_j``, in reward units; the reward of the turn is their
    sum.  Token-wise advantages (``algo/advantage=gae_token``, ``mc_return``) credit a token only with the rewards of
    its own and later sentences; those of whole trajectories use the sum.  ``fn`` is called with those of these
    arguments that its signature names: ``sentence`` (its text), ``index`` (from 0), ``reply`` (the whole text),
    ``turn`` (from 0), ``success`` (of the episode) and ``episode`` (do not modify it).

    Departs: the paper was not at hand; from memory, its rewards are those of several trained models, each with segments
    of its own.  Here a function gives the rewards; further entries of ``reward`` can have other functions and splits.

    Args:
        fn: the function; it returns a finite number or a bool.
        split: regular expression that ends a sentence.
        weight: reward per unit of ``fn``, not 0.

    Raises:
        ValueError: the function takes other arguments, or ``split`` is not a valid pattern; the message names the
            option.
    """

    fn: Callable[..., float]
    split: str = r"[.!?]+(\s+|$)|\n+"
    weight: float = 1.0
    _places: dict[int, list[dict[int, float]]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._names = select_argument_names(self.fn, GIVEN)
        try:
            self._split = re.compile(self.split)
        except (re.error, TypeError) as error:
            raise ValueError(
                f"split={self.split} is not a valid regular expression ({error}); correct it"
            ) from error

    def setup(self, context: RewardContext) -> None:
        self._get_piece = get_token_pieces(context.tokenizer)

    def score(self, episodes: Sequence[Episode], *, iteration: int) -> Rewards:
        """Return the sum over the sentences of each turn."""
        self._places = {
            id(e): [self._reward_turn(e, k, turn) for k, turn in enumerate(e.turns)] for e in episodes
        }
        return [[math.fsum(values.values()) for values in self._places[id(e)]] for e in episodes]

    def places(self, episodes: Sequence[Episode]) -> Places:
        """Return the weighted reward of each token that completes a sentence."""
        return [
            [
                {place: self.weight * value for place, value in values.items()}
                for values in self._places[id(e)]
            ]
            for e in episodes
        ]

    def _reward_turn(self, episode: Episode, number: int, turn: Turn) -> dict[int, float]:
        """Return the values of the function in a turn by index of token."""
        pieces = [self._get_piece(token) for token in turn.reply_tokens.tolist()]
        text = b"".join(pieces).decode("utf-8", "surrogateescape")
        spans = split_spans(text, self._split)
        values: dict[int, float] = {}
        places = find_last_tokens([end for _, end in spans], text, pieces)
        for index, ((start, end), place) in enumerate(zip(spans, places, strict=True)):
            given = {
                "sentence": _replace_escapes(text[start:end].strip()), "index": index,
                "reply": _replace_escapes(text), "turn": number,
                "success": episode.success, "episode": episode,
            }  # fmt: skip
            values[place] = values.get(place, 0.0) + call_function(
                self.fn, self._names, given, episode, f"turn {number + 1}, sentence {index + 1}"
            )
        return values


def _replace_escapes(text: str) -> str:
    """Replace escaped bytes, which are not UTF-8, by the replacement character."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
