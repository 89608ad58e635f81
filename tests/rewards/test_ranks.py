"""Several processes score as one does."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp

from lit_agentrl.rewards.learned.icm import IntrinsicCuriosity
from lit_agentrl.rewards.learned.rnd import RandomNetworkDistillation
from lit_agentrl.rewards.pipeline import RewardPipeline
from lit_agentrl.rewards.shaping.count import Count
from lit_agentrl.rewards.shaping.format import Format
from lit_agentrl.rewards.shaping.normalise import Normalise
from lit_agentrl.rewards.shaping.top_lambda import TopLambda
from tests.rewards.conftest import context, golden


def pipeline() -> RewardPipeline:
    made = RewardPipeline({
        "top": TopLambda(top_share=0.5), "format": Format(), "count": Count(), "n": Normalise(by="running"),
        "rnd": RandomNetworkDistillation(features=16, hidden=4, outputs=2),
        "icm": IntrinsicCuriosity(features=16, hidden=4, outputs=2),
    })  # fmt: skip
    made.setup(context())
    return made


def results(groups: tuple[int, ...]) -> list[Any]:
    """Two iterations over these groups' episodes: their returns, the curves, and in the end what was learnt."""
    parts, found = pipeline(), []
    for iteration in range(2):
        mine = [e for e in golden() if e.group in groups]
        parts.score(mine, iteration=iteration)
        row = parts.learn(mine, iteration=iteration)
        found.append(([e.training_return for e in mine], row))
    return [*found, repr(parts.state_dict())]


SHARES = [((0,), (1,)), ((0, 1), ())]  # of the two ranks; the second time one of them has nothing


def work(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    Path(folder, str(rank)).write_text(repr([results(share[rank]) for share in SHARES]))
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_score_as_one_does(tmp_path: Path) -> None:
    mp.spawn(work, args=(str(tmp_path),), nprocs=2)
    first, second = (ast.literal_eval(Path(tmp_path, str(rank)).read_text()) for rank in (0, 1))
    *whole, learnt = results((0, 1))
    for share, mine, theirs in zip(SHARES, first, second, strict=True):
        assert mine[-1] == theirs[-1] == learnt
        for (returns_a, row_a), (returns_b, row_b), (returns, row) in zip(mine, theirs, whole, strict=False):
            assert row_a == row and row_b == row, share
            assert returns_a + returns_b == returns
