"""Context distillation: played with a text, trained on the very rows of a play without it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lit_agentrl.episode import Episode
from lit_agentrl.experimental.distilled.distilled import Distilled
from lit_agentrl.models.logprobs import score_tokens
from lit_agentrl.rollout.pack import pack
from lit_agentrl.rollout.structures.refill import Refill
from tests.conftest import tiny_network
from tests.rollout.test_collector import LOSE, WIN, collect

TEXT = "Up is right"
script = lambda spec, k: WIN if spec.member else LOSE  # noqa: E731


def test_the_rows_are_those_of_a_play_without_the_text_and_log_probs_are_unknown() -> None:
    helped, row, waves = collect(Distilled(text=TEXT), script=script, members=2)
    plain, plain_row, _ = collect(Refill(), script=script, members=2)
    mine, theirs = helped.trajectories, plain.trajectories
    assert mine is not None and theirs is not None
    different = {"sampler_logp_BT", "policy_version_BT"}
    for name, column in mine.to_dict().items():
        if name not in different:
            torch.testing.assert_close(column, theirs.to_dict()[name], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(mine.sampler_logp_BT.isnan(), mine.is_action_BT) and bool(mine.is_action_BT.any())
    assert not theirs.sampler_logp_BT.isnan().any()
    for episode, bare in zip(helped.episodes, plain.episodes, strict=True):
        assert TEXT in episode.opening[0]["content"] and TEXT not in bare.opening[0]["content"]
        shown, trained = episode.turns[0].prefix_tokens, episode.turns[0].trained_tokens
        assert len(trained) < len(shown) and trained.tolist() == bare.turns[0].prefix_tokens.tolist()
        assert Episode.from_plain(episode.to_plain()).turns == episode.turns
    assert row["rollout/success"] == plain_row["rollout/success"] == 0.5
    assert all(spec.extra == waves[0].specs[0].extra for spec in waves[0].specs)


def test_evaluations_have_no_text() -> None:
    _, _, waves = collect(Refill(), script=script)
    specs = list(waves[0].specs)
    assert Distilled(text=TEXT).plan_evaluation(specs) == specs


def test_the_gradient_is_that_of_a_row_built_by_hand() -> None:
    helped, _, _ = collect(Distilled(text=TEXT), script=script, members=2)
    episode = helped.episodes[0]
    rows = pack([episode])
    by_hand = [
        token
        for k, turn in enumerate(episode.turns)
        for token in [*(turn.prefix_tokens if k else turn.trained_tokens), *turn.reply_tokens]
    ]
    is_reply = [
        flag
        for k, turn in enumerate(episode.turns)
        for flag in [False] * len(turn.prefix_tokens if k else turn.trained_tokens)
        + [True] * len(turn.reply_tokens)
    ]
    gradients = []
    for tokens, mask in (
        (rows.tokens_BT, rows.is_action_BT),
        (torch.tensor([by_hand]), torch.tensor([is_reply])),
    ):
        network = tiny_network(seed=0)
        vocabulary = network.config.vocab_size
        logps = score_tokens(network, tokens_BT=tokens.long() % vocabulary, is_action_BT=mask).logp_BT
        logps[mask].sum().backward()
        gradients.append(network.lm_head.weight.grad.clone())
    assert torch.equal(*gradients) and gradients[0].abs().sum() > 0
    whole = replace(episode, turns=[replace(t, trained_tokens=np.empty(0)) for t in episode.turns])
    assert pack([whole]).tokens_BT.shape[1] > rows.tokens_BT.shape[1]
    assert int(pack([whole]).is_action_BT.sum()) == int(rows.is_action_BT.sum())


def test_a_file_is_read_once_and_wrong_options_are_named(tmp_path: Path) -> None:
    file = tmp_path / "lessons.txt"
    file.write_text("G0: Up\n")
    assert Distilled(path=str(file))._hook.text == "G0: Up"
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "text=None and path=None: give exactly one"),
        ({"text": "a", "path": "b"}, "give exactly one"),
        ({"text": " "}, "text=.* must be a text that is not blank"),
        ({"path": str(tmp_path / "none")}, "cannot be read"),
    ]
    for options, message in wrong:
        with pytest.raises(ValueError, match=message):
            Distilled(**options)
