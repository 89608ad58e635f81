"""The start-up check of prompts: games and condensers whose words the policy cannot read, or that do not fit."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from lit_agentrl.build.games import Games, check_prompts, check_thinking, try_games
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.envs.base import Task
from lit_agentrl.evaluate import results_file
from lit_agentrl.facts import COSTS
from lit_agentrl.requirements import Requirement, describe_part
from lit_agentrl.rewards.pipeline import RewardPipeline
from lit_agentrl.rewards.shaping.delta import Delta
from lit_agentrl.rewards.shaping.length import Length
from lit_agentrl.rewards.shaping.normalise import Normalise
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.condensers import LastActions
from lit_agentrl.text.context import FULL, Context, Single, Window
from lit_agentrl.text.dialects.tool_call import ToolCalls
from lit_agentrl.text.prompts import Prompt
from tests.conftest import ROOT, load_task_yaml, nano_tokenizer
from tests.oddities import Odd, Scored
from tests.text.conftest import make_bpe
from tests.text.test_chat import CHATML


def check(context: Context, *, prompt: Prompt | None = None, game: str = "sokoban", limit: int = 512) -> None:
    chat = ChatRenderer(nano_tokenizer(), force_think=prompt.force_think if prompt else False)
    rules = Rules(
        tasks=[load_task_yaml(game)], prompt=prompt or Prompt("compact"), chat=chat, engine=NativeEngine,
        context=context, max_context_tokens=limit,
    )  # fmt: skip
    check_prompts(rules)


@pytest.mark.parametrize("game", ["sokoban", "frozen_lake", "bandit"])
@pytest.mark.parametrize("force_think", [False, True])
def test_shipped_contexts_pass(game: str, force_think: bool) -> None:
    for context in (FULL, Window(1), Window(2), Single(LastActions())):
        check(context, prompt=Prompt("compact", force_think=force_think), game=game)


def test_words_that_a_condenser_makes_are_read_before_anything_is_played() -> None:
    with pytest.raises(
        ValueError, match=r"does not know a token that sokoban shows after .*context\.condense"
    ):
        check(Single(lambda past: "déjà vu"))


def test_a_condenser_that_fails_on_real_turns_is_refused() -> None:
    seen = []
    with pytest.raises(ValueError, match=r"context\.condense failed: ZeroDivisionError"):
        check(Single(lambda past: seen.append(past) or str(1 / 0)))  # type: ignore[func-returns-value]
    [(turn,)] = seen
    assert len(turn.actions) == 1 and turn.is_valid and not turn.problem
    with pytest.raises(ValueError, match=r"context\.condense returned int"):
        check(Single(lambda past: len(past)))  # type: ignore[arg-type, return-value]


def test_a_prompt_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"rollout\.max_context_tokens=20 leaves no room for a reply"):
        check(Window(1), limit=20)


def test_all_limits_that_an_own_world_exceeds_are_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    lake = replace(load_task_yaml("frozen_lake"), max_turns=1, max_actions=2, max_actions_per_turn=2)
    games = Games([lake], [1.0], [], [])
    try_games(games, RewardPipeline({}))

    def check_with(limit: int, reply: int, *, is_short: bool = True) -> None:
        rules = Rules(
            tasks=games.tasks, prompt=Prompt("compact"), chat=ChatRenderer(nano_tokenizer()), engine=NativeEngine,
            max_context_tokens=limit,
        )  # fmt: skip
        check_prompts(
            rules, num_trained=1, max_reply_tokens=reply, exceeded=games.exceeded if is_short else {}
        )

    with pytest.raises(ValueError, match=r"^env\.game\.max_solution=\d+ .* 1 to 2, .* set env\.max_turns="):
        check_with(512, 64)
    with pytest.raises(ValueError, match="^env: 3 limits are too low for frozen_lake: ") as caught:
        check_with(20, 2)
    for line in (
        r"\(1\) env\.game\.max_solution=\d+ must be .*; set env\.max_turns=\d+ env\.max_actions=\d+",
        r"\(2\) rollout\.max_context_tokens=20 leaves no room for a reply: .* has \d+ tokens; raise it to \d+",
        r"\(3\) rollout\.max_reply_tokens=2 cuts every action of frozen_lake: .*; raise it to \d+ and more",
    ):
        assert re.search(line, str(caught.value)), line
    assert capsys.readouterr().out == ""
    opening = int(re.findall(r"alone has (\d+) tokens", str(caught.value))[0])
    check_with(opening + 1, 2, is_short=False)  # a run is possible, and hardly learns
    said = capsys.readouterr().out.splitlines()
    assert [line.split("=")[0] for line in said] == [
        "warning: rollout.max_context_tokens", "warning: rollout.max_reply_tokens",
    ]  # fmt: skip
    check_with(512, 64, is_short=False)
    assert capsys.readouterr().out == ""


def test_a_needed_limit_beyond_the_positions_of_the_model_names_them() -> None:
    chat = ChatRenderer(nano_tokenizer())
    lake = load_task_yaml("frozen_lake")
    rules = Rules(
        tasks=[lake], prompt=Prompt("compact"), chat=chat, engine=NativeEngine, max_context_tokens=20
    )
    for positions, said in (
        (30, r"raise it to \d+, for which the model has too few positions \(30\): take another model$"),
        (9999, r"raise it to \d+$"),
    ):
        with pytest.raises(ValueError, match=said):
            check_prompts(rules, num_trained=1, max_reply_tokens=8, max_positions=positions)


def test_calls_of_a_tool_world_without_random_play_are_measured_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    safe = instantiate(OmegaConf.load(ROOT / "examples/own_world/conf/env/safe.yaml"))
    chat = ChatRenderer(nano_tokenizer(), dialect=ToolCalls())
    rules = Rules(
        tasks=[safe], prompt=Prompt("compact"), chat=chat, engine=NativeEngine, max_context_tokens=4096
    )
    limit, spelling = check_prompts(rules, num_trained=1, max_reply_tokens=4)
    assert limit.startswith("rollout.max_reply_tokens=4 cuts every action of safe") and "spells" in spelling
    assert f"warning: {limit}\n{spelling}\n" == capsys.readouterr().out
    check_prompts(rules, num_trained=1, max_reply_tokens=400)
    assert "max_reply_tokens" not in capsys.readouterr().out


def check_odd(rewards: RewardPipeline | None = None, **options: Any) -> None:
    task = Task("bandit", partial(Odd, **options))  # a name that the policy can read
    probes = rewards.probes if rewards is not None else {}
    rules = Rules(
        tasks=[task], prompt=Prompt("compact"), chat=ChatRenderer(nano_tokenizer()), engine=NativeEngine,
        probes=probes,
    )  # fmt: skip
    check_prompts(rules, rewards=rewards, num_trained=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shows": float("nan")}, r"game bandit instance seed 0, reset: .* must be a str, not float nan"),
        ({"shows": None}, "reset: ValueError: the observation must be a str, not None"),
        ({"shows": 7}, "must be a str, not int 7"),
        ({"fails": "init"}, "reset: ValueError: game bandit: RuntimeError: no such level"),
        ({"fails": "init exits"}, "reset: ValueError: game bandit: SystemExit: enough"),
        ({"fails": "reset"}, "reset: RuntimeError: no such level"),
        ({"fails": "step"}, "game bandit instance seed 0, turn 1: RuntimeError: no such level"),
        ({"fails": "step exits"}, "turn 1: SystemExit: enough"),
        ({"fails": "random exits"}, "^env: game bandit: SystemExit: enough"),
    ],
)
def test_a_game_that_fails_in_every_episode_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_odd(**options)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raises", "^reward.mine: KeyError: 'colour'"),
        ("exits", "^reward.mine: SystemExit: no more"),
        ("flat", "game bandit instance seed 3 has 5 turns, and was given float"),
        ("short", "game bandit instance seed 3 has 5 turns, and was given 0"),
        ("text", "turn 1 was given much"),
        ("nan", "turn 1 was given nan; give 0 to what cannot be scored"),
    ],
)
def test_a_reward_part_that_fails_is_named_before_anything_is_played(how: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_odd(RewardPipeline({"mine": Scored(how=how)}))


def test_what_reward_parts_learn_is_not_touched_by_the_trial() -> None:
    rewards = RewardPipeline(
        {"delta": Delta(), "normalise": Normalise(by="running"), "length": Length(weight=1.0)}
    )
    before = rewards.state_dict()
    check_odd(rewards)
    assert rewards.state_dict() == before


def test_a_template_that_thinks_whatever_is_asked_is_refused() -> None:
    bpe = make_bpe()
    bpe.chat_template = CHATML.replace(
        "assistant\\n' -}}\n{%- endif", "assistant\\n<think>\\n' -}}\n{%- endif"
    )
    thinking = ChatRenderer(bpe)
    with pytest.raises(
        ValueError, match=r"prompt\.think=false: the chat template of tiny always opens a think block"
    ):
        check_thinking(thinking, Prompt("compact", think=False), "tiny")
    check_thinking(thinking, Prompt("compact"), "tiny")
    check_thinking(ChatRenderer(nano_tokenizer()), Prompt("compact", think=False), "tiny")


def test_a_disk_that_is_full_at_the_end_costs_the_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(results_file, "write_atomic", full)
    assert results_file.write_results(tmp_path, "last", {"config": {}}) is None
    assert (
        "last.json cannot be written (No space left on device): results are shown" in capsys.readouterr().err
    )


def test_a_damaged_file_of_scores_costs_the_keeping_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "last.json").write_text("x")
    assert results_file.write_results(tmp_path, "last", {"config": {}}) is None
    assert "last.json cannot be written (Expecting value" in capsys.readouterr().err


def test_a_game_that_tells_no_costs_is_refused_where_they_are_held_within_a_limit() -> None:
    def check_costs(task: Task) -> None:
        rules = Rules(
            tasks=[task], prompt=Prompt("compact"), chat=ChatRenderer(nano_tokenizer()), engine=NativeEngine
        )
        asking = describe_part("costs", requires=[Requirement(COSTS, by="costs")])
        check_prompts(rules, num_trained=1, parts=[asking])

    lake = load_task_yaml("frozen_lake")
    with pytest.raises(
        ValueError, match=r"costs needs a game .* info\['cost'\], not given by env=frozen_lake; set"
    ):
        check_costs(lake)
    check_costs(replace(lake, game=partial(lake.game.func, **lake.game.keywords | {"thin_share": 0.3})))


class IgnoresItsSeed(Odd):
    """Each reset shows something else."""

    resets = 0

    def reset(self, **given: Any) -> Any:
        self.resets += 1
        observation, info = super().reset(**given)
        return f"{observation} {self.resets}", info


class TakesNoSeed(Odd):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset(seed=0)


def test_a_reset_that_ignores_or_lacks_its_seed_is_told_at_the_start(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def tried(game: Any) -> None:
        try_games(Games([Task("odd", partial(game))], [1.0], [], []), RewardPipeline({}))

    tried(Odd)
    assert capsys.readouterr().out == ""
    tried(IgnoresItsSeed)
    assert (
        "reset(seed=0) of odd gives another observation each time: the episodes of a group do not share their task"
        in (capsys.readouterr().out.replace("\n", " "))
    )
    with pytest.raises(
        ValueError, match=r"^env: reset of game odd takes no seed and no options; write reset\(self, "
    ):
        tried(TakesNoSeed)
