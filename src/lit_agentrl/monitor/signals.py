"""Signals of a collapse: functions of the metrics of an iteration.

`measure_replies` computes the signals that need the replies themselves; they are logged under ``collapse/``.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from lit_agentrl.distributed import gather_objects, sum_over_ranks
from lit_agentrl.episode import Episode, Segment, Turn

Row = Mapping[str, float]


def reward_gap(row: Row) -> float | None:
    """Return the mean training reward minus the success rate; None without episodes.

    It grows where a policy raises its reward without success.
    """
    reward, success = row.get("reward/total", row.get("rollout/return_mean")), row.get("rollout/success")
    return None if reward is None or success is None else reward - success


def both_fallen(row: Row) -> float | None:
    """Return the larger change of log-prob of the two sides of pairs; None without pairs.

    The change is in nats, from the reference, or from the sampler where there is no reference.  Far below 0, both sides
    lost probability to replies that nobody compared.
    """
    sides = [row.get(f"train/moved_{side}") for side in ("chosen", "rejected")]
    known = [moved for moved in sides if moved is not None]
    return max(known) if len(known) == len(sides) else None


def learned_gap(row: Row) -> float | None:
    """Return the largest gap of a watched reward (`rewards.watching.Watched`); None without one.

    It grows where the policy exploits errors of a reward model or a judge.
    """
    gaps = (value for name, value in row.items() if re.fullmatch(r"reward/.+_gap", name))
    known = [gap for gap in gaps if gap is not None]
    return max(known, default=None)


def count_validated(row: Row) -> float | None:
    """Return the number of episodes, or of a reward model's pairs, behind ``val/success``."""
    return row.get("val/episodes", row.get("val/pairs"))


def compute_uniformity(entropies: Sequence[float | None], vocabulary: int) -> dict[str, float]:
    """Compute ``collapse/uniformity``: the largest entropy divided by that of uniform draws.

    The result is empty where no entropy is known.

    Args:
        entropies: nats per token; None where unknown.
        vocabulary: number of tokens that can be drawn.
    """
    known = [entropy for entropy in entropies if entropy is not None]
    return {"collapse/uniformity": max(known) / math.log(vocabulary)} if known and vocabulary > 1 else {}


def measure_replies(episodes: Sequence[Episode]) -> dict[str, float]:
    """Measure entropy, diversity and templates of the replies, over all ranks: a collective.

    ``collapse/entropy_think`` and ``…_answer`` are in nats per token.  A pair is two neighbouring tokens of a reply.
    ``collapse/distinct_within`` is the share of a group's pairs that are distinct, as a mean over groups.
    ``collapse/similarity_within`` and ``…_across`` are the Jaccard similarity of two episodes' sets of pairs, within a
    group between neighbouring members and across groups between the first members of neighbouring groups.
    ``collapse/template_share`` is the share of the most frequent thought among all thoughts.

    Args:
        episodes: episodes of this rank; failed ones are left out.
    """
    played = sorted(
        (e for e in episodes if not e.failed and e.turns), key=lambda e: (e.wave, e.group, e.member)
    )
    groups: dict[tuple[int, int], list[list[int]]] = {}
    for episode in played:
        pairs = [pair for turn in episode.turns for pair in _encode_pairs(turn.reply_tokens)]
        groups.setdefault((episode.wave, episode.group), []).append(pairs)
    sets = [[frozenset(pairs) for pairs in group] for group in groups.values()]
    distinct = [
        len(frozenset[int]().union(*reply_sets)) / num_pairs
        for reply_sets, group in zip(sets, groups.values(), strict=True)
        if (num_pairs := sum(map(len, group)))
    ]
    within = [_compute_jaccard(a, b) for group in sets for a, b in zip(group, group[1:], strict=False)]
    across = [_compute_jaccard(a[0], b[0]) for a, b in zip(sets, sets[1:], strict=False)]
    turns = [turn for episode in played for turn in episode.turns]
    sums = {
        "entropy_think": _sum_entropies(turns, Segment.THINK), "entropy_answer": _sum_entropies(turns, Segment.ANSWER),
        "distinct_within": (sum(distinct), len(distinct)), "similarity_within": (sum(within), len(within)),
        "similarity_across": (sum(across), len(across)),
    }  # fmt: skip
    table = sum_over_ranks(torch.tensor(list(sums.values()), dtype=torch.float64)).tolist()
    signals = {f"collapse/{name}": total / n for name, (total, n) in zip(sums, table, strict=True) if n}
    thoughts: Counter[str] = Counter()
    for counted in gather_objects([Counter(filter(None, map(_hash_thought, turns)))]):
        thoughts.update(counted)
    if thoughts:
        signals["collapse/template_share"] = thoughts.most_common(1)[0][1] / thoughts.total()
    return signals


def _encode_pairs(tokens: NDArray[np.int64]) -> list[int]:
    """Encode each pair of neighbouring tokens as one number."""
    return [int(pair) for pair in (tokens[:-1] << 32) | tokens[1:]]


def _compute_jaccard(a: frozenset[int], b: frozenset[int]) -> float:
    return len(a & b) / max(len(a | b), 1)


def _sum_entropies(turns: Sequence[Turn], segment: Segment) -> tuple[float, int]:
    """Sum and count the known entropies of the tokens of a segment."""
    values = [
        turn.reply_entropies[turn.reply_segments == segment] for turn in turns if len(turn.reply_entropies)
    ]
    known = np.concatenate(values) if values else np.zeros(0)
    known = known[np.isfinite(known)]
    return float(known.sum()), len(known)


def _hash_thought(turn: Turn) -> str:
    tokens = turn.reply_tokens[turn.reply_segments == Segment.THINK]
    return hashlib.blake2b(tokens.tobytes(), digest_size=8).hexdigest() if len(tokens) else ""
