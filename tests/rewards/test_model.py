"""A trained reward model as reward: its numbers, ensembles by hand, what it is watched by, and what does not fit."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from lit_agentrl.episode import Episode
from lit_agentrl.models.heads import ScoreHead
from lit_agentrl.models.policy import Policy
from lit_agentrl.models.reward_model import ABOUT, WEIGHTS, RewardModelInfo, hash_weights, save_head
from lit_agentrl.monitor.signals import learned_gap
from lit_agentrl.paths import CONFIG_DIR
from lit_agentrl.rewards.learned.model import Learned
from lit_agentrl.rewards.learned.scoring import list_rows
from lit_agentrl.rewards.pipeline import RewardPipeline
from lit_agentrl.text.token_bytes import hash_tokenizer
from tests.conftest import nano_tokenizer, tiny_policy
from tests.rewards.conftest import context, episode, turn

RULES = CONFIG_DIR / "callbacks/collapse/default.yaml"


@cache
def network() -> Policy:
    return tiny_policy()


def model(folder: Path, seed: int = 0, **about: Any) -> str:
    """A reward model of random weights."""
    hf = folder / f"m{seed}{about.get('kind', '')}" / "hf"
    hf.mkdir(parents=True)
    policy = Policy(network().network, nano_tokenizer(), "tiny")
    policy.save(hf)
    head = ScoreHead(policy.network.config.hidden_size, seed=seed)
    told = {
        "kind": "score", "fingerprint": hash_weights(policy.network, head),
        "tokenizer": hash_tokenizer(nano_tokenizer()), "mean": 0.25, "std": 2.0,
    }  # fmt: skip
    save_head(hf, head, RewardModelInfo(**(told | about)))
    return str(hf.parent)


def played() -> list[Episode]:
    """Of two turns in a row, of two rows, and of one long turn."""
    two = [turn(3, reward=1.0), turn(5, reward=2.0, reward_parts={"invalid": -0.1})]
    return [
        episode(two, success=True),
        episode([turn(2), turn(4, starts_row=True)], member=1),
        episode([turn(9, sampled=[3] * 9)], member=2),
    ]


def part(path: Any, **options: Any) -> Learned:
    made = Learned(path=path, **options)
    made.name = "model"
    made.setup(context())
    return made


def by_hand(found: Learned, each: Episode) -> list[float]:
    """One row at a time, without padding."""
    values = []
    for tokens, ends in list_rows(each):
        is_scored = torch.zeros(1, len(tokens), dtype=torch.bool)
        is_scored[0, ends] = True
        [one] = found._scorer._models
        with torch.no_grad():
            row = one.head(one.policy.network, tokens_BT=torch.tensor([tokens]), is_scored_BT=is_scored)
        values += [(float(score) - 0.25) / 2 for score in row[is_scored]]
    return values


def test_values_are_the_models_and_stand_where_they_are_asked_for(tmp_path: Path) -> None:
    path, episodes = model(tmp_path), played()
    found = part(path, weight=3.0, tokens_per_batch=1)
    expected = [by_hand(found, each) for each in episodes]
    assert [len(row) for row in expected] == [2, 2, 1]
    for made in (found, part(path, tokens_per_batch=10_000)):
        assert all(
            row == pytest.approx(hand, abs=1e-5)
            for row, hand in zip(made.values(episodes), expected, strict=True)
        )
    game = [[t.reward for t in e.turns] for e in episodes]
    ended = found.apply(game, episodes, iteration=0)
    assert ended[0] == pytest.approx([0.0, 3 * expected[0][1] - 0.1], abs=1e-5)  # the penalty stays
    beside = part(path, replaces=False).apply(game, episodes, iteration=0)
    assert beside[0] == pytest.approx([1.0, 2.0 + expected[0][1]], abs=1e-5)
    progress = part(path, per="progress", keep_penalties=False).apply(game, episodes, iteration=0)
    assert [sum(row) for row in progress] == pytest.approx([row[-1] for row in expected], abs=1e-5)
    every = part(path, per="turn", keep_penalties=False).apply(game, episodes, iteration=0)
    assert every[1] == pytest.approx(expected[1], abs=1e-5)


def test_several_models_and_chances(tmp_path: Path) -> None:
    paths, episodes = [model(tmp_path, seed) for seed in (1, 2, 3)], played()
    alone = [torch.tensor(sum(part(path).values(episodes), [])) for path in paths]
    table = torch.stack(alone)
    together = {
        "mean": table.mean(0), "min": table.amin(0), "cautious": table.mean(0) - 0.5 * table.var(0, correction=0),
    }  # fmt: skip
    for combine, expected in together.items():
        values = torch.tensor(sum(part(paths, combine=combine).values(episodes), []))
        torch.testing.assert_close(values, expected)
    chance = part(model(tmp_path, 1, kind="logit")).values(episodes)
    torch.testing.assert_close(torch.tensor(sum(chance, [])), (alone[0] * 2 + 0.25).sigmoid())


def test_what_it_is_watched_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar is the median of the first successes; later episodes pass it without one."""
    found = part(model(tmp_path))
    worth = {0: [1.0, 2.0, 0.0, 0.5], 1: [2.0, 3.0, 2.5, 0.0]}
    for iteration, solved in ((0, [True, True, False, False]), (1, [True, False, False, False])):
        monkeypatch.setattr(
            Learned, "values", lambda self, es, i=iteration: [[v] for v in worth[i][: len(es)]]
        )
        episodes = [episode([turn()], member=k, success=s) for k, s in enumerate(solved)]
        row = found.curves(episodes, iteration=iteration)
    assert row == {"score": 1.875, "success": 0.25, "auc": pytest.approx(1 / 3), "gap": 0.5}
    assert learned_gap({"reward/model_gap": 0.5}) == 0.5 and learned_gap({}) is None
    again = part(found.path)
    again.load_state_dict(json.loads(json.dumps(found.state_dict())))
    assert again.curves(episodes, iteration=2)["gap"] == 0.5
    with pytest.raises(ValueError, match=r"reward\.model\.path=.* and this run was trained on 0000"):
        again.load_state_dict({"fingerprints": ["0" * 64], "first": {}})


