"""The token ledger: the segment of each token, and the invariants of an episode's record."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lit_agentrl.episode import Episode, Segment, Turn
from lit_agentrl.text.dialects.answer import ANSWER
from lit_agentrl.text.dialects.base import Dialect
from lit_agentrl.text.token_bytes import get_token_pieces

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PREFIX_SEGMENTS = [Segment.PROMPT, Segment.OBSERVATION, Segment.FORCED, Segment.PAST]
_REPLY_SEGMENTS = [Segment.THINK, Segment.ANSWER, Segment.OTHER]
_TOLERANCE = 1e-5  # nats; a float32 log-softmax of a near-certain token may round above zero


def reply_segments(
    tokenizer: PreTrainedTokenizerBase,
    tokens: Sequence[int],
    *,
    forced_think: bool,
    dialect: Dialect = ANSWER,
) -> list[int]:
    """Classify each sampled token of one reply as THINK, ANSWER or OTHER.

    A tag belongs to the block that it opens or closes.  A token that touches two blocks (such as ``><``) belongs
    to the first of them; white space at the start of the token does not count.  The blocks are those that the parser
    sees when the format has a think block.

    Args:
        tokenizer: Gives the text of tokens.
        tokens: Sampled ids, including the end-of-turn token if one was sampled.
        forced_think: Whether the opening think tag was forced, so that the reply begins inside the block.
        dialect: Finds the blocks.

    Returns:
        One :class:`~lit_agentrl.episode.Segment` value per token.
    """
    piece_of = get_token_pieces(tokenizer)
    pieces = [piece_of(token) for token in tokens]
    # Latin-1 maps each byte to one character: tags are ASCII, so positions are byte positions
    blocks = dialect.spans(b"".join(pieces).decode("latin-1"), in_think=forced_think)
    ends = list(accumulate(len(piece) for piece in pieces))
    segments: list[int] = []
    current = 0
    for piece, end in zip(pieces, ends, strict=True):
        start = end - len(piece.lstrip() or piece)
        while current < len(blocks) and blocks[current].end <= start:
            current += 1
        is_inside = current < len(blocks) and blocks[current].start < max(end, start + 1)
        kind = blocks[current].kind if is_inside else ""
        segments.append(int({"think": Segment.THINK, "answer": Segment.ANSWER}.get(kind, Segment.OTHER)))
    return segments


def check_ledger(episode: Episode) -> None:
    """Check the invariants of an episode's record.

    Every token has one segment; sampled tokens are THINK, ANSWER or OTHER, and the tokens before a reply
    never are; every sampled token has a finite log-probability of at most 0 nats and a finite entropy of at
    least 0 nats; every turn has tokens before its reply; token ids are not negative.

    Raises:
        ValueError: If an invariant does not hold; the message names the first one, its turn and the value.
    """
    for index, turn in enumerate(episode.turns):
        problem = _find_problem(turn)
        if problem:
            where = f"group {episode.group} member {episode.member} turn {index}"
            raise ValueError(f"token ledger broken at {where}: {problem}")


def _find_problem(turn: Turn) -> str:
    size = len(turn.reply_tokens)
    names = ("reply_segments", "reply_logps", "reply_entropies")
    lengths = {name: len(getattr(turn, name)) for name in names}
    wrong = [name for name, length in lengths.items() if length != size]
    if wrong:
        return f"{wrong[0]} has {lengths[wrong[0]]} entries for {size} reply_tokens"
    if len(turn.prefix_segments) != len(turn.prefix_tokens):
        num_segments, num_tokens = len(turn.prefix_segments), len(turn.prefix_tokens)
        return f"prefix_segments has {num_segments} entries for {num_tokens} prefix_tokens"
    if not len(turn.prefix_tokens):
        return "prefix_tokens is empty; a reply needs at least its header"
    logps, entropies = turn.reply_logps, turn.reply_entropies
    tokens = np.concatenate([turn.prefix_tokens, turn.reply_tokens])
    checks: dict[str, NDArray[Any]] = {
        "prefix_segments must be PROMPT, OBSERVATION, FORCED or PAST": turn.prefix_segments[
            ~np.isin(turn.prefix_segments, _PREFIX_SEGMENTS)
        ],
        "reply_segments must be THINK, ANSWER or OTHER": turn.reply_segments[
            ~np.isin(turn.reply_segments, _REPLY_SEGMENTS)
        ],
        "token ids must not be negative": tokens[tokens < 0],
        "reply_logps must be finite and at most 0": logps[~np.isfinite(logps) | (logps > _TOLERANCE)],
        "reply_entropies must be finite and at least 0": entropies[
            ~np.isfinite(entropies) | (entropies < -_TOLERANCE)
        ],
    }
    return next((f"{rule}, got {bad[0]}" for rule, bad in checks.items() if len(bad)), "")
