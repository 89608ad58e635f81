"""Information gain: worked numbers, each token by hand after the words of the game, and what knows no answer."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_agentrl.batch import StepBatch
from lit_agentrl.engines.scripted import ScriptedEngine
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.tasks.dataset import Dataset
from lit_agentrl.episode import Episode
from lit_agentrl.experimental.answers.information_gain import InformationGain, compute_gains
from lit_agentrl.rewards.pipeline import RewardPipeline
from lit_agentrl.rl.policy.filters import keep_all
from lit_agentrl.rollout.collector import Collector
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import Scheduler, Wave
from lit_agentrl.rollout.settings import RolloutSettings
from lit_agentrl.rollout.structures.independent import Independent
from lit_agentrl.rollout.workers.base import Played
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.condensers import LastActions
from lit_agentrl.text.context import FULL, Context, Single
from lit_agentrl.text.prompts import Prompt
from tests.conftest import nano_tokenizer, tiny_network
from tests.rewards.conftest import context as context_without_policy
from tests.rollout.conftest import Count

TOKENIZER = nano_tokenizer()


def test_worked_numbers_and_the_sum() -> None:
    assert compute_gains([-3.0, -1.0, -1.5]) == [2.0, -0.5, 0.0]
    assert math.fsum(compute_gains([-3.0, -1.0, -1.5])) == -1.5 - -3.0
    assert compute_gains([-3.0, math.nan, -1.5]) == [0.0, 0.0, 0.0]
    assert (compute_gains([-2.0]), compute_gains([])) == ([0.0], [])


def encode(text: str) -> list[int]:
    ids: list[int] = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    return ids


def collect(
    folder: Path, context: Context = FULL, *, think: bool = False, **options: Any
) -> tuple[InformationGain, list[Episode], dict[str, float], Any]:
    """Two groups of two episodes: three tries, or a success at the second."""
    path = folder / "sums.jsonl"
    rows = [{"question": f"{a} + {b} ?", "answer": a + b} for a in range(9) for b in range(10 - a)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    task = Task(
        name="sums", game=partial(Dataset, path=str(path), tries=3), max_turns=3, max_actions=3,
        max_actions_per_turn=1,
    )  # fmt: skip
    waves: list[Wave] = []

    def write(episode: int, turn: int) -> str:
        spec = waves[-1].specs[episode]
        with_answer = Dataset(path=str(path), tries=3)
        with_answer.reset(seed=spec.instance_seed)
        [answer] = with_answer.optimal_actions(horizon=1) or []
        return f"<answer>{answer if spec.member and turn else 'no'}</answer>"

    engine = ScriptedEngine(write, encode=encode, capacity=2)
    rules = Rules(
        tasks=[task], prompt=Prompt("compact", think=think), chat=ChatRenderer(TOKENIZER), context=context,
        engine=lambda **_: engine,
    )  # fmt: skip
    part = InformationGain(**options)
    game = task.make("train")
    part.check_game(task, game, game.reset(seed=0)[0])
    settings = RolloutSettings(prompts=2, members=2, max_context_tokens=300)
    collector = Collector(
        rules, settings, structure=Independent(), select_groups=keep_all, further_prompts=lambda i, w: None,  # type: ignore[arg-type,return-value]
        rewards=RewardPipeline({"information_gain": part}),
    )  # fmt: skip
    network = tiny_network(seed=0)
    collector.setup(torch.device("cpu"), network)

    def play(wave: Wave) -> Played:
        waves.append(wave)
        engine.load(None, 0)
        return Played(Scheduler(rules, engine).play(wave))

    batch = StepBatch(0, seed_P=[3, 4], task_P=[0, 0], group_P=[0, 1])
    row = collector.collect(batch, play, device=torch.device("cpu"))
    return part, batch.episodes, row, network


def by_hand(network: Any, episode: Episode, *, is_single: bool, before: str = "") -> list[float]:
    """The answer's log-probability before each reply: one token at a time, from the whole softmax."""
    first, _, second, _ = episode.turns[0].observation.split()
    answer, history, found = encode(f"{before}<answer>{int(first) + int(second)}</answer>"), [], []
    for turn in episode.turns:
        history = [] if is_single else history
        history = history + turn.prefix_tokens.tolist()
        total = 0.0
        for k, token in enumerate(answer):
            with torch.no_grad():
                logits_V = network(torch.tensor([history + answer[:k]])).logits[0, -1].double()
            total += float(logits_V[token] - logits_V.exp().sum().log())
        found.append(total)
        history = history + turn.reply_tokens.tolist()
    return found


