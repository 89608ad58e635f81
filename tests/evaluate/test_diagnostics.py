"""What thoughts tell, of the embedded policy: likelihoods are those of its draws; its own thoughts change nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from lit_agentrl.build.assembly import Run, build
from lit_agentrl.config.composition import compose_job, make_task_loader
from lit_agentrl.config.errors import UserError
from lit_agentrl.distributed import StrategyHooks
from lit_agentrl.engines.base import Capabilities, SamplingParams
from lit_agentrl.engines.given_thoughts import ThoughtEngine
from lit_agentrl.engines.scripted import ScriptedEngine
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.games.sokoban import Sokoban
from lit_agentrl.episode import Episode
from lit_agentrl.evaluate import diagnostics
from lit_agentrl.evaluate.score_table import build_table
from lit_agentrl.report.table import as_text
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import EpisodeSpec, Scheduler, Wave
from lit_agentrl.rollout.thoughts import (
    SwappedThoughts,
    Thought,
    best_thought,
    encode_think_block,
    list_thoughts,
)
from lit_agentrl.rollout.workers.inline import LocalPlayer
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.prompts import Prompt
from tests.conftest import nano_tokenizer


class Elsewhere:
    """An engine with weights of its own."""

    @classmethod
    def check_options(cls) -> Capabilities:
        return Capabilities(exact_log_probs=True, fork=True, weights="given")


def run_of(folder: Path, *overrides: str) -> Run:
    cfg = compose_job("train", ["env=sokoban", "test.episodes=4", "val.episodes=2", *overrides])
    OmegaConf.set_struct(cfg, False)
    cfg.run_dir, cfg.callbacks, cfg.logger = str(folder), {}, {}
    return build(cfg, make_task_loader())


def played(run: Run, params: SamplingParams) -> list[Episode]:
    (batch,) = run.stream.test_dataloader()[0]
    context = run.trainer.precision_plugin.forward_context
    player = LocalPlayer(run.rules, run.module.policy.network, context, StrategyHooks())
    replace(run.rollouts.test, params=params).collect(batch, player.play, 0)
    player.stop()
    return batch.episodes


@pytest.mark.slow
@pytest.mark.sweep
def test_the_embedded_policy_is_diagnosed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnostics, "SAMPLES", 4)
    run = run_of(tmp_path)
    diagnostics.check_run(run)
    params = replace(run.rollouts.test.params, temperature=0.0)
    episodes = played(run, params)
    thoughts = list_thoughts(episodes)
    assert len(thoughts) >= 4 and {thought.turn for thought in thoughts} > {0}
    # teacher-forced, each thought is as likely after its own context as the engine says that it was
    matched = diagnostics._compute_log_likelihoods(run, thoughts[:4], params).diagonal().tolist()
    for thought, found in zip(thoughts, matched, strict=False):
        turn = episodes[thought.episode].turns[thought.turn]
        end = len(thought.opening)
        assert turn.reply_tokens.tolist()[:end] == [*thought.opening]
        assert found == pytest.approx(turn.reply_logps[len(thought.lead) : end].sum(), abs=1e-3)
    # greedy, with its own thoughts the policy plays the same episodes
    own = {(thought.episode, thought.turn): thought.opening for thought in thoughts}
    again = diagnostics._replay_ablated(
        run, "sokoban", "swapped", params, lambda asked, turn: own.get((asked.episode, turn), ())
    )
    assert list(again) == [
        replace(e.outcome, entropy=a.entropy) for e, a in zip(episodes, again, strict=True)
    ]
    found = diagnostics.diagnose(run, "sokoban", episodes, params, seed=0)
    for key in ("first_turn", "any_turn"):
        assert 0 <= found[key]["chance"] <= found[key]["retrieval"] <= 1
    assert [found["ablation"][key]["difference"]["n"] for key in ("removed", "swapped", "best")] == [4, 4, 4]
    json.dumps(found, allow_nan=False)
    cfg = OmegaConf.create({"split": "test", "members": 1})
    score = {"mean": 0.5, "low": 0.1, "high": 0.9, "n": 4}
    record: dict[str, Any] = {"env": "sokoban", "temperature": 0.0, "success": score, "return": score}
    record |= {"model": "start weights", "shots": 0, "cut_share": 0.0, "reply_tokens": 9.0}
    record |= {"normalised": None, "thoughts": found}
    record["levels"] = dict.fromkeys(("chance_success", "oracle_success"), None)
    text = as_text(build_table(cfg, [record], {}))
    assert (
        "with others' thoughts" in text
        and "with best play's thoughts" in text
        and max(map(len, text.splitlines())) <= 80
    )


@pytest.mark.slow
@pytest.mark.sweep
def test_of_two_adapters_a_thought_is_as_likely_as_the_level_that_wrote_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnostics, "SAMPLES", 6)
    run = run_of(tmp_path, "algo=hrl_tar", "model/lora=levels", "model.lora.r=4")
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in run.module.policy.network.parameters():
            weight += 0.02 * torch.randn_like(weight) * weight.requires_grad
    params = run.rollouts.test.params
    episodes = played(run, params)
    thoughts = list_thoughts(episodes)
    sample = [each for is_plan in (True, False) for each in thoughts if each.is_plan == is_plan][
        :: len(thoughts) // 6
    ]
    assert {thought.is_plan for thought in sample} == {True, False}

    def apart(sample: list[Thought]) -> list[float]:
        found = diagnostics._compute_log_likelihoods(run, sample, params).diagonal().tolist()
        turns = [episodes[each.episode].turns[each.turn] for each in sample]
        own = [
            turn.reply_logps[len(each.lead) : len(each.opening)].sum()
            for each, turn in zip(sample, turns, strict=True)
        ]
        return [abs(one - other) for one, other in zip(found, own, strict=True)]

    assert max(apart(sample)) < 1e-3
    assert min(apart([replace(each, is_plan=not each.is_plan) for each in sample])) > 1e-3
    found = diagnostics.diagnose(run, "sokoban", episodes, params, seed=0)
    assert found["any_turn"]["thoughts"] and found["ablation"]["removed"]["difference"]["n"] == 4


@pytest.mark.slow
def test_what_has_no_thoughts_is_refused(tmp_path: Path) -> None:
    run = run_of(tmp_path, "prompt.think=false")
    with pytest.raises(UserError, match="the run has prompt.think=false; leave it out"):
        diagnostics.check_run(run)
    with pytest.raises(UserError, match="replies to 0 tasks of sokoban have a thought, and 2 are needed"):
        diagnostics.diagnose(run, "sokoban", [], run.rollouts.test.params, seed=0)
    run.rules = replace(run.rules, prompt=replace(run.rules.prompt, think=True))
    run.cfg.engine = {"_target_": f"{__name__}.Elsewhere", "_partial_": True}
    with pytest.raises(UserError, match="likelihoods of the run's own network; add engine=native"):
        diagnostics.check_run(run)
    assert run.rules.chat.tokenizer.decode(encode_think_block(run.rules.chat)).split() == [
        "<think>",
        "</think>",
    ]


def test_before_each_reply_the_game_is_asked_what_best_play_thinks() -> None:
    tokenizer = nano_tokenizer()
    chat = ChatRenderer(tokenizer)
    inner = ScriptedEngine(
        lambda episode, turn: "<answer>Up</answer>",
        encode=lambda text: tokenizer(text, add_special_tokens=False)["input_ids"],
    )
    engine = ThoughtEngine(inner, lambda asked, turn: encode_think_block(chat, asked.note or ""))
    task = Task("sokoban", Sokoban, max_turns=3, max_actions=10, max_actions_per_turn=4)
    rules = Rules(
        tasks=[task], prompt=Prompt(style="compact"), chat=chat, engine=lambda **_: engine, asks=best_thought
    )
    params = SamplingParams(max_reply_tokens=60, max_context_tokens=900)
    specs = tuple(EpisodeSpec(0, group, 0, 0, group) for group in range(3))
    episodes = Scheduler(rules, engine).play(Wave("test", 0, params, specs))
    for episode in episodes:
        env = Sokoban(split="test")
        env.reset(seed=episode.instance_seed)
        assert not episode.failed and (episode.success or len(episode.turns) == 3)
        for turn in episode.turns:
            assert turn.reply_text.startswith(
                chat.decode(encode_think_block(chat, env.best_thought() or "?"))
            )
            assert turn.has_think and turn.is_valid and turn.actions == ["Up"]
            env.step("Up")


def test_an_exchanged_thought_is_of_another_instance_and_of_the_same_turn_where_there_is_one() -> None:
    def thought(group: int, turn: int) -> Any:
        return diagnostics.Thought(group, group, turn, (1,), (group, turn))

    pool = [thought(0, 0), thought(1, 0), thought(0, 1)]
    swap = SwappedThoughts(pool, [0, 1], seed=0)
    found: Sequence[Sequence[int]] = [swap(0, 0), swap(1, 0), swap(1, 1), swap(0, 1)]
    assert found == [(1, 0), (0, 0), (0, 1), (1, 0)]
    with pytest.raises(ValueError, match="between two or more prompts"):
        SwappedThoughts(pool[:1], [0], seed=0)
