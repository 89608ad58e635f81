"""Engines of vLLM around a network, and ways in which one may lie; each guard of the real one is missing in one."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch

from lit_agentrl.engines.served.vllm import VLLMEngine
from lit_agentrl.models.policy import load_nano
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.sync import WeightSync
from tests.conftest import load_task_yaml
from tests.rollout.test_process import rules


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def nano() -> Any:
    return load_nano().network


def sokoban(engine: Any = VLLMEngine, **options: Any) -> Rules:
    policy = load_nano()
    return rules(
        tasks=[load_task_yaml("sokoban")], engine=partial(engine, num_slots=16, **options), max_context_tokens=900,
        chat=type(rules().chat)(policy.tokenizer),
    )  # fmt: skip


def opened(network: Any, kind: Any = VLLMEngine, **options: Any) -> tuple[Any, WeightSync]:
    held = sokoban(kind, **options)
    engine: Any = held.open_engine(network)
    return engine, WeightSync(engine, network, held, nullcontext)
