"""A column is declared once: what has no rows yet, padding, fillers, the toy batch and the docs follow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from lit_agentrl import batch
from lit_agentrl.batch import Column, TrajectoryBatch, list_columns
from lit_agentrl.episode import EndReason, Episode, Turn
from lit_agentrl.rl.binding import try_out
from lit_agentrl.rollout import pack
from lit_agentrl.update.minibatches import add_fillers
from tests.conftest import ROOT


def lines(declared: dict[str, Column]) -> list[str]:
    """The docs' table of columns."""
    return [
        f"| `{name}` | {str(spec.dtype).removeprefix('torch.')} | {spec.says} |"
        for name, spec in declared.items()
    ]


def test_the_docs_hold_every_column():
    page = (ROOT / "docs" / "formats.md").read_text()
    assert [line for line in lines(list_columns()) if line not in page] == []
    padded = [f"`{name}`" for name, spec in list_columns().items() if spec.fill != 0]
    assert {list_columns()[name.strip("`")].fill for name in padded} == {-1}
    assert f"with 0, but {', '.join(padded[:-1])} and {padded[-1]} with -1." in " ".join(page.split())


@dataclass(frozen=True)
class Wider(TrajectoryBatch):
    """One line more."""

    surprise_BT: Tensor = batch.declare_column(torch.float32, fill=-1, filler=-2, toy=[0, 1, 1], says="nats")


@pytest.fixture
def wider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "TrajectoryBatch", Wider)
    monkeypatch.setattr(pack, "TrajectoryBatch", Wider)


@pytest.mark.usefixtures("wider")
def test_a_further_column_is_one_line_and_what_fills_it(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = Wider.make_empty().surprise_BT
    assert (empty.shape, empty.dtype) == ((0, 0), torch.float32)
    assert "| `surprise_BT` | float32 | nats |" in lines(list_columns())

    def surprised(*, surprise_BT: Tensor) -> Tensor:
        assert surprise_BT.tolist() == [[0, 1, 1]] * 4
        return surprise_BT

    try_out("algo.ratio", surprised, Tensor, Wider.make_toy().to_dict())

    episodes = [
        Episode(0, 0, member, 0, "count", 1, end=EndReason.TURN_LIMIT, turns=[
            Turn("", [7], [0], reply_tokens=[1] * size, reply_segments=[4] * size, reply_logps=[-1.0] * size,
                 reply_entropies=[0.5] * size)
        ])
        for member, size in enumerate((3, 1))
    ]  # fmt: skip
    with pytest.raises(KeyError, match="surprise_BT"):
        pack.pack(episodes)
    plain = pack._make_token_columns
    monkeypatch.setattr(
        pack, "_make_token_columns",
        lambda number, turn: plain(number, turn) | {"surprise_BT": np.arange(1 + len(turn.reply_tokens))},
    )  # fmt: skip
    packed = pack.pack(episodes)
    assert isinstance(packed, Wider)
    assert packed.surprise_BT.tolist() == [[0, 1, 2, 3], [0, 1, -1, -1]]
    assert packed.select(torch.tensor([1])).trim().surprise_BT.tolist() == [[0, 1]]

    narrow = packed.select(torch.tensor([1])).trim().to_dict()
    assert batch.pad_columns(narrow, {"surprise_BT": 3})["surprise_BT"].tolist() == [[0, 1, -1]]
    rows, part_B = add_fillers(narrow, torch.tensor([1]), 2)
    assert rows["surprise_BT"].tolist() == [[0, 1], [-2, -2]] and part_B.tolist() == [1, 0]
    assert rows["turn_BT"].tolist() == [[0, 0], [-1, -1]] and rows["is_real_BT"].all()
    assert rows["trajectory_B"][1] == rows["group_B"][1] == -1 and rows["return_B"][1].isnan()
