"""Settings that a user chose and that break a condition are told in one line; those of algorithms are not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from lit_agentrl.build.hidden_tools import describe_hidden_tools
from lit_agentrl.build.unused_options import (
    describe_blind_turns,
    describe_idle_reference,
    describe_own_imitation,
)
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.dialects.tool_call import ToolCalls
from lit_agentrl.text.prompts import Prompt
from lit_agentrl.update.settings import UpdateSettings
from tests.conftest import ROOT, load_task_yaml, nano_tokenizer
from tests.rl.ragged import fresh
from tests.text.conftest import make_nano

TYPED = ["algo=grpo", "algo/advantage=process_group"]


def make_games(*max_turns: int) -> Any:
    tasks = [SimpleNamespace(name=f"game{n}", max_turns=turns) for n, turns in enumerate(max_turns)]
    return SimpleNamespace(
        tasks=[*tasks, SimpleNamespace(name="val", max_turns=9)], weights=[1.0] * len(tasks)
    )


def test_a_rule_that_is_blind_to_stopping_is_told_where_the_user_chose_it() -> None:
    blind, sees = (fresh("grpo", f"advantage={name}") for name in ("process_group", "process_group_baseline"))
    assert describe_blind_turns(blind, make_games(1, 5), TYPED) == (
        "algo/advantage=process_group cannot see when an episode ends, which the policy may decide in game1; "
        "algo/advantage=process_group_baseline can"
    )
    assert not describe_blind_turns(blind, make_games(1), TYPED)
    assert not describe_blind_turns(blind, make_games(5), ["algo=mine"])
    assert not describe_blind_turns(sees, make_games(5), ["algo/advantage=process_group_baseline"])


@pytest.mark.parametrize("name", ["dno", "rebel", "sppo", "spin"])
def test_a_reference_that_is_the_policy_itself_is_told_where_the_user_chose_one_step(name: str) -> None:
    one, four = UpdateSettings(), UpdateSettings(minibatches=4)
    typed = [f"algo={name}", "update.minibatches=1"]
    told = (
        f"update.minibatches=1 leaves one step an iteration, in which the reference of algo={name} is the policy "
        "itself and does not act; update=four_minibatches makes it act"
    )
    assert describe_idle_reference(fresh(name), one, typed, is_older=False) == told
    assert not describe_idle_reference(fresh(name), four, [typed[0], "update.minibatches=4"], is_older=False)
    assert not describe_idle_reference(fresh(name), one, typed[:1], is_older=False)
    assert not describe_idle_reference(fresh(name), one, typed, is_older=True)
    assert not describe_idle_reference(fresh("dpo"), one, typed, is_older=False)  # a frozen reference


def test_tools_that_the_prompt_does_not_show_are_told_to_a_policy_that_can_read_them() -> None:
    safe = instantiate(OmegaConf.load(ROOT / "examples/own_world/conf/env/safe.yaml"))

    def describe(style: Any, *, tokenizer: Any = None) -> str:
        chat = ChatRenderer(tokenizer or make_nano(), dialect=ToolCalls())
        tasks = [safe, load_task_yaml("bandit")]
        return describe_hidden_tools(Rules(tasks=tasks, prompt=Prompt(style), chat=chat, engine=NativeEngine))

    assert (
        describe("compact")
        == "safe has tools, and prompt=compact does not show them to the policy: prompt=full"
    )
    assert "prompt=bare does not show them" in describe("bare")
    assert not describe("full")
    assert not describe("compact", tokenizer=nano_tokenizer())  # spells the declarations letter by letter


def test_a_policy_that_imitates_all_that_it_plays_is_told() -> None:
    sft = fresh("sft")
    assert describe_own_imitation(sft, ["algo=sft", "env=sokoban"]).endswith(
        "data=demonstrations data.path=FILE imitates recorded ones"
    )
    for chosen in ("data=beside", "filter.ratio=0.5", "filter=success", "algo/structure=tree"):
        assert not describe_own_imitation(sft, ["algo=sft", chosen])
    assert not describe_own_imitation(fresh("grpo"), ["algo=grpo"])
