"""Engines that lack what a run needs are refused by name; others are handed on."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest

from lit_agentrl.engines.base import Capabilities
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.engines.needs import open_engine, require_capabilities
from lit_agentrl.engines.scripted import ScriptedEngine

scripted = partial(ScriptedEngine, lambda episode, turn: "", encode=list)


class Inexact(NativeEngine):
    """What it records is not for training, as of a server in another precision; named by a command below ``entry``."""

    capabilities = Capabilities(exact_log_probs=False, fork=True)


@pytest.mark.parametrize(
    ("needs", "message"),
    [
        ({"structure": {"fork"}, "trusts_log_probs": False}, "cannot fork.*algo/structure=independent"),
        ({"trusts_log_probs": True}, "does not record the log-probs.*algo/correction=truncated"),
    ],
)
def test_what_an_engine_lacks_is_refused(needs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"engine=ScriptedEngine {message}"):
        open_engine(scripted, asked=needs)


class Texts(ScriptedEngine):
    capabilities = Capabilities(exact_log_probs=True, fork=True, token_ids=False, weights="none")


class Fixed(ScriptedEngine):
    capabilities = Capabilities(exact_log_probs=True, fork=True, entropies=False, weights="none")


@pytest.mark.parametrize(
    ("needs", "message"),
    [
        ({"processes": 2, "has_workers": True}, "a worker of each of several processes"),
        ({"has_workers": True, "is_ahead": True}, "which rollout.overlap=true, or"),
        ({"processes": 2}, ""),
        ({"has_workers": True}, ""),
    ],
)
def test_one_server_has_the_weights_of_one_version(needs: dict[str, Any], message: str) -> None:
    promised = Capabilities(exact_log_probs=True, fork=True, weights="given", is_server=True)
    refusal = pytest.raises(ValueError, match=message) if message else nullcontext()
    with refusal:
        require_capabilities("Server", promised, trusts_log_probs=True, **needs)


@pytest.mark.parametrize(
    ("kind", "needs", "message"),
    [
        (Texts, {}, "writes texts and no token ids"),
        (Fixed, {}, "keeps weights of its own"),
        (Fixed, {"trains": False, "reads_entropies": True}, "records no entropies"),
    ],
)
def test_training_needs_ids_weights_and_perhaps_entropies(
    kind: type[ScriptedEngine], needs: dict[str, Any], message: str
) -> None:
    make = partial(kind, lambda episode, turn: "", encode=list)
    with pytest.raises(ValueError, match=f"engine={kind.__name__} {message}"):
        open_engine(make, asked={"trusts_log_probs": False, **needs})
    assert isinstance(open_engine(make, asked={"trusts_log_probs": False, "trains": False}), kind)


def test_an_engine_that_is_not_asked_for_more_is_handed_on() -> None:
    engine = open_engine(scripted, asked={"structure": {"state"}, "trusts_log_probs": False}, capacity=3)
    assert isinstance(engine, ScriptedEngine) and engine.capacity == 3
