"""Shared fixtures: tiny random policies that speak the embedded vocabulary."""

from __future__ import annotations

import gc
import importlib.util
import os
import random
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hydra.utils import instantiate
from hypothesis import HealthCheck, settings
from omegaconf import DictConfig, OmegaConf
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from lit_agentrl.envs.base import Task
from lit_agentrl.models.policy import Policy
from lit_agentrl.paths import CONFIG_DIR, find_config
from tests.commands import finished_run, in_empty_folder, refused, run_copy

__all__ = ["finished_run", "in_empty_folder", "refused", "run_copy"]  # fixtures

# the same examples every time, however slow the machine is today
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")

ROOT = Path(__file__).resolve().parent.parent
for name in ("WANDB_API_KEY", "MLFLOW_TRACKING_URI"):  # nothing is sent to anybody's server
    os.environ.pop(name, None)


def thinned(cases: Iterable[Any], one_in: int = 3) -> list[Any]:
    """Parameters of a test of many alike: one in so many in the default suite, the others among the slow sweeps."""
    rare = (pytest.mark.slow, pytest.mark.sweep)
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=rare if number % one_in else ())
        for number, case in enumerate(cases)
    ]


def leaves_random_alone(act: Callable[[], Any], attempts: int = 10) -> bool:
    """Whether ``act`` draws nothing from Python's generator: other threads may draw meanwhile, but not each time."""
    for _ in range(attempts):
        before = random.getstate()
        act()
        if random.getstate() == before:
            return True
    return False


def sampled(names: Iterable[str], often: Collection[str]) -> list[Any]:
    """Parameters of a test whose every case is a whole run: `often` among the slow tests, the others by hand."""
    cases = list(names)
    assert {*often} <= {*cases}
    return [pytest.param(name, marks=() if name in often else pytest.mark.long) for name in cases]


@lru_cache
def load_script(name: str) -> Any:
    """A module of ``scripts/``, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def load_option(group: str, name: str) -> DictConfig:
    """An option of ``conf``, with what it starts from."""
    file = find_config(f"{group}/{name}.yaml")
    own = cast(DictConfig, OmegaConf.load(file))
    bases = [each for each in own.pop("defaults", ()) if isinstance(each, str) and each != "_self_"]
    return cast(DictConfig, OmegaConf.merge(*(load_option(group, each) for each in bases), own))


def load_task_yaml(name: str) -> Task:
    """A game of ``conf/env`` with its shipped settings."""
    task: Task = instantiate(OmegaConf.load(CONFIG_DIR / "env" / f"{name}.yaml"))
    return task


# worlds whose library is installed by hand
_BY_HAND = {"bfcl": "bfcl_eval", "textworld": "textworld"}
NO_LIBRARY = "the library of this world is not installed (docs/adapters.md)"


def lacks_library(world: str) -> bool:
    """Whether a world needs a library that is installed by hand, and is not."""
    return world in _BY_HAND and importlib.util.find_spec(_BY_HAND[world]) is None


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As many as a playing process has: to the last bit, the trainer computes as it does."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pytest_collection() -> None:
    """What is imported now stays for the whole session, so that searching it for garbage is in vain."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


_open = ExitStack()  # to the end of the session


def pytest_sessionfinish() -> None:
    """Servers are closed while their threads live; later, who waits for one waits for ever."""
    _open.close()


@lru_cache
def served_game() -> str:
    """The url of Sokoban, served by a thread of this process."""
    from tests.envs.served import start

    return start(load_task_yaml("sokoban")).url


@lru_cache
def served_openenv() -> str:
    """The url of a corridor, served as OpenEnv serves a game by a thread of this process."""
    from tests.envs.openenv_raw import serving

    return _open.enter_context(serving())


@lru_cache
def nano_tokenizer() -> Any:
    return load_script("build_nano").build_tokenizer()


def tiny_network(family: str = "llama", seed: int = 0) -> PreTrainedModel:
    """Two small layers, random weights: grouped-query attention with rotary or plain learned positions."""
    torch.manual_seed(seed)
    size = len(nano_tokenizer())
    if family == "llama":
        config = LlamaConfig(
            vocab_size=size, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            intermediate_size=48, max_position_embeddings=2048, pad_token_id=0, bos_token_id=None, eos_token_id=5,
        )  # fmt: skip
        return LlamaForCausalLM(config).eval()
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=size, n_embd=32, n_layer=2, n_head=4, n_positions=2048, bos_token_id=5, eos_token_id=5
        )
    ).eval()


def tiny_policy(family: str = "llama", seed: int = 0) -> Policy:
    return Policy(network=tiny_network(family, seed), tokenizer=nano_tokenizer(), name=f"tiny-{family}")


@pytest.fixture(scope="session")
def tiny_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small randomly initialised model saved with its tokenizer and chat template."""
    folder = tmp_path_factory.mktemp("tiny_model")
    tiny_policy().save(folder)
    return folder
