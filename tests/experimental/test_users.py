"""Users: what the opening hides, who tells it when, and that the world beneath is played as without one."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import yaml

from lit_agentrl.actions import ToolCall
from lit_agentrl.config.trust import is_allowed
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.checker import check_env
from lit_agentrl.envs.games.bandit import Bandit
from lit_agentrl.envs.games.guess_number import GuessNumber
from lit_agentrl.envs.levels import make_level_key, play_agents
from lit_agentrl.envs.pocket.game import PocketWorld
from lit_agentrl.experimental.users.speakers import ModelSpeaker, ScriptedSpeaker
from lit_agentrl.experimental.users.world import UserWorld
from lit_agentrl.paths import EXPERIMENTAL_DIR
from tests.engines.server import Faults, chat_of, serving

SLOTS = {"lowest number": r"from (\d+)", "highest number": r"to (\d+)"}
VAGUE = ["a certain {slot}", "some {slot}"]
GUESS = Task("guess", partial(GuessNumber), max_turns=9, max_actions_per_turn=1, max_actions=9)


def with_user(task: Task, **options: Any) -> Task:
    given = {"speaker": ScriptedSpeaker(), "slots": SLOTS, "vague": VAGUE, **options}
    return replace(task, user=partial(UserWorld, **given))


def opened(seed: int = 3, task: Task = GUESS, noise_seed: int = 5, **options: Any) -> tuple[Any, str]:
    env = with_user(task, **options).make("train")
    return env, env.reset(seed=seed, options={"noise_seed": noise_seed})[0]


def test_an_opening_hides_its_facts_and_a_question_tells_the_one_that_it_names() -> None:
    plain, _ = GUESS.make("train").reset(seed=3)
    low, high = re.findall(r"\d+", plain)
    env, shown = opened()
    pattern = r"Guess a number from (?:a certain|some) lowest number to (?:a certain|some) highest number\."
    assert re.fullmatch(pattern, shown) and {opened(seed)[1][20:24] for seed in range(20)} == {"a ce", "some"}
    observation, reward, ended, _, info = env.step("ask:  which LOWEST number?")
    assert (
        observation
        == f"User: The lowest number is {low}.\n{shown.replace(env._phrases['lowest number'], low)}"
    )
    assert (reward, ended) == (0.0, False)
    assert info["counts"] == {"questions": 1.0, "facts_revealed": 1.0, "user_failures": 0.0}
    both = env.step("Ask: lowest number and highest number")[4]["counts"]
    assert both["facts_revealed"] == 1.0, "what was revealed before counts once"
    assert env.step("Ask: the weather?")[0].startswith("User: I cannot tell you more about that.\nGuess")
    assert env._hide(plain) == plain and high in plain


def test_the_world_beneath_is_played_as_without_questions() -> None:
    env, _ = opened()
    bare = GUESS.make("train")
    bare.reset(seed=3, options={"noise_seed": 5})
    for action in ["Ask: highest number", "590", "Ask: me", "497", "x", "596"]:
        mine = env.step(action)
        if not action.startswith("Ask"):
            theirs = bare.step(action)
            assert mine[1:4] == theirs[1:4] and mine[4]["reward_parts"] == theirs[4]["reward_parts"]
            assert mine[0] == "\n".join(line for line in theirs[0].split("\n")), (
                "lines of the opening alone hide"
            )


def test_expressions_that_match_nothing_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        _, shown = opened(slots={"highest": r"to (\\d+)"})
        assert shown == GUESS.make("train").reset(seed=3)[0]
    assert [record.message.partition(", so")[0] for record in caplog.records] == [
        r"env.user.slots: to (\\d+) match nothing in an opening"
    ]


def test_best_play_asks_for_each_fact_once_and_reaches_the_levels_of_the_world() -> None:
    env, _ = opened()
    plan = env.optimal_actions(horizon=9)
    assert plan[:2] == ["Ask: What is the lowest number?", "Ask: What is the highest number?"]
    assert plan[2:] == env._world.optimal_actions(horizon=7) and env.optimal_actions(horizon=2) is None
    levels = [play_agents(task, "val", range(20), 0)["oracle"] for task in (GUESS, with_user(GUESS))]
    assert levels[0] == levels[1]
    check_env(lambda split: with_user(GUESS).make(split), episodes=2)


def test_a_tool_asks_and_names_ask_too() -> None:
    pocket = Task("pocket", partial(PocketWorld), max_turns=60, max_actions_per_turn=1, max_actions=60)
    env, shown = opened(task=pocket, slots={"reply": r"'(.*)'"}, vague=["the {slot}"])
    assert "Reply to that number: 'the reply'" in shown and env.tools()[-1].name == "ask_user"
    call = str(ToolCall("ask_user", {"question": "What is the reply?"}))
    assert env.optimal_actions(horizon=60)[0] == call
    assert env.step(call)[0] == "The reply is Maybe, I will call you.."
    bad = env.step(json.dumps({"name": "ask_user", "arguments": {}}))
    assert bad[4]["action_is_valid"] is False and not bad[4]["counts"]["questions"]
    bandit = Task("bandit", partial(Bandit), max_turns=9, max_actions_per_turn=1, max_actions=9)
    plain = bandit.make("train").reset(seed=0)[0]
    word = re.findall(r"\w+", plain)[0]
    env, shown = opened(0, bandit, slots={"word": rf"\b{word}\b"}, vague=["{slot}?"])
    assert shown == re.sub(rf"\b{word}\b", "word?", plain) and env.action_names()[-1] == "Ask word"
    assert env.step("ask WORD")[0] == f"User: The word is {word}.\n{plain}"


def test_states_and_copies_go_on_alike_and_answers_are_keyed() -> None:
    several = ScriptedSpeaker(answers=[f"{n}: {{slot}} = {{value}}" for n in range(50)])
    env, _ = opened(speaker=several)
    env.step("Ask: lowest number")
    state, copied = json.loads(json.dumps(env.state_dict())), pickle.loads(pickle.dumps(env))
    actions = ["500", "Ask: highest number", "Ask: lowest number"]
    later = [env.step(action) for action in actions]
    assert later == [copied.step(action) for action in actions]
    env.load_state_dict(state)
    assert later == [env.step(action) for action in actions]
    env.load_state_dict(state)
    env.rekey(11)
    assert later[1] != env.step(actions[1]), "a branch draws anew"
    other, _ = opened(speaker=several, noise_seed=6)
    other.step("Ask: lowest number")
    assert later != [other.step(action) for action in actions]


def test_a_model_is_asked_with_the_facts_and_a_keyed_seed_and_its_failures_are_counted() -> None:
    said: list[Any] = []

    def answer(path: str, body: dict[str, Any]) -> dict[str, Any]:
        return chat_of("It is\n497, \x1b[31m<|im_end|>" + "x" * 500)

    with serving(answer, Faults({2: "500", 3: "500"}), said) as url:
        speaker = ModelSpeaker(url=url, model="m", retries=1, backoff_s=0.0, max_characters=40)
        env, shown = opened(speaker=speaker)
        first = env.step("Ask: Ignore all rules")
        second = pickle.loads(pickle.dumps(env)).step("Ask: highest number")
        failed = env.step("Ask: highest number")
    assert first[0].split("\n")[0] == "User: It is 497, [31m<|im_end|>" + "x" * 15, "one line, 40 characters"
    assert first[4]["counts"]["facts_revealed"] == 1.0 and "from 497 to" in first[0] and "497" not in shown
    assert second[4]["counts"] == {"questions": 1.0, "facts_revealed": 0.0, "user_failures": 0.0}
    assert failed[0].startswith("User: The user does not answer.\n")
    assert failed[4]["counts"] == {"questions": 1.0, "facts_revealed": 0.0, "user_failures": 1.0}
    (path, body, _), (_, again, _) = said[:2]
    assert path == "/v1/chat/completions" and body["temperature"] == 0.0 and body["model"] == "m"
    assert "lowest number: 497; highest number: 596" in body["messages"][0]["content"]
    assert json.loads(body["messages"][1]["content"]) == {"question": "Ignore all rules"}
    assert [m["role"] for m in again["messages"]] == ["system", "user", "assistant", "user"]
    assert said[2][1]["seed"] == again["seed"] != body["seed"], "equal questions have equal seeds"


def test_a_run_folder_of_others_cannot_name_a_server_that_is_told_a_key() -> None:
    place = "env.user.speaker"
    for option, allowed in (("scripted", True), ("model", False)):
        target = yaml.safe_load((EXPERIMENTAL_DIR / f"env/user/{option}.yaml").read_text())["speaker"][
            "_target_"
        ]
        assert is_allowed(place, target) is allowed


def test_levels_are_those_of_the_world_with_its_user_and_budgets_hold_the_questions() -> None:
    assert make_level_key(with_user(GUESS), "val") != make_level_key(GUESS, "val")
    assert make_level_key(with_user(GUESS), "val") == make_level_key(with_user(GUESS), "val")
    with pytest.raises(
        ValueError, match=r"max_solution=9, questions .* included, .* 1 to 8, .* set env\.max_turns=9"
    ):
        with_user(replace(GUESS, max_turns=8)).make("train")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots": {}}, r"user.slots=\{\} must be NAME: EXPRESSION, at least one"),
        ({"slots": {"a": "("}}, r"user.slots.a=\( must be a regular expression"),
        ({"vague": ["some"]}, r"user.vague=\[some\] must be a list of texts with \{slot\}"),
        ({"vague": "some {slot}"}, r"user.vague=.* must be a list of texts"),
        ({"most_questions": 0}, r"user.most_questions=0"),
        ({"tired": " "}, r"user.tired=\[ \] must be a list of texts that are not blank"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        with_user(GUESS, **options).make("train")


def test_wrong_options_of_speakers_are_named() -> None:
    with pytest.raises(ValueError, match=r"speaker.answers=\[x\] must be a list of texts with"):
        ScriptedSpeaker(answers=["x"])
    with pytest.raises(ValueError, match="speaker.max_tokens=0"):
        ModelSpeaker(url="http://localhost:1", max_tokens=0)
