"""Estimates on constructed policies whose information is known."""

from __future__ import annotations

import math

import pytest
import torch

from lit_agentrl.rl.diagnostics import information, merged, per_token_code, per_token_paper

P = 8
OWN = torch.arange(P).repeat(4)


def test_a_policy_that_ignores_the_observation_has_none() -> None:
    found = information(logp_NP=torch.randn(len(OWN), 1).expand(-1, P), own_N=OWN)
    assert (
        found.mutual == pytest.approx(0, abs=1e-6) and found.retrieval == pytest.approx(1 / P) == found.chance
    )


def test_a_policy_that_copies_the_observation_has_log_p() -> None:
    """Each thought is certain after its own observation, and as good as impossible after another one."""
    found = information(logp_NP=torch.where(OWN[:, None] == torch.arange(P), 0.0, -1e4), own_N=OWN)
    assert found.mutual == pytest.approx(math.log(P)) and found.retrieval == 1
    assert found.conditional_entropy == 0 and found.entropy == pytest.approx(math.log(P))
    assert found.z_score == pytest.approx(math.log(P) / 1e-3)


def test_a_noisy_copy_has_what_its_channel_carries() -> None:
    """A thought names its observation with probability q, else another: log P − h(q) − (1 − q) log(P − 1)."""
    share, size = 0.7, 10
    table = torch.full((size, size), (1 - share) / (size - 1)).fill_diagonal_(share)  # p(z | x), rows are z
    counts = (table * 90 + 0.5).int()  # 63 of 90 thoughts of an observation name it, 3 each of the others
    pairs = [(z, x) for z in range(size) for x in range(size) for _ in range(int(counts[z, x]))]
    own = torch.tensor([x for _, x in pairs])
    found = information(logp_NP=table.log()[[z for z, _ in pairs]], own_N=own)
    noise = -share * math.log(share) - (1 - share) * math.log((1 - share) / (size - 1))
    assert found.mutual == pytest.approx(math.log(size) - noise, abs=1e-5)
    assert found.conditional_entropy == pytest.approx(noise, abs=1e-5) and found.retrieval == pytest.approx(
        share
    )


def test_paper_and_code_differ_as_measured() -> None:
    """64 observations, thoughts of 80 tokens, 0.1 nats a token between the own one and the others: 0.05 against 0.1."""
    own = torch.arange(64)
    logp = torch.where(own[:, None] == own, -80.0, -88.0).double()
    lengths = torch.full((64,), 80.0)
    paper = per_token_paper(logp_NP=logp, own_N=own, tokens_N=lengths)
    code = per_token_code(logp_NP=logp, own_N=own, tokens_N=lengths)
    assert paper == pytest.approx((math.log(64) - math.log(1 + 63 * math.exp(-8))) / 80)
    assert code.mutual == pytest.approx(math.log(64) - math.log(1 + 63 * math.exp(-0.1)))


def test_both_forms_a_token_know_the_same_extremes() -> None:
    """Thoughts of one token, of which forms are one: 0 where what is seen is ignored, log P where it is copied."""
    lengths = torch.ones(len(OWN))
    copies = torch.where(OWN[:, None] == torch.arange(P), 0.0, -1e4)
    for logp, mutual in ((torch.randn(len(OWN), 1).expand(-1, P), 0.0), (copies, math.log(P))):
        given = {"logp_NP": logp.double(), "own_N": OWN, "tokens_N": lengths}
        assert per_token_paper(**given) == pytest.approx(mutual, abs=1e-6)
        assert per_token_code(**given).mutual == pytest.approx(mutual, abs=1e-6)


def test_equal_observations_are_one() -> None:
    logp, own = merged(
        logp_NP=torch.tensor([[1.0, 2.0, 1.0], [3.0, 4.0, 3.0]]),
        own_N=torch.tensor([2, 1]),
        same_P=torch.tensor([5, 7, 5]),
    )
    assert logp.tolist() == [[1, 2], [3, 4]] and own.tolist() == [0, 1]


def test_bad_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="must be"):
        information(logp_NP=torch.zeros(2, 3), own_N=torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="one of 3 observations"):
        information(logp_NP=torch.zeros(2, 3), own_N=torch.tensor([0, 3]))
