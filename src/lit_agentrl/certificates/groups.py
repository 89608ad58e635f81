"""All groups of members with their probabilities, or a sample of them."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from lit_agentrl import seeds
from lit_agentrl.certificates.exact import Table, compute_path_log_probs

Batch = tuple[tuple[int, ...], ...]  # the episodes of each group of a batch
MOST_BATCHES = 4096
SAMPLES = 4096


@dataclass(frozen=True)
class Batches:
    """Batches and their weights, which sum to 1.

    Attributes:
        batches: a group for each prompt.
        weights: probability of each, or its share of a sample.
        is_exact: whether they are all batches that the policy can play.
    """

    batches: Sequence[Batch]
    weights: torch.Tensor
    is_exact: bool


def list_batches(
    table: Table, members: int, *, is_ordered: bool = False, most: int = MOST_BATCHES
) -> Batches:
    """List every batch with its probability, or sample if there are too many.

    The sample depends only on the game and ``members``: every algorithm gets the same batches.

    Args:
        table: the game; a batch has one group for each prompt, and the policy that played gives the probabilities.
        members: members of each group.
        is_ordered: list each order of the members; else one order stands for all.
        most: where there are more batches than this, `SAMPLES` of them are drawn.
    """
    prob = compute_path_log_probs(table, table.old).exp().tolist()
    paths_by_prompt = [
        [m for m in range(len(prob)) if table.paths[m].prompt == prompt]
        for prompt in range(table.num_prompts)
    ]
    count = math.prod(
        len(paths) ** members if is_ordered else math.comb(len(paths) + members - 1, members)
        for paths in paths_by_prompt
    )
    if count > most:
        return _sample_batches(table, members, prob, paths_by_prompt, is_ordered=is_ordered)
    groups = [list(_list_groups(paths, prob, members, is_ordered)) for paths in paths_by_prompt]
    weighted = list(itertools.product(*groups))
    weights = [math.prod(weight for _, weight in batch) for batch in weighted]
    batches = [tuple(group for group, _ in batch) for batch in weighted]
    return Batches(batches, torch.tensor(weights, dtype=torch.float64), True)


def _list_groups(
    paths: Sequence[int], prob: Sequence[float], members: int, is_ordered: bool
) -> Iterator[tuple[tuple[int, ...], float]]:
    if is_ordered:
        for group in itertools.product(paths, repeat=members):
            yield group, math.prod(prob[m] for m in group)
        return
    for group in itertools.combinations_with_replacement(paths, members):
        orders = math.factorial(members)
        for m in set(group):
            orders //= math.factorial(group.count(m))
        yield group, orders * math.prod(prob[m] for m in group)


def _sample_batches(
    table: Table,
    members: int,
    prob: Sequence[float],
    paths_by_prompt: Sequence[Sequence[int]],
    *,
    is_ordered: bool,
) -> Batches:
    draw = torch.Generator().manual_seed(seeds.make_key(0, "certificate", len(prob), members))
    columns = []
    for paths in paths_by_prompt:
        weights = torch.tensor([prob[m] for m in paths], dtype=torch.float64)
        drawn = torch.multinomial(weights, SAMPLES * members, replacement=True, generator=draw)
        numbers = torch.tensor(paths)[drawn].view(SAMPLES, members)
        columns.append(
            [tuple(group) for group in (numbers if is_ordered else numbers.sort(1).values).tolist()]
        )
    counts = Counter(zip(*columns, strict=True))  # a batch that is drawn again needs no second update
    shares = torch.tensor(list(counts.values()), dtype=torch.float64) / SAMPLES
    return Batches(list(counts), shares, False)
