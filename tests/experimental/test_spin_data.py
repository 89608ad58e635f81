"""Pairs of SPIN from folders: who is compared with whom, the loss of the paper, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_agentrl.cli.pipeline import main as main_pipeline
from lit_agentrl.data.episodes import EpisodeFolder, open_folder
from lit_agentrl.data.reading import read
from lit_agentrl.experimental.spin import Spin
from lit_agentrl.rollout.pack import pack
from tests.data.test_reading import file, folder, played, student
from tests.rl.ragged import fresh, loss_of

OWN = [played(0, 0, 5.0), played(0, 1, 0.0), played(0, 2, 1.0), played(1, 0, 9.0), played(2, 0, 1.0)]
# of prompt 0 two, of which own member 2 wrote one; of prompt 1 one that is worth less than the own; none of prompt 2
SHOWN = [played(0, 7, 1.0), played(0, 2, 1.0), played(1, 8, 0.5)]


def pairs(kind: Spin) -> list[tuple[int, list[tuple[int, float]]]]:
    """Instance seed of each pair, and who wrote each side, with its return."""
    return sorted(
        (group[0].instance_seed, [(int(e.turns[0].reply_tokens[0]) - 20, e.training_return) for e in group])
        for group in read(kind, student(), seed=0).groups
    )


def test_each_own_episode_is_worse_than_the_first_demonstration_of_its_prompt(tmp_path: Path) -> None:
    own, shown = folder(tmp_path, OWN), folder(tmp_path / "shown", SHOWN)
    kind = Spin(path=own, demonstrations=shown, batch=3)
    assert pairs(kind) == [
        (100, [(7, 1.0), (0, 0.0)]),
        (100, [(7, 1.0), (1, 0.0)]),
        (101, [(8, 1.0), (0, 0.0)]),
    ]
    assert any("1 prompts give no group" in note for note in read(kind, student(), seed=0).notes)
    # two folders of own episodes, as in later rounds of the paper
    more = folder(tmp_path / "more", [played(1, 3, 0.0)])
    assert (101, [(8, 1.0), (3, 0.0)]) in pairs(replace(kind, path=[own, more]))


def test_another_prompt_of_the_same_task_is_no_pair(tmp_path: Path) -> None:
    other = played(0, 7, 1.0)
    other.turns[0] = replace(other.turns[0], prefix_tokens=[10, 12])  # type: ignore[arg-type]
    kind = Spin(
        path=folder(tmp_path, OWN), demonstrations=folder(tmp_path / "shown", [other, SHOWN[2]]), batch=1
    )
    assert [seed for seed, _ in pairs(kind)] == [101]


def test_the_loss_is_that_of_the_paper_by_hand(tmp_path: Path) -> None:
    """Over pairs in plain Python, from log-ratios of every sampled token; and the worked pair of the docstring."""
    kind = Spin(path=folder(tmp_path, OWN), demonstrations=folder(tmp_path / "shown", SHOWN), batch=3)
    batch = read(kind, student(), seed=0).make_batch(0)
    assert batch.trajectories is not None
    rows = batch.trajectories.to_dict()
    draw = torch.Generator().manual_seed(0)
    shape = rows["tokens_BT"].shape
    logp_BT, ref_BT = (torch.randn(shape, generator=draw, dtype=torch.float64) for _ in range(2))

    def loss(logp_BT: torch.Tensor, ref_BT: torch.Tensor) -> float:
        columns = rows | {"logp_BT": logp_BT, "old_logp_BT": logp_BT, "ref_logp_BT": ref_BT}
        return float(loss_of(fresh("dpo"), columns | {"entropy_BT": torch.zeros(shape)})[0])

    losses = []
    for number in set(rows["group_B"].tolist()):
        ratio: dict[float, float] = {}
        for b in torch.nonzero(rows["group_B"] == number).flatten().tolist():
            places = rows["is_action_BT"][b].nonzero().flatten().tolist()
            ratio[float(rows["return_B"][b])] = sum(float(logp_BT[b, t] - ref_BT[b, t]) for t in places)
        losses.append(math.log1p(math.exp(-0.1 * (ratio[1.0] - ratio[0.0]))))
    assert len(losses) == 3 and loss(logp_BT, ref_BT) == pytest.approx(sum(losses) / 3, rel=1e-6)
    # log-ratios 2 and -3 of every pair
    is_first_BT = rows["is_action_BT"] & (rows["is_action_BT"].cumsum(1) == 1)
    ratio_BT = torch.where(rows["return_B"][:, None] == 1, 2.0, -3.0).double() * is_first_BT
    assert loss(ratio_BT, torch.zeros_like(ratio_BT)) == pytest.approx(0.474077, abs=1e-6)


def test_what_does_not_fit_is_one_line(tmp_path: Path) -> None:
    own, shown = folder(tmp_path, OWN), folder(tmp_path / "shown", SHOWN)
    for change, said in (
        ({"demonstrations": str(tmp_path / "no")}, "demonstrations=.*no is no folder; name one"),
        ({"demonstrations": " "}, "demonstrations=  must be a folder"),
        ({"demonstrations": own}, "none of its .* rows makes a group"),
        ({"path": file(tmp_path, [{"prompt": "P"}])}, "is a file, and data=spin reads folders"),
        ({"columns": {"prompt": "question"}}, "columns has no effect on folders"),
        ({"score": "success"}, "score=success must be one of return"),
    ):  # fmt: skip
        options: dict[str, Any] = {"path": own, "demonstrations": shown, "batch": 1} | change
        with pytest.raises(ValueError, match=said) as raised:
            read(Spin(**options), student(), seed=0)
        assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_the_recipe_plays_against_the_last_rounds_policy(in_empty_folder: Path) -> None:
    small = "trained.data.batch=4 trained.trainer.max_epochs=2 trained.val.every=2 trained.val.episodes=4"
    game = "env=frozen_lake rounds=2 prompts=8 members=2 trained.test.episodes=0"
    main_pipeline(f"recipe=spin out=o {game} {small}".split())
    folders = [open_folder(Path(f"o/round_{k}/recorded")) for k in (1, 2)]
    assert all(isinstance(each, EpisodeFolder) for each in folders)
    prints = [each.described["policy"]["fingerprint"] for each in folders if each is not None]
    assert len(set(prints)) == 2  # the second round's opponent is the policy of the first
    shown = open_folder(Path("o/round_1/demonstrated"))
    assert shown is not None and pack(list(shown.read())).sampler_logp_BT.isnan().any()
    metrics = Path("o/round_2/trained/metrics.csv").read_text()
    assert "train/reward_accuracy" in metrics
