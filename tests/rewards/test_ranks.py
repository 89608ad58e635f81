"""Several processes score as one does."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp

from lit_agentrl.distributed import gather_objects
from lit_agentrl.rewards.count import Count
from lit_agentrl.rewards.normalise import Normalise
from lit_agentrl.rewards.pipeline import RewardPipeline
from lit_agentrl.rewards.top_lambda import TopLambda
from tests.rewards.conftest import golden


def pipeline() -> RewardPipeline:
    return RewardPipeline({"top": TopLambda(top_share=0.5), "count": Count(), "n": Normalise(by="running")})


def results(group: int | None) -> list[tuple[list[float], dict[str, float]]]:
    """Two iterations over one group's episodes, or all of them."""
    parts, found = pipeline(), []
    for iteration in range(2):
        mine = [e for e in golden() if group is None or e.group == group]
        parts.score(gather_objects(mine), iteration=iteration)
        row = parts.learn(gather_objects(mine), iteration=iteration)
        found.append(([e.training_return for e in mine], row))
    return found


def work(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    Path(folder, str(rank)).write_text(repr(results(rank)))
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_score_as_one_does(tmp_path: Path) -> None:
    mp.spawn(work, args=(str(tmp_path),), nprocs=2)
    first, second = (ast.literal_eval(Path(tmp_path, str(rank)).read_text()) for rank in (0, 1))
    for (returns_a, row_a), (returns_b, row_b), (returns, row) in zip(
        first, second, results(None), strict=True
    ):
        assert row_a == row_b == row
        assert returns_a + returns_b == returns
