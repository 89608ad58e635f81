"""Opponent: which members it plays, what rows and means hold of it, and what is refused."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from lit_agentrl.batch import StepBatch
from lit_agentrl.distributed import StrategyHooks
from lit_agentrl.engines.base import Capabilities, SamplingParams
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.engines.needs import ALONE, describe_engine
from lit_agentrl.episode import Episode, Source
from lit_agentrl.experimental.opponent import Opponent, OpponentEngine, OpponentHook
from lit_agentrl.facts import PLAYS_REFERENCE
from lit_agentrl.requirements import describe_part, match
from lit_agentrl.rl.policy import filters
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import EpisodeSpec, Wave
from lit_agentrl.rollout.structures.refill import Refill
from lit_agentrl.rollout.workers.inline import LocalPlayer
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.prompts import Prompt
from tests.build.test_structure import built
from tests.conftest import load_task_yaml, nano_tokenizer
from tests.experimental.test_opponent_engine import two
from tests.rollout.test_collector import LOSE, WIN, collect

PROMPTS = StepBatch(0, seed_P=[7, 8], task_P=[0, 0], group_P=[0, 1])


def is_opponent(spec: EpisodeSpec) -> bool:
    return spec.extra == OpponentHook()


def players(structure: Refill, members: int) -> list[bool]:
    return [is_opponent(spec) for spec in structure.plan(PROMPTS, members)]


def test_the_last_members_of_each_group_are_the_opponents() -> None:
    assert players(Opponent(), 5) == 2 * [False, False, False, True, True]
    assert players(Opponent(opponents=3), 4) == 2 * [False, True, True, True]
    assert players(Refill(), 2) == [False] * 4
    plain = Refill().plan(PROMPTS, 4)
    assert [(s.group, s.member, s.instance_seed) for s in Opponent().plan(PROMPTS, 4)] == [
        (s.group, s.member, s.instance_seed) for s in plain
    ]
    assert Opponent().plan_evaluation(plain) == plain, "evaluations are of the policy alone"


def test_rows_say_who_played_and_means_are_of_the_policy() -> None:
    script = lambda spec, k: WIN if is_opponent(spec) or (spec.group == 31 and not spec.member) else LOSE  # noqa: E731
    batch, row, waves = collect(Opponent(), script=script, members=4)
    rows = batch.trajectories
    assert rows is not None and len(waves) == 1
    assert rows.is_opponent_B.tolist() == 2 * [False, False, True, True]
    assert rows.source_B.tolist() == 2 * ([Source.ROLLOUT] * 2 + [Source.OPPONENT] * 2)
    assert (row["rollout/success"], row["rollout/episodes"]) == (0.25, 4.0)
    assert [(e.group, e.member) for e in batch.own_episodes] == [(30, 0), (30, 1), (31, 0), (31, 1)]
    assert row["structure/opponent_success"] == 1.0 and row["structure/win_rate"] == 0.125
    tokens = sum(episode.num_sampled for episode in batch.episodes)
    assert row["rollout/action_tokens"] == tokens, "all that was sampled is counted"


def test_further_waves_have_opponents_too() -> None:
    script = lambda spec, k: WIN if spec.group != 30 and is_opponent(spec) else LOSE  # noqa: E731
    select = partial(filters.dynamic_sampling, target=3)
    batch, _, waves = collect(Opponent(), select, script)
    assert len(waves) == 2 and all(is_opponent(s) == (s.member == 1) for wave in waves for s in wave.specs)
    assert batch.num_kept_groups >= 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("algo=xpo", "worker=process"), "Opponent needs episodes .* in the training process.* set worker=none"),
        (("algo=nash_md", "rollout.overlap=true"), "set worker=none and rollout.overlap=false"),
        (("algo=xpo", "algo.structure.opponents=8"), r"opponents=8 must be .* fewer than rollout\.members=8"),
        (("algo=xpo", "algo.structure.opponents=0"), "opponents=0 must be a whole number >= 1"),
        (("algo=xpo", "algo.structure.mix=1.1"), r"mix=1\.1 must be from 0"),
        (("algo=xpo", "algo/reference=none"), "Opponent needs .* reads a reference, not given by algo=xpo"),
        (("algo=nash_md", "algo/kl=none"), "by algo=nash_md; set algo/reference=frozen, or a KL term"),
        (("algo=xpo", "algo/structure=refill"), r"episodes of an opponent, not given by algo\.structure=Refill"),
        (("algo=nash_md", "algo/structure=refill"), "set algo/structure=opponent"),
        (
            ("algo=grpo", "algo/structure=opponent"),
            "not given by algo=grpo: other algorithms would train on them as the policy's own",
        ),
        (("algo=xpo", "algo.alpha=-1"), "alpha=-1 must be finite"),
    ],
)  # fmt: skip
def test_what_does_not_fit(options: tuple[str, ...], message: str) -> None:
    with pytest.raises(Exception, match=message):
        built(*options)


def test_a_group_of_one_has_no_opponent() -> None:
    with pytest.raises(
        ValueError, match=r"opponents=null must be at least 1 and fewer than rollout\.members=1"
    ):
        Opponent().branching(1)


def test_an_engine_of_one_network_has_no_opponent() -> None:
    asking = describe_part("algo.structure", requires=Opponent.requires & {PLAYS_REFERENCE})
    for given in ({"weights": "given"}, {"weights": "given", "is_server": True}):
        promised = Capabilities(exact_log_probs=True, fork=True, **given)  # type: ignore[arg-type]
        with pytest.raises(
            ValueError, match="can play with the reference, not given by engine=E; set engine=native"
        ):
            match([asking, describe_engine("E", promised), *ALONE])


def replies(episodes: list[Episode]) -> dict[int, list[list[int]]]:
    return {e.member: [turn.reply_tokens.tolist() for turn in e.turns] for e in episodes}


@pytest.mark.slow
@pytest.mark.parametrize("share", [None, 1])
def test_episodes_of_opponents_are_those_of_the_reference_whatever_the_policy_is(share: int | None) -> None:
    policy, reference = two()
    make = partial(NativeEngine, num_slots=4)
    rules = Rules(
        tasks=[load_task_yaml("bandit")], prompt=Prompt("compact"), chat=ChatRenderer(nano_tokenizer()),
        engine=partial(OpponentEngine, make, mix=1.0), max_context_tokens=300,
    )  # fmt: skip
    params = SamplingParams(max_reply_tokens=8, max_context_tokens=300)
    wave = Wave(
        "train", 0, params, tuple(Opponent().plan(replace(PROMPTS, task_P=[0], seed_P=[7], group_P=[0]), 4))
    )

    def played(network: PreTrainedModel, **more: Any) -> dict[int, list[list[int]]]:
        here = LocalPlayer(
            replace(rules, **more), network, nullcontext, StrategyHooks(), reference if not more else None
        )
        found = here.play(wave, 0) if share is None or more else here.play_shares(wave, 0, share, 1)
        here.stop()
        assert more or [e.source for e in found.episodes] == [Source.ROLLOUT] * 2 + [Source.OPPONENT] * 2
        return replies(found.episodes)

    by_policy, by_reference = (played(network, engine=make) for network in (policy, reference))
    assert all(by_policy[member] != by_reference[member] for member in range(4))
    assert played(policy) == {m: (by_policy if m < 2 else by_reference)[m] for m in range(4)}
    with torch.no_grad():
        policy.lm_head.weight.mul_(-1)
    again = played(policy)
    assert again[0] != by_policy[0] and {m: again[m] for m in (2, 3)} == {m: by_reference[m] for m in (2, 3)}
