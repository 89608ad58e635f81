"""A model of likeness as reward: its values, what has no reference, what it is watched by, and what does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lit_agentrl.data.referred import put_behind
from lit_agentrl.episode import Episode
from lit_agentrl.rewards.learned.polar import BesideReference
from lit_agentrl.rewards.learned.scoring import list_rows
from lit_agentrl.rewards.pipeline import RewardPipeline
from lit_agentrl.text.token_bytes import hash_tokenizer
from tests.conftest import nano_tokenizer
from tests.rewards.conftest import context, episode, turn
from tests.rewards.test_model import by_hand, model, part, played


class OneReference:
    """Of the episodes of members 0 and 1."""

    path, fingerprint = "folder", "f" * 64
    tokenizer = hash_tokenizer(nano_tokenizer())

    def put_before(self, found: Episode) -> Episode | None:
        return put_behind(episode([turn(4, sampled=[5, 6, 5, 6])]), found) if found.member < 2 else None


def made(path: str, references: Any = None, **options: Any) -> BesideReference:
    found = BesideReference(path=path, references=references or OneReference(), **options)
    found.name = "polar"
    found.setup(context())
    return found


def test_values_are_those_of_the_episode_behind_its_reference(tmp_path: Path) -> None:
    path, plain, episodes = model(tmp_path, kind="referred"), part(model(tmp_path)), played()
    joined = [OneReference().put_before(each) for each in episodes]
    hand = [by_hand(plain, each)[-1] for each in joined if each is not None]  # the same weights
    assert hand != pytest.approx([by_hand(plain, each)[-1] for each in episodes[:2]], abs=1e-3)
    game = [[t.reward for t in e.turns] for e in episodes]
    found = made(path, weight=2.0, max_missing_share=0.5)
    told = found.apply(game, episodes, iteration=0)
    assert told[0] == pytest.approx([0.0, 2 * hand[0] - 0.1], abs=1e-5)  # the penalty stays
    assert told[1] == pytest.approx([0.0, 2 * hand[1]], abs=1e-5) and told[2] == [0.0]
    assert list(found.left_out(episodes)) == [episodes[2]]
    beside = made(path, replaces=False, max_missing_share=0.5).apply(game, episodes, iteration=0)
    assert beside[0] == pytest.approx([1.0, 2.0 + hand[0]], abs=1e-5)
    with pytest.raises(ValueError, match=r"has no reference for 1 of 3 episodes \(max_missing_share=0\)"):
        made(path).apply(game, episodes, iteration=0)


def test_what_is_longer_than_the_model_can_read_is_one_line(tmp_path: Path) -> None:
    found, episodes = made(model(tmp_path, kind="referred"), max_missing_share=0.5), played()
    [scored] = found._scorer._models
    fits = max(
        len(row)
        for each in (OneReference().put_before(e) for e in episodes)
        if each
        for row, _ in list_rows(each)
    )
    scored.policy.network.config.max_position_embeddings = fits
    found.apply([[0.0] * len(e.turns) for e in episodes], episodes, iteration=0)
    scored.policy.network.config.max_position_embeddings = fits - 1
    again = made(found.path, max_missing_share=0.5)
    again._scorer = found._scorer
    with pytest.raises(
        ValueError, match=f"has {fits - 1} positions, and is to read {fits} tokens; lower rollout"
    ):
        again.apply([[0.0] * len(e.turns) for e in episodes], episodes, iteration=0)


def test_it_is_watched_and_knows_model_and_references_again(tmp_path: Path) -> None:
    path, episodes = model(tmp_path, kind="referred"), played()
    pipeline = RewardPipeline({"polar": made(path, max_missing_share=0.5)})
    dropped = pipeline.score(episodes, iteration=0)
    assert [each.member for each in dropped] == [2]
    row = pipeline.learn(episodes[:2], iteration=0)
    assert {"reward/polar_score", "reward/polar_gap", "reward/polar_missing"} <= row.keys()
    state = json.loads(json.dumps(pipeline.parts["polar"].state_dict()))
    made(path).load_state_dict(state)
    other = OneReference()
    other.fingerprint = "0" * 64
    with pytest.raises(ValueError, match=r"references\.path=folder holds other episodes .*; put them back"):
        made(path, other).load_state_dict(state)
    with pytest.raises(ValueError, match=r"reward\.polar\.path=.* put the model back"):
        made(model(tmp_path, seed=1, kind="referred")).load_state_dict(state)


def test_what_does_not_fit_is_one_line(tmp_path: Path) -> None:
    path = model(tmp_path, kind="referred")
    for options, said in (
        (
            {"path": model(tmp_path)},
            "which is used as reward=model; set that, or name a model for reward=polar",
        ),
        ({"path": ""}, "path= must be the folder"),
        ({"weight": 0.0}, "weight=0 would set all rewards to 0"),
        ({"max_missing_share": 1.0}, "max_missing_share=1.0 must be in"),
        ({"keep_penalties": 1}, "keep_penalties=1 must be true or false"),
    ):
        with pytest.raises(ValueError, match=said):
            BesideReference(**({"path": path, "references": OneReference()} | options))
    foreign = OneReference()
    foreign.tokenizer = "0" * 64
    with pytest.raises(
        ValueError, match=r"^reward\.polar\.references\.path=folder holds token ids of another"
    ):
        made(path, foreign)
    with pytest.raises(
        ValueError, match="which is used as reward=polar; set that, or name a model for reward=model"
    ):
        part(path)
