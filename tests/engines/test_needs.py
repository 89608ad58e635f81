"""Engines that lack what a run needs are refused by name; others are handed on."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import pytest

from lit_agentrl.engines.base import Capabilities, SamplingParams, TurnRequest
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.engines.needs import ALONE, open_engine
from lit_agentrl.engines.scripted import ScriptedEngine
from lit_agentrl.facts import COSTS, ENTROPIES, EXACT_LOG_PROBS, FORK, STATE_KEYS, TAKES_WEIGHTS, TOKEN_IDS
from lit_agentrl.requirements import Fact, describe_part
from tests.build.test_structure import built

scripted = partial(ScriptedEngine, lambda episode, turn: "", encode=list)


class Inexact(NativeEngine):
    """What it records is not for training, as of a server in another precision; named by a command below ``entry``."""

    capabilities = Capabilities(exact_log_probs=False, fork=True)


@pytest.mark.parametrize("fact", [FORK, EXACT_LOG_PROBS])
def test_what_an_engine_lacks_is_refused(fact: Fact) -> None:
    with pytest.raises(ValueError, match="not given by engine=ScriptedEngine; set engine=native"):
        open_engine(scripted, parts=[describe_part("algo", name="mine", requires=[fact]), *ALONE])


class Texts(ScriptedEngine):
    capabilities = Capabilities(exact_log_probs=True, fork=True, token_ids=False, weights="none")


class Fixed(ScriptedEngine):
    capabilities = Capabilities(exact_log_probs=True, fork=True, entropies=False, weights="none")


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        (["strategy=ddp", "trainer.devices=2", "worker=process"], "by rollout.overlap=false and 2 training processes"),
        (["rollout.overlap=true"], "by rollout.overlap=true and 1 training process"),
        (["strategy=ddp", "trainer.devices=2"], ""),
        (["worker=process"], ""),
    ],
)  # fmt: skip
def test_one_server_has_the_weights_of_one_version(options: list[str], refused: str) -> None:
    server = [
        "engine=vllm_serve",
        "engine.url=http://x",
        "engine.weights_folder=/tmp",
        "algo/correction=truncated",
    ]
    refusal = pytest.raises(ValueError, match=refused) if refused else nullcontext()
    with refusal:
        built(*server, "trainer.accelerator=cpu", *options)


@pytest.mark.parametrize(("kind", "fact"), [(Texts, TOKEN_IDS), (Fixed, TAKES_WEIGHTS), (Fixed, ENTROPIES)])
def test_training_needs_ids_weights_and_perhaps_entropies(kind: type[ScriptedEngine], fact: Fact) -> None:
    make, asking = (
        partial(kind, lambda episode, turn: "", encode=list),
        describe_part("algo", requires=[fact]),
    )
    with pytest.raises(ValueError, match=f"{fact.sentence}, not given by engine={kind.__name__}"):
        open_engine(make, parts=[asking, *ALONE])
    assert isinstance(open_engine(make), kind)


def test_what_only_a_game_can_provide_is_not_missed_before_games_are_tried() -> None:
    asking = describe_part("algo.advantage", name="gigpo", requires=[STATE_KEYS, COSTS])
    assert isinstance(open_engine(scripted, parts=[asking, *ALONE]), ScriptedEngine)


def test_an_engine_that_is_not_asked_for_more_is_handed_on() -> None:
    engine = open_engine(scripted, capacity=3)
    assert isinstance(engine, ScriptedEngine) and engine.capacity == 3


def test_new_weights_forget_the_episodes_of_a_scripted_engine() -> None:
    engine = scripted()
    request = TurnRequest(0, [1, 2, 3], 0, SamplingParams(max_reply_tokens=3, max_context_tokens=5))
    for version in range(2):  # two prefixes together would exceed the context
        engine.submit(request)
        [result] = engine.poll()
        assert (result.num_prefilled, result.policy_version) == (3, version)
        engine.submit(request)
        engine.load(None, version + 1)
        assert engine.num_pending == 0
