"""Forget: when the policy is moved between the halves of groups, what is played then, and that nothing of it stays."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from lit_agentrl.batch import StepBatch
from lit_agentrl.episode import Episode
from lit_agentrl.experimental.forget import Forget
from lit_agentrl.models.logprobs import score_tokens
from lit_agentrl.rl.policy import filters
from lit_agentrl.rollout.collector import Collector
from lit_agentrl.rollout.scheduler import Wave
from lit_agentrl.rollout.settings import RolloutSettings
from lit_agentrl.rollout.structures.hook import TemporaryStep
from lit_agentrl.rollout.workers.base import Played
from lit_agentrl.update.trial import sum_complements, unlearn
from tests.build.test_structure import built
from tests.conftest import tiny_network
from tests.rollout.test_collector import LOSE, WIN, Player


def test_the_loss_of_forgetting_by_hand() -> None:
    logp_BT = torch.tensor([[0.0, 0.5, 0.9], [0.0, 1.0, 0.3]]).log()
    is_action_BT = torch.tensor([[False, True, True], [False, True, False]])
    by_hand = -(math.log(0.5) + math.log(0.1)) / 2 - math.log(0.01)  # a certain token counts as 0.99
    assert float(sum_complements(logp_BT, is_action_BT, epsilon=0.01)) == pytest.approx(by_hand, rel=1e-5)


def test_the_step_lowers_what_was_sampled_and_leaves_no_bit() -> None:
    network = tiny_network()
    before = {name: weight.clone() for name, weight in network.state_dict().items()}
    tokens_BT = torch.tensor([[7, 8, 9, 10], [7, 11, 12, 13]])
    is_action_BT = torch.tensor([[False, True, True, False], [False, False, True, True]])
    rows = {"tokens_BT": tokens_BT, "is_action_BT": is_action_BT}

    def logp() -> torch.Tensor:
        with torch.no_grad():
            return score_tokens(network, **rows).logp_BT[is_action_BT]

    first = logp()
    options: dict[str, Any] = {"lr": 0.5, "epsilon": 1e-3, "temperature": 1.0, "forward_context": nullcontext}
    with pytest.raises(OSError), unlearn(network, rows, **options):  # also where what is played there raises
        assert bool((logp() < first).all())
        raise OSError
    assert all(torch.equal(weight, before[name]) for name, weight in network.state_dict().items())
    assert all(weight.grad is None for weight in network.parameters())
    loss = sum_complements(score_tokens(network, **rows).logp_BT, is_action_BT, epsilon=1e-3) / 2
    loss.backward()
    by_hand = [weight - 0.5 * weight.grad for weight in network.parameters() if weight.grad is not None]
    with unlearn(network, rows, **options):
        for weight, wanted in zip(
            (w for w in network.parameters() if w.grad is not None), by_hand, strict=True
        ):
            torch.testing.assert_close(weight, wanted)


def collect(
    structure: Forget, entropies: Callable[[int], float], iterations: int = 1, members: int = 5
) -> tuple[list[dict[str, float]], list[tuple[int, int, bool]]]:
    """Rows, and of each wave iteration, episodes, and whether it was played with moved weights."""
    player = Player(lambda spec, k: WIN if spec.member % 2 else LOSE)
    settings = RolloutSettings(prompts=1, members=members, max_context_tokens=300)
    waves: list[tuple[int, int, bool]] = []

    def play(wave: Wave, is_moved: bool = False) -> Played:
        played = player(wave)
        for episode in played.episodes:
            for turn in episode.turns:
                turn.reply_entropies = [entropies(wave.iteration)] * len(turn.reply_tokens)  # type: ignore[assignment]
        waves.append((wave.iteration, len(wave.specs), is_moved))
        return played

    @contextmanager
    def trial(episodes: Sequence[Episode], step: TemporaryStep) -> Iterator[Callable[[Wave], Played]]:
        assert len(episodes) == members - members // 2 and step == TemporaryStep(3e-3, 1e-3)
        yield lambda wave: play(wave, True)

    made = Collector(
        player.rules, settings, structure=structure, select_groups=filters.keep_all,
        further_prompts=lambda iteration, wave: StepBatch(iteration, [], [], [], wave=wave),
    )  # fmt: skip
    rows = []
    for iteration in range(iterations):
        batch = StepBatch(iteration, [7], [0], [iteration])
        rows.append(made.collect(batch, play, device=torch.device("cpu"), trial=trial))
        assert [episode.member for episode in batch.episodes] == list(range(members))
    return rows, waves


def test_the_policy_is_moved_where_the_entropy_of_three_iterations_is_low() -> None:
    structure = Forget()
    given = [0.9, 0.2, 0.2, 0.2]  # means of up to three: 0.9, 0.55, 0.433, 0.2
    rows, waves = collect(structure, given.__getitem__, iterations=4)
    assert [moved for _, _, moved in waves[1::2]] == [False, False, False, True]
    assert [size for _, size, _ in waves] == [3, 2] * 4
    assert [row["structure/forgotten_share"] for row in rows] == [0, 0, 0, 1]
    assert [row["structure/first_half_entropy"] for row in rows] == pytest.approx(given)
    again = Forget()
    again.load_state_dict(structure.state_dict())
    assert again.state_dict() == structure.state_dict() == {"entropies": pytest.approx([0.2] * 3)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("algo=eepo", "rollout.overlap=true"),
            r"Forget needs .* moves the weights between two waves; set rollout\.overlap=false",
        ),
        (
            ("algo=reinforce", "algo/structure=forget"),
            r"Forget needs .* compares the current log-probs .* not given by algo=reinforce",
        ),
        (("algo=eepo", "algo.structure.threshold=0"), "threshold=0 must be > 0"),
        (("algo=eepo", "algo.structure.epsilon=1"), r"epsilon=1 must be in \(0, 1\)"),
    ],
)
def test_what_does_not_fit(options: tuple[str, ...], message: str) -> None:
    with pytest.raises(Exception, match=message):
        built(*options)
