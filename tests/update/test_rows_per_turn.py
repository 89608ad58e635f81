"""One trajectory in one row and the same trajectory cut into rows of one turn: equal numbers, equal training."""

from __future__ import annotations

import copy
from functools import lru_cache, partial
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate

from lit_agentrl.paths import list_options
from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.policy import aggregation, clipping, kl, ratios, row_selection
from lit_agentrl.rl.policy.penalties import shape_rewards
from lit_agentrl.rollout.pack import pack
from tests.conftest import load_option, thinned
from tests.update.conftest import algorithm, recorded, step


def load(file: Path):
    cfg = load_option(f"algo/{file.parent.name}", file.stem)
    if "max_tokens" in cfg:  # refers to the rest of the config
        cfg.max_tokens = 7
    if "threshold" in cfg:  # drops some
        cfg.threshold = 2.3
    return instantiate(cfg)


@lru_cache
def cut():
    """The recorded episodes with their whole history before each turn, in a row of its own."""
    episodes = copy.deepcopy(recorded()[0])
    for episode in episodes:
        history, segments = [], []
        for turn in episode.turns:
            history, segments = (
                history + turn.prefix_tokens.tolist(),
                segments + turn.prefix_segments.tolist(),
            )
            turn.prefix_tokens, turn.prefix_segments, turn.starts_row = list(history), list(segments), True
            history, segments = history + turn.reply_tokens.tolist(), segments + [6] * len(turn.reply_tokens)
    return pack(episodes)


def tensors_of(batch):
    """What the estimators may ask for; sampled tokens are in the same order however rows are cut."""
    tensors = {name: getattr(batch, name) for name in batch.__dataclass_fields__}
    draw = torch.Generator().manual_seed(0)
    for name in ("value_BT", "ref_logp_BT", "logp_BT", "advantage_BT", "q_BT", "implicit_q_BT", "rank_BT"):
        values = torch.randn(int(batch.is_action_BT.sum()), generator=draw)
        tensors[name] = torch.full(batch.tokens_BT.shape, 9.0).masked_scatter(batch.is_action_BT, values)
    tensors["old_logp_BT"] = batch.sampler_logp_BT
    tensors["success_B"] = batch.member_B % 2 == 0
    tensors["is_truncated_B"] = batch.member_B == 3
    tensors["baseline_B"] = batch.member_B.float()
    tensors["ref_quantile_B"] = batch.member_B / 4
    tensors["ref_count_B"] = torch.full_like(tensors["ref_quantile_B"], 4.0)
    tensors["is_opponent_B"] = batch.member_B >= 2
    # one trajectory cannot be scored
    first = batch.trajectory_B == batch.trajectory_B[0]
    tensors["return_B"] = torch.where(first, torch.nan, batch.return_B)
    return tensors


def pair(fn):
    """``fn`` of the batch and of its cut version."""
    return fn(tensors_of(recorded()[1])), fn(tensors_of(cut()))


def at_actions(fn):
    """Values of (B, T) tensors at sampled tokens, for both batches; elsewhere they must be 0."""
    found = []
    for batch in (recorded()[1], cut()):
        values_BT = fn(tensors_of(batch))
        assert not values_BT[~batch.is_action_BT].any()
        found.append(values_BT[batch.is_action_BT])
    return found


def test_the_cut_batch_holds_the_same_in_more_rows():
    whole, rows = recorded()[1], cut()
    assert rows.num_rows == sum(len(e.turns) for e in recorded()[0]) > whole.num_rows
    for name in ("tokens_BT", "turn_BT", "segment_BT", "sampler_logp_BT", "reward_BT", "is_turn_end_BT"):
        assert torch.equal(getattr(whole, name)[whole.is_action_BT], getattr(rows, name)[rows.is_action_BT])
    assert rows.node_BT.unique().numel() == rows.node_BT.numel()
    assert rows.state_key_BK.shape == (rows.num_rows, 1)
    assert torch.equal(rows.first_turn_B, rows.turn_BT.amax(1))
    assert torch.equal(
        rows.turn_BT[rows.is_real_BT], rows.first_turn_B[:, None].expand_as(rows.turn_BT)[rows.is_real_BT]
    )
    assert rows.trajectory_B.unique().equal(whole.trajectory_B.unique())
    by_row = torch.zeros(12).index_add(
        0, rows.trajectory_B.unique(return_inverse=True)[1], rows.reward_BT.sum(1)
    )
    torch.testing.assert_close(by_row, whole.return_B)


@pytest.mark.parametrize("file", thinned(list_options("algo/advantage")), ids=lambda file: file.stem)
def test_advantages(file: Path):
    estimator = load(file)
    results = pair(lambda tensors: bind(estimator, tensors))
    names = ["advantage_BT"] if results[0].return_BT is None else ["advantage_BT", "return_BT"]
    for name in names:
        before, after = at_actions(lambda tensors, name=name: getattr(bind(estimator, tensors), name))
        assert before.abs().max() > 0 or file.stem == "none"
        torch.testing.assert_close(after, before, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("file", list_options("algo/aggregate"), ids=lambda file: file.stem)
def test_weights(file: Path):
    rule = load(file)
    before, after = at_actions(lambda tensors: bind(rule, tensors).weight_BT)
    torch.testing.assert_close(after, before)
    whole, rows = pair(lambda tensors: bind(rule, tensors).denominator)
    assert whole == rows and (whole is None or whole > 0)


@pytest.mark.parametrize("file", list_options("algo/rows"), ids=lambda file: file.stem)
def test_row_selection_keeps_the_same_trajectories(file: Path):
    rule = load(file)
    kept = [
        set(tensors["trajectory_B"][bind(rule, tensors)].tolist())
        for tensors in (tensors_of(recorded()[1]), tensors_of(cut()))
    ]
    assert kept[0] == kept[1] and kept[0]
    assert (len(kept[0]) < 12) == (file.stem != "none")


def test_kl_in_reward():
    mix = algorithm(kl=kl.KLInReward(estimator=kl.k1, coef=0.1))
    before, after = at_actions(lambda tensors: shape_rewards(mix.kl, tensors=tensors)["reward_BT"])
    torch.testing.assert_close(after, before)
    whole, rows = pair(
        lambda t: dict(
            zip(
                t["trajectory_B"].tolist(), shape_rewards(mix.kl, tensors=t)["return_B"].tolist(), strict=True
            )
        )
    )
    assert whole == pytest.approx(rows, nan_ok=True, abs=1e-5)


MIXES = {
    "default": {},
    "turns": {"ratio": ratios.turn, "aggregate": aggregation.seq_mean_turn_mean},
    "clipped": {"clip": partial(clipping.symmetric, epsilon=0.01), "aggregate": aggregation.token_mean},
    # one trajectory of each group is left for four minibatches: the fourth is filled
    "few_rows": {"rows": row_selection.CPPO(prune=0.9, refill=False)},
}


@pytest.mark.slow
@pytest.mark.parametrize("mix", MIXES)
def test_training_on_either_changes_the_weights_alike(mix):
    """Two epochs of four minibatches: the parts hold the same trajectories, in whatever rows."""
    update = {"epochs": 2, "minibatches": 4, "tokens_per_microbatch": 900}
    module, whole = step(alg=algorithm(**MIXES[mix]), **update)
    other, rows = step(cut(), alg=algorithm(**MIXES[mix]), **update)
    assert module.version == other.version == 8
    for name, change in whole.items():
        torch.testing.assert_close(rows[name], change, atol=1e-5, rtol=1e-3)
    assert max(float(change.abs().max()) for change in whole.values()) > 1e-3