@pytest.mark.parametrize(("is_single", "think"), [(False, False), (True, False), (False, True)])
def test_gains_are_those_of_the_policy_after_the_words_of_the_game(
    tmp_path: Path, is_single: bool, think: bool
) -> None:
    context = Single(LastActions()) if is_single else FULL
    _, episodes, row, network = collect(tmp_path, context, think=think, weight=0.5, tokens_per_batch=120)
    before = "<think></think>" if think else ""
    logps = [by_hand(network, episode, is_single=is_single, before=before) for episode in episodes]
    assert [len(values) for values in logps] == [3, 2, 3, 2]
    gains = []
    for episode, values in zip(episodes, logps, strict=True):
        expected = [b - a for a, b in zip(values, values[1:], strict=False)] + [0.0]
        given = [turn.shaping["information_gain"] for turn in episode.turns]
        assert given == pytest.approx([0.5 * gain for gain in expected], abs=1e-4)
        total = math.fsum(given)
        assert total == pytest.approx(0.5 * (values[-1] - values[0]), abs=1e-4)
        assert episode.training_return == pytest.approx(episode.total_reward + total)
        gains += expected[:-1]
    assert max(map(abs, gains)) > 0.01
    assert row["reward/information_gain_gain"] == pytest.approx(sum(gains) / 6, abs=1e-4)
    assert row["reward/information_gain_first"] == pytest.approx(sum(v[0] for v in logps) / 4, abs=1e-4)
    assert row["reward/information_gain_last"] == pytest.approx(sum(v[-1] for v in logps) / 4, abs=1e-4)
    assert row["reward/information_gain_unread_share"] == 0


def test_without_a_weight_rewards_stay_and_per_token_divides(tmp_path: Path) -> None:
    part, episodes, row, network = collect(tmp_path, per_token=True)
    assert [e.training_return for e in episodes] == [e.total_reward for e in episodes] == [0, 1, 0, 1]
    first = [by_hand(network, episode, is_single=False)[0] for episode in episodes]
    sizes = [len(part._find_answer("sums", episode.instance_seed)) for episode in episodes]
    mean = sum(total / size for total, size in zip(first, sizes, strict=True)) / 4
    assert row["reward/information_gain_first"] == pytest.approx(mean, abs=1e-5)
    assert not any(weight.grad is not None for weight in network.parameters())


def test_what_does_not_fit_has_no_gain(tmp_path: Path) -> None:
    part, episodes, _, network = collect(tmp_path)
    whole = sum(len(turn.prefix_tokens) + len(turn.reply_tokens) for turn in episodes[0].turns)
    network.config.max_position_embeddings = whole - 5  # too few for the answer after the third question
    part.__post_init__()
    [changed] = part.apply([[0.0] * 3], episodes[:1], iteration=0)
    assert changed == [0.0] * 3  # of weight 0
    curves = part.curves(episodes[:1], iteration=0)
    assert curves["unread_share"] == pytest.approx(1 / 3) and "last" not in curves
    assert math.isnan(part._logps.get(episodes[:1])[0][2])


def test_what_knows_no_answer_is_refused_in_one_line() -> None:
    part = InformationGain()
    part.name = "information_gain"
    task = Task(name="count", game=Count, max_turns=4, max_actions=8, max_actions_per_turn=3)
    with pytest.raises(ValueError, match="game count has no single answer in words; .* env=dataset"):
        part.check_game(task, task.make("train"), "")
    with pytest.raises(ValueError, match="asks the policy in training, and there is none; leave it out"):
        part.setup(context_without_policy())
    for options, message in (
        ({"weight": -1.0}, "weight=-1.0 must be finite and >= 0"),
        ({"per_token": 1}, "per_token=1 must be true or false"),
        ({"tokens_per_batch": 0}, "tokens_per_batch=0"),
    ):
        with pytest.raises(ValueError, match=message):
            InformationGain(**options)
