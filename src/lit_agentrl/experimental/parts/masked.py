"""A structure whose loss and advantages leave out parts of replies, token by token."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.episode import Segment
from lit_agentrl.rollout.structures.base import Progress
from lit_agentrl.rollout.structures.hook import StructureHook, Training
from lit_agentrl.rollout.structures.refill import Refill
from lit_agentrl.text.token_bytes import get_token_pieces

SEGMENTS = {"think": Segment.THINK, "answer": Segment.ANSWER, "other": Segment.OTHER}
_TAG = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def find_tagged(pieces: Sequence[bytes], tags: Sequence[str]) -> list[str]:
    """Return the tag in which each token of a reply lies; empty outside of tags.

    A block extends from ``<tag>`` to the first ``</tag>``, or to the end of the reply; a tag inside another one is
    text.  As in the token ledger, a block includes its tags, a token that touches two blocks belongs to the first, and
    white space at the start of a token does not count.  Tags are matched in any ASCII case.

    Args:
        pieces: the bytes of each token.
        tags: names of tags, without brackets.
    """
    names = "|".join(map(re.escape, tags))
    pattern = re.compile(rf"<({names})>(?:.*?</\1>|.*)", re.IGNORECASE | re.ASCII | re.DOTALL)
    # Latin-1 maps each byte to one character, so that positions are byte positions
    blocks = list(pattern.finditer(b"".join(pieces).decode("latin-1"))) if tags else []
    tag_of_token, current = [], 0
    for piece, end in zip(pieces, accumulate(map(len, pieces)), strict=True):
        start = end - len(piece.lstrip() or piece)
        while current < len(blocks) and blocks[current].end() <= start:
            current += 1
        is_inside = current < len(blocks) and blocks[current].start() < max(end, start + 1)
        tag_of_token.append(blocks[current][1].lower() if is_inside else "")
    return tag_of_token


class Parts(StructureHook, Refill):
    """A structure that leaves parts of replies out of loss and advantages: TRICO, arXiv 2510.16907.

    With m_t = 0 for sampled tokens of ``masked`` parts and 1 for all others, the loss sums ``m_t l_t`` over sampled
    tokens; weights and denominators only count the tokens with m_t = 1, and gradient only flows through them.  The part
    of a token is the tag of ``tags`` in which it lies, also inside a thought; outside of all tags it is the segment of
    the token ledger: ``think``, ``answer``, or ``other``.

    Advantages step over the tokens of ``skipped`` parts.  With t' the next sampled token that is not skipped,
    ``A_t = r_t + discount V_t' - V_t + discount gae_lambda A_t'``; bi-level and turn-wise advantages are changed in the
    same way.  ``r_t`` sums the rewards from t to before t', in reward units.  Skipped tokens have advantage 0 and no
    target of a critic, and whitening ignores them; a KL in the reward is not summed over them.  If the loss does not
    mask them as well, they count in its denominator.

    Departs: the paper (TRICO is the first name of VAGEN) was not at hand.  Its first release computes GAE over the
    tokens of a mask, which covers whole replies; here the mask selects parts.  There, a reward at a token outside of
    the mask is lost, and whitening gives such tokens an advantage other than 0.  Here, only rewards of skipped tokens
    before the first other one are lost, since no action precedes them.  The prompt does not ask for the tags.  Groups
    are refilled as by `Refill`.

    Args:
        masked: parts that the loss leaves out.
        skipped: parts that advantages step over.
        tags: names of further parts: tags without brackets.
        max_waves: see `Refill`.

    Raises:
        ValueError: a part is unknown, a tag is malformed or has the name of a segment, no part is left out, or an
            option leaves out all parts.
    """

    curves = ("masked_share", "skipped_share")

    def __init__(
        self,
        *,
        masked: Sequence[str] = ("think",),
        skipped: Sequence[str] = (),
        tags: Sequence[str] = (),
        max_waves: int | None = None,
    ) -> None:
        self._tags = [str(tag).lower() for tag in _list_names("tags", tags)]
        for tag in self._tags:
            if tag in SEGMENTS or not _TAG.fullmatch(tag):
                raise ValueError(
                    f"tags={list(tags)}: {tag} is not a name of a tag; write it without brackets, other than "
                    f"{', '.join(SEGMENTS)}"
                )
        self._masked, self._skipped = self._read_parts("masked", masked), self._read_parts("skipped", skipped)
        if not self._masked and not self._skipped:
            raise ValueError("masked=[] and skipped=[] leave nothing out; set algo/structure=refill")
        self._counts: dict[str, tuple[int, int]] = {}
        super().__init__(max_waves)

    def _read_parts(self, option: str, names: Sequence[str]) -> set[str]:
        parts, known = {str(name).lower() for name in _list_names(option, names)}, [*SEGMENTS, *self._tags]
        if unknown := parts - {*known}:
            raise ValueError(
                f"{option}={list(names)}: {min(unknown)} is not a part; choose from {', '.join(known)}, or add it to "
                "tags"
            )
        if parts >= {*known}:
            raise ValueError(f"{option}={list(names)} leaves no part to learn; name fewer")
        return parts

    def setup(self, training: Training) -> None:
        self._get_piece = get_token_pieces(training.tokenizer)

    def mask_tokens(self, iteration: int, rows: TrajectoryBatch) -> Tensor | None:
        """Return the mask (B, T) that is True at sampled tokens of masked parts."""
        return self._find_tokens("masked_share", self._masked, rows)

    def skip_tokens(self, iteration: int, rows: TrajectoryBatch) -> Tensor | None:
        """Return the mask (B, T) that is True at sampled tokens of skipped parts."""
        return self._find_tokens("skipped_share", self._skipped, rows)

    def _find_tokens(self, curve: str, parts: set[str], rows: TrajectoryBatch) -> Tensor | None:
        """Return the mask (B, T) of sampled tokens of these parts; None without parts."""
        if not parts:
            return None
        segments = [SEGMENTS[name] for name in SEGMENTS if name in parts]
        is_part_BT = torch.isin(rows.segment_BT, torch.tensor(segments, dtype=rows.segment_BT.dtype))
        for row, places in self._list_replies(rows):
            pieces = [self._get_piece(token) for token in rows.tokens_BT[row, places].tolist()]
            for place, tag in zip(places.tolist(), find_tagged(pieces, self._tags), strict=True):
                if tag:
                    is_part_BT[row, place] = tag in parts
        is_part_BT &= rows.is_action_BT
        self._counts[curve] = (int(is_part_BT.sum()), int(rows.is_action_BT.sum()))
        return is_part_BT

    def _list_replies(self, rows: TrajectoryBatch) -> list[tuple[int, Tensor]]:
        """Return the row and the places of each reply; an empty list without ``tags``."""
        replies = []
        for row in range(rows.num_rows if self._tags else 0):
            places = rows.is_action_BT[row].nonzero().squeeze(1)
            _, sizes = torch.unique_consecutive(rows.turn_BT[row, places], return_counts=True)
            replies += [(row, part) for part in torch.split(places, sizes.tolist()) if len(part)]
        return replies

    def learn(self, progress: Progress) -> Mapping[str, tuple[float, float]]:
        counts, self._counts = self._counts, {}
        return {name: counts.get(name, (0, 0)) for name in self.curves}


def _list_names(option: str, names: Any) -> list[Any]:
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise ValueError(f"{option}={names} must be a list of names, such as [think]")
    return list(names)