def test_the_rule_hacked_tells_a_recorded_run_from_its_control() -> None:
    """Gaps of sixteen iterations: paid by a reward model, and by the game."""
    hacked = [-3, -9, -12, -6, -6, -3, 19, 9, 19, 22, 16, 16, 34, 16, 19, 37]
    honest = [-3, -6, -6, -3, -9, -9, 9, -6, -3, 3, -6, -9, -9, -6, -9, -6]
    fired = []
    for gaps in (hacked, honest):
        rule = instantiate(OmegaConf.load(RULES).rules.hacked)
        found = [rule.look("hacked", {"reward/model_gap": gap / 100}) is not None for gap in gaps]
        fired.append([k for k, is_fired in enumerate(found, start=1) if is_fired])
    assert fired == [[11], []]


def test_it_replaces_the_points_in_a_pipeline(tmp_path: Path) -> None:
    pipeline, episodes = RewardPipeline({"model": Learned(path=model(tmp_path))}), played()
    pipeline.setup(context())
    pipeline.score(episodes, iteration=0)
    row = pipeline.learn(episodes, iteration=0)
    assert {
        "reward/model_score",
        "reward/model_success",
        "reward/model_auc",
        "reward/model_gap",
    } <= row.keys()
    assert row["reward/model_success"] == pytest.approx(1 / 3)
    assert episodes[0].training_return == pytest.approx(
        by_hand(pipeline.parts["model"], episodes[0])[1] - 0.1, abs=1e-5
    )


def test_what_does_not_fit_is_one_line(tmp_path: Path) -> None:
    path = model(tmp_path)
    for options, said in (
        ({"path": ""}, "path= must be the folder of a run"),
        ({"path": [path, path]}, "names the same weights twice"),
        ({"path": "nowhere"}, "path=nowhere is not there"),
        ({"path": str(tmp_path)}, "holds no reward model"),
        ({"weight": 0}, "weight=0 would set all rewards to 0"),
        ({"weight": -1}, "weight=-1 must be finite and >= 0"),
        ({"per": "token"}, "per=token"),
        ({"combine": "min"}, "combine=min has no effect with one model"),
        ({"tokens_per_batch": 0}, "tokens_per_batch=0"),
        ({"replaces": 1}, "replaces=1 must be true or false"),
    ):
        with pytest.raises(ValueError, match=said.replace("[", r"\[")) as raised:
            Learned(**({"path": path} | options))
        assert "\n" not in str(raised.value)
    head = Path(model(tmp_path, seed=1)) / "hf" / WEIGHTS
    head.write_bytes(head.read_bytes()[:-9])
    with pytest.raises(ValueError, match="m1: score_head.safetensors is damaged .*; train the model again"):
        Learned(path=str(head.parent.parent))
    about = Path(path) / "hf" / ABOUT
    about.write_text(about.read_text().replace(hash_tokenizer(nano_tokenizer()), "0" * 64))
    with pytest.raises(ValueError, match="token ids of another tokenizer"):
        part(path)


