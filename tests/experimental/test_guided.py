"""Values choose among replies in evaluations: by hand, against the head of the critic, not in training."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from lit_agentrl.batch import StepBatch
from lit_agentrl.engines.base import SamplingParams, TurnRequest
from lit_agentrl.engines.scripted import ScriptedEngine
from lit_agentrl.episode import Episode, FinishReason
from lit_agentrl.experimental.guided.engine import GUIDED, GuidedEngine
from lit_agentrl.experimental.guided.structure import Guided, GuidedHook, compute_reply_values
from lit_agentrl.experimental.mcts import Mcts
from lit_agentrl.rollout.evaluation import Evaluation
from lit_agentrl.rollout.pack import pack
from lit_agentrl.rollout.structures.hook import Training
from lit_agentrl.update.scoring import list_turn_values
from tests.conftest import nano_tokenizer, tiny_network
from tests.rollout.test_collector import LOSE, WIN, Player, prompts

PARAMS = SamplingParams(temperature=0.0, max_reply_tokens=8, max_context_tokens=100)


def encode(text: str) -> list[int]:
    ids: list[int] = nano_tokenizer()(text, add_special_tokens=False)["input_ids"]
    return ids


class Spy(ScriptedEngine):
    """Remembers what is asked of it; reply k of all is the letter k of ``says``."""

    def __init__(self, says: str, capacity: int = 100) -> None:
        self.asked: list[TurnRequest] = []
        self.closed: list[int] = []
        self.most = 0
        super().__init__(
            lambda e, k: self._says[e], encode=lambda text: list(text.encode()), capacity=capacity
        )
        self._letters, self._says = iter(says), dict[int, str]()

    def submit(self, request: TurnRequest) -> None:
        self.asked.append(request)
        self._says[request.episode] = next(self._letters)
        super().submit(request)
        self.most = max(self.most, self.num_pending)

    def close(self, episode: int) -> None:
        self.closed.append(episode)


def request(episode: int, prefix: Sequence[int], player: str = GUIDED, key: int = 5) -> TurnRequest:
    return TurnRequest(episode, prefix, key, PARAMS, player=player)


@pytest.mark.parametrize("capacity", [1, 2, 100])
def test_the_best_of_three_and_the_dialogue_goes_on_from_it(capacity: int) -> None:
    inner, seen = Spy("acbzyxq", capacity), list[tuple[list[int], list[list[int]]]]()

    def choose(history: Sequence[int], replies: Sequence[Sequence[int]]) -> int:
        seen.append((list(history), [list(reply) for reply in replies]))
        return max(range(len(replies)), key=lambda k: replies[k][0])

    engine = GuidedEngine(inner, choose, samples=3, temperature=0.7)
    engine.submit(request(0, [1, 2]))
    assert engine.num_pending == 1
    [result] = engine.poll()
    assert (result.episode, result.tokens) == (0, [ord("c")]) and engine.num_pending == 0
    assert result.num_prefilled == 6  # each reply read the prompt of two tokens
    engine.submit(request(0, [3]))
    [result] = engine.poll()
    assert result.tokens == [ord("z")]
    first, second = [1, 2], [1, 2, ord("c"), 3]
    assert seen == [(first, [[ord(x)] for x in "acb"]), (second, [[ord(x)] for x in "zyx"])]
    assert [each.prefix for each in inner.asked] == [first] * 3 + [second] * 3
    assert {each.params.temperature for each in inner.asked} == {0.7} and inner.most <= capacity
    assert len({each.key for each in inner.asked[:3]}) == 3 and inner.asked[0].key == 5
    assert len({each.episode for each in inner.asked}) == 6
    assert inner.closed == [each.episode for each in inner.asked]
    engine.close(0)
    engine.submit(request(0, [9], player=""))  # no player is named: handed on as it is
    assert inner.asked[-1] == request(0, [9], player="")


def test_other_requests_are_handed_on_and_failed_replies_are_no_choice() -> None:
    inner = Spy("pab")
    engine = GuidedEngine(inner, lambda history, replies: len(replies) - 1, samples=2, temperature=1.0)
    engine.submit(request(1, [4], player=""))
    engine.submit(request(0, [1]))
    assert engine.num_pending == 2
    found = {result.episode: result.tokens for result in engine.poll()}
    assert found == {1: [ord("p")], 0: [ord("b")]} and inner.asked[0] == request(1, [4], player="")
    gone = ScriptedEngine(lambda e, k: OSError("gone"), encode=encode)
    broken = GuidedEngine(gone, lambda history, replies: 1 // 0, samples=2, temperature=1.0)
    broken.submit(request(3, [1]))
    [result] = broken.poll()
    assert (result.episode, result.finish) == (3, FinishReason.ERROR) and "gone" in result.error


def test_values_are_those_of_the_head_before_the_last_token() -> None:
    network, history, replies = tiny_network(seed=0), [7, 8, 9], [[3, 4, 5], [3, 6], [4]]
    weight_D = torch.randn(network.config.hidden_size, generator=torch.Generator().manual_seed(1))

    def compute_values(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            hidden_BTD = network.model(tensors["tokens_BT"]).last_hidden_state
        return torch.nn.functional.pad(hidden_BTD @ weight_D, (1, 0))[:, :-1]

    def values(episode: Episode) -> list[float]:
        return list_turn_values(compute_values, pack([episode]).to_dict())

    found = compute_reply_values(values, history, replies)
    for value, reply in zip(found, replies, strict=True):
        with torch.no_grad():
            read = network.model(torch.tensor([[*history, *reply[:-1]]])).last_hidden_state[0, -1]
        assert value == pytest.approx(float(read @ weight_D), abs=1e-5)
    assert len({round(value, 4) for value in found}) == 3


def test_evaluations_take_the_valued_reply_and_training_does_not() -> None:
    good = encode("Up")[0]
    structure = Guided(samples=3, depth=0)
    structure.setup(Training(lambda episode: [float(good in episode.turns[0].prefix_tokens[-12:])]))
    numbers = iter(range(1000))
    player = Player(lambda spec, k: LOSE)
    engine = ScriptedEngine(lambda e, k: WIN if next(numbers) % 3 == 1 else LOSE, encode=encode)
    make = structure.wrap_engine(lambda **given: engine)
    object.__setattr__(player.rules, "engine", make)
    player.engine = make()  # type: ignore[assignment]
    batch = StepBatch(0, seed_P=[1, 2], task_P=[0, 0], group_P=[0, 1])
    evaluation = Evaluation("val", PARAMS, plan=structure.plan_evaluation)
    object.__setattr__(evaluation, "params", SamplingParams(max_context_tokens=300))
    evaluation.collect(batch, lambda wave, version: player(wave), 0)
    assert [episode.success for episode in batch.episodes] == [True, True]
    assert next(numbers) == 2 * 3 * len(batch.episodes[0].turns)
    assert {turn.player for episode in batch.episodes for turn in episode.turns} == {GUIDED}
    assert [spec.extra for spec in structure.plan_evaluation(structure.plan(prompts(0, 0), 1))] == [
        GuidedHook()
    ] * 2
    assert structure.plan(prompts(0, 0), 2) == Mcts(depth=0).plan(prompts(0, 0), 2)


def test_wrong_options_are_named() -> None:
    for options, message in (
        ({"samples": 0}, "samples=0 must be"),
        ({"temperature": 0.0}, "temperature=0.0 must be a finite number > 0"),
        ({"width": 1}, "width=1 must be"),
    ):
        with pytest.raises(ValueError, match=message):
            Guided(**options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_without_a_critic_it_is_refused() -> None:
    from tests.build.test_structure import built

    with pytest.raises(
        ValueError, match="needs the values of a critic.*choose replies by the critic's values"
    ):
        built("algo=grpo", "algo/structure=guided")