def of_heads(folder: Path, kind: str = "score") -> str:
    """A model of two heads, ``b`` first."""
    hf = folder / f"heads{kind}" / "hf"
    hf.mkdir(parents=True)
    policy = Policy(network().network, nano_tokenizer(), "tiny")
    policy.save(hf)
    head = ScoreHead(policy.network.config.hidden_size, seed=5, heads=2)
    save_head(
        hf, head,
        RewardModelInfo(kind, hash_weights(policy.network, head), hash_tokenizer(nano_tokenizer()),
              heads={"b": (0.25, 2.0), "a": (-1.0, 0.5)}),
    )  # fmt: skip
    return str(hf.parent)


def test_heads_are_summed_by_their_weights(tmp_path: Path) -> None:
    """By hand, of chances too; each alone is what a weight of 1 beside 0 gives."""
    path, episodes = of_heads(tmp_path), played()
    weights = {"a": -0.5, "b": 2.0}
    alone = {
        name: torch.tensor(sum(part(path, heads=dict.fromkeys("ab", 0.0) | {name: 1.0}).values(episodes), []))
        for name in "ab"
    }
    found = torch.tensor(sum(part(path, heads=weights).values(episodes), []))
    torch.testing.assert_close(found, 2 * alone["b"] - 0.5 * alone["a"])
    [model_] = part(path, heads=weights)._scorer._models
    tokens, ends = list_rows(episodes[2])[0]
    is_scored = torch.zeros(1, len(tokens), dtype=torch.bool)
    is_scored[0, ends] = True
    with torch.no_grad():
        score_H = model_.head(
            model_.policy.network, tokens_BT=torch.tensor([tokens]), is_scored_BT=is_scored
        )[0, -1]
    assert float(found[-1]) == pytest.approx(
        2 * (float(score_H[0]) - 0.25) / 2 - 0.5 * (float(score_H[1]) + 1) / 0.5, abs=1e-5
    )
    chances = part(of_heads(tmp_path, "logit"), heads=weights)
    [*_, last] = sum(chances.values(episodes), [])
    assert last == pytest.approx(float(2 * score_H[0].sigmoid() - 0.5 * score_H[1].sigmoid()), abs=1e-5)
    assert chances._scorer.start == 0.75  # an average episode: half of the sum of the weights
    game = [[t.reward for t in e.turns] for e in episodes]
    ended = part(path, heads=weights, keep_penalties=False, weight=3.0).apply(game, episodes, iteration=0)
    assert ended[2] == [pytest.approx(3 * float(found[-1]), abs=1e-5)]


def test_each_head_needs_a_weight_and_each_weight_a_head(tmp_path: Path) -> None:
    several, one = of_heads(tmp_path), model(tmp_path)
    for path, heads, said in (
        (several, None, "has several heads (b, a), and none of them has a weight"),
        (several, {"a": 1}, "heads={a: 1} has no weight of b"),
        (several, {"a": 1, "b": 1, "c": 0}, "has no head c; its heads are b, a"),
        (several, {"a": "x", "b": 1}, "heads.a=x must be finite"),
        (several, {"a": math.inf, "b": 1}, "heads.a=inf must be finite"),
        (several, {"a": 0, "b": 0.0}, "gives every head the weight 0"),
        (several, {}, "heads={} must be a table"),
        (one, {"a": 1}, "has one head, without a name; set heads=null"),
        ([several, one], {"a": 1, "b": 1}, "has one head, without a name"),
    ):
        with pytest.raises(ValueError) as raised:
            Learned(path=path, heads=heads)
        assert said in str(raised.value) and "\n" not in str(raised.value)


def test_a_record_of_one_head_is_as_it_was_before_there_were_several(tmp_path: Path) -> None:
    about = Path(model(tmp_path)) / "hf" / ABOUT
    assert sorted(json.loads(about.read_text())) == [
        "algo", "fingerprint", "format", "kind", "mean", "std", "tokenizer", "version",
    ]  # fmt: skip
    path = of_heads(tmp_path)
    several = Path(path) / "hf" / ABOUT
    told = json.loads(several.read_text())
    for wrong in ([["a", 1.0]], [["a", "x", 1.0]], [["a", 0.0, 0.0]], 3, [["a", 0.0, 1.0]]):
        several.write_text(json.dumps(told | {"heads": wrong}))
        with pytest.raises(ValueError, match=r"cannot be (read|loaded) .*; train the model again"):
            part(path, heads={"a": 1})
