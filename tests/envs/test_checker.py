"""The checker passes every shipped game and catches every way to break one."""

from __future__ import annotations

import functools
import random
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from hydra.utils import instantiate
from omegaconf import OmegaConf

from lit_agentrl.actions import Actions
from lit_agentrl.envs import checker
from lit_agentrl.envs.base import Mixture, Task, TextEnv
from lit_agentrl.envs.checker import ContractError, check_env
from lit_agentrl.envs.games.bandit import Bandit
from lit_agentrl.envs.games.frozen_lake import FrozenLake
from lit_agentrl.envs.games.sokoban import Sokoban
from lit_agentrl.envs.violations import Probe
from lit_agentrl.envs.world import World
from lit_agentrl.paths import CONFIG_DIR
from tests.conftest import NO_LIBRARY, lacks_library, served_game, served_openenv

CONF = CONFIG_DIR / "env"
FILES = sorted(CONF.glob("[!_]*.yaml"))  # _none names no game
PROBLEMS = Path(__file__).parents[2] / "examples/own_data/problems.jsonl"


def test_there_are_files():
    assert {file.stem for file in FILES} >= {"sokoban", "frozen_lake", "bandit", "bandit_reversed", "mixture"}


SWEEP = [pytest.mark.slow, pytest.mark.sweep]
SLOW = {
    "mcp": [pytest.mark.slow],
    "gymnasium": SWEEP,
    "textarena": SWEEP,
    "babyai": SWEEP,
    "textworld": SWEEP,
    "textworld_express": [pytest.mark.slow],
    "scienceworld": [pytest.mark.slow],
}  # a second each, or a process


@pytest.mark.parametrize(
    "file",
    [pytest.param(file, marks=SLOW.get(file.stem, [])) for file in FILES],
    ids=lambda file: file.stem,
)
def test_every_yaml_passes(file):
    cfg = OmegaConf.load(file)
    if lacks_library(file.stem):
        pytest.skip(NO_LIBRARY)
    if file.stem == "mcp":
        cfg.game.command = [sys.executable, "-S", str(Path(__file__).with_name("mcp_raw.py")), "book"]
        cfg.game.path = str(PROBLEMS.parents[1] / "own_mcp/tasks.jsonl")
    if "game" in cfg and OmegaConf.is_missing(cfg.game, "path"):
        cfg.game.path = str(PROBLEMS)
    if "game" in cfg and OmegaConf.is_missing(cfg.game, "url"):
        cfg.game.url = served_openenv() if file.stem == "openenv" else served_game()
    task = instantiate(cfg)
    if isinstance(task, Mixture):
        assert all((CONF / f"{name}.yaml").exists() for name in task.weights)
        return
    assert isinstance(task, Task) and task.name == file.stem
    check_env(
        task.make, episodes=1 if "url" in cfg.game or file.stem == "scienceworld" else 4
    )  # tests/envs/test_remote.py has more of it


@pytest.mark.parametrize("view", ["coordinates", "both"])
@pytest.mark.parametrize("game", [Sokoban, FrozenLake])
def test_other_views_pass(game, view):
    check_env(functools.partial(_make, game, view=view), episodes=3)


def _make(game: type[TextEnv], split: str, **options: object) -> TextEnv:
    return game(split=split, **options)


class FailsWithoutASeed(Bandit):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed + 0, options=options)


class NumpyReward(Bandit):
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, np.float64(reward), *rest


class NoSuccess(Bandit):
    def step(self, action):
        result = super().step(action)
        del result[4]["success"]
        return result


class PartsDoNotAdd(Sokoban):
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward + 0.5, *rest


class CaseSensitive(Sokoban):
    def _match(self, action):
        return action if action in self.action_names() else None


class UnknownCosts(Sokoban):
    def _match(self, action):
        return super()._match(action) or "Up"


class GlobalNoise(FrozenLake):
    def _play(self, action):
        return super()._play(action if random.random() < 0.5 else "Up")


class GlobalNumpyNoise(FrozenLake):
    def _play(self, action):
        return super()._play(action if np.random.random() < 0.5 else "Up")


class HiddenMemory(Sokoban):
    """Remembers the episodes before this one."""

    num_games = 0

    def reset(self, **kwargs):
        self.num_games += 1
        return super().reset(**kwargs)

    def _play(self, action):
        return super()._play("Up" if self.num_games > 2 else action)


class SiblingsDiffer(Sokoban):
    def reset(self, *, seed=None, options=None):
        noise_seed = (options or {}).get("noise_seed", seed)
        return super().reset(seed=None if seed is None else seed + noise_seed, options=options)


class ForgetsNoise(FrozenLake):
    def state_dict(self):
        state = super().state_dict()
        return {key: value for key, value in state.items() if key != "noise"}

    def load_state_dict(self, state):
        super().load_state_dict({**state, "noise": self._noise.bit_generator.state})


class StateIsNotPlain(Sokoban):
    def _get_state(self):
        return super()._get_state() | {"size": np.int64(self._size)}

    def state_key(self):
        return 5 + sum(map(sum, self._boxes))


class DoesNotPickle(Bandit):
    def __init__(self, **options):
        super().__init__(**options)
        self.hook = lambda: None


class SplitBySeed(Bandit):
    """Draws the same pairs in every split, and hides it behind ids made from seed and split."""

    def reset(self, *, seed=None, options=None):
        asked, self.split = self.split, "train"
        try:
            observation, info = super().reset(seed=seed, options=options)
        finally:
            self.split = asked
        return observation, info | {"instance_id": f"{asked}-{seed}"}


class OneInstance(Bandit):
    def _draw_instance(self, seed):
        return super()._draw_instance(0)


class WorstPlay(Bandit):
    def optimal_actions(self, *, horizon):
        best = super().optimal_actions(horizon=horizon)
        return best and [name for name in self.action_names() if name not in best]


class IllegalPlan(Sokoban):
    def optimal_actions(self, *, horizon):
        return ["Jump"]


class PlanTooLong(Sokoban):
    def optimal_actions(self, *, horizon):
        return ["Up"] * (horizon + 1)


class PlaysOn(Bandit):
    def step(self, action):
        self._is_running = True
        return super().step(action)


class RandomIsIllegal(Sokoban):
    def random_action(self, rng):
        return "Diagonal"


class BigStateKey(Bandit):
    def state_key(self):
        return super().state_key() + 2**63


class IntegerId(Bandit):
    def reset(self, **kwargs):
        observation, info = super().reset(**kwargs)
        return observation, info | {"instance_id": 3}


@pytest.mark.parametrize(
    ("game", "rule"),
    [
        (FailsWithoutASeed, "seeding"),
        (NumpyReward, "types"),
        (NoSuccess, "info"),
        (IntegerId, "info"),
        (BigStateKey, "state_key"),
        (PartsDoNotAdd, "rewards"),
        (RandomIsIllegal, "actions"),
        (CaseSensitive, "actions"),
        (PlaysOn, "ending"),
        (UnknownCosts, "unknown action"),
        (GlobalNoise, "determinism"),
        (GlobalNumpyNoise, "determinism"),
        (HiddenMemory, "determinism"),
        (SiblingsDiffer, "siblings"),
        (ForgetsNoise, "state_dict"),
        (StateIsNotPlain, "state_dict"),
        (DoesNotPickle, "pickling"),
        (SplitBySeed, "splits"),
        (OneInstance, "splits"),
        (WorstPlay, "optimal actions"),
        (IllegalPlan, "optimal actions"),
        (PlanTooLong, "optimal actions"),
    ],
)
def test_broken_games_are_caught(game, rule):
    with pytest.raises(ContractError) as caught:
        check_env(functools.partial(_make, game), episodes=6)
    assert rule in {violation.rule for violation in caught.value.violations}
    assert len(caught.value.violations) <= 4, "one fault is not told many times"


class TakesNoGenerator(Bandit):
    def random_action(self):
        return "A"


def test_a_call_that_a_game_does_not_take_is_not_told_as_a_line_of_the_checker():
    with pytest.raises(ContractError, match="random_action.*positional argument") as caught:
        check_env(functools.partial(_make, TakesNoGenerator), episodes=1)
    assert ".py:" not in str(caught.value)


def test_what_is_no_text_game_is_refused():
    with pytest.raises(ValueError, match="not a World"):
        check_env(lambda split: object())


class Echo(World):
    """A world of its own that implements reset and step alone: say the word that was shown."""

    def reset(self, *, seed=None, options=None):
        if seed is None:
            raise ValueError("reset: seed=None is invalid")
        self.word, self.is_over = f"{self.split}{seed}", False
        return self.word, {}

    def step(self, action):
        if self.is_over:
            raise ResetNeeded("it is over")
        self.is_over = True
        return "", float(action == self.word), True, False, {"success": action == self.word}


class Unsplit(Echo):
    """The same word in every split, without an id that would tell."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.word = str(seed)
        return self.word, {}


def test_equal_openings_of_train_and_test_are_told_where_no_id_tells(caplog):
    check_env(functools.partial(_make, Unsplit), episodes=6)
    assert "seeds 0 to 5 begin in test as they begin in train" in caplog.text


def test_a_world_may_say_nothing_about_itself(caplog):
    check_env(functools.partial(_make, Echo))
    assert not caplog.text
    env = Echo()
    assert (env.rules, env.system_text, env.state_key(), env.actions()) == ("", None, 0, Actions("text"))
    assert env.random_action(np.random.default_rng(0)) is None and env.optimal_actions(horizon=1) is None
    with pytest.raises(NotImplementedError, match="Echo has no state"):
        env.state_dict()


@pytest.mark.parametrize(("disturbed", "passes"), [(checker._ATTEMPTS - 1, True), (checker._ATTEMPTS, False)])
def test_draws_of_other_threads_are_not_the_games(
    disturbed: int, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    play, plays = checker.play, iter(range(99))

    def played(*arguments: Any) -> Any:
        if next(plays) < disturbed:
            other = threading.Thread(target=random.random)
            other.start()
            other.join()
        return play(*arguments)

    monkeypatch.setattr(checker, "play", played)
    probe = Probe(lambda split: Sokoban(split=split))
    checker._run(checker._check_determinism, probe, 1)
    told = ["the game draws from a global random generator"]
    assert [violation.message for violation in probe.violations] == ([] if passes else told)


class ManyFaults(World):
    """Breaks rules of every kind, and can be asked on after each."""

    def action_names(self):
        return ["Up", "up"]

    def state_key(self):
        return "a"

    def reset(self, *, seed=None):
        return "x", {"instance_id": 3}

    def step(self, action):
        print("played", action)
        return "x", 1, 1, False, {}


def test_all_broken_rules_are_listed_at_once_each_with_its_remedy(capsys):
    with pytest.raises(ContractError) as caught:
        check_env(functools.partial(_make, ManyFaults), episodes=4)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{len(lines) - 1} rules of the contract are broken"
    for line in (
        "rule 'seeding' is broken: reset takes no options, and so cannot repeat an episode; write reset(self, *, ",
        "rule 'types' is broken: the reward is int 1, not a Python float; return float(reward)",
        "rule 'types' is broken: terminated is int 1; return a bool: bool(value)",
        "rule 'info' is broken: info at the end is a dict of 0, {}; say whether the game is solved: success",
        "rule 'ending' is broken: step after the end went on; raise gymnasium.error.ResetNeeded where the game is over",
        "rule 'info' is broken: instance_id is int 3; make it a str, or leave it out",
        "rule 'state_key' is broken: state_key() is str 'a', no int of 63 bits; return lit_agentrl.envs.splits.stable_",
        "rule 'actions' is broken: names clash: a list of 2, ['Up', 'up']; make action_names differ in more than their",
        "rule 'unknown action' is broken: step('no such action') gave info a dict of 0, {}; mark it: info['action_is_",
        "rule 'splits' is broken: every seed of train gives the same instance; let reset choose the task by its seed",
        "rule 'output' is broken: the game prints to stdout: str 'played UP\\nplayed",
    ):
        assert [each for each in lines if each.startswith(line)], line
    assert all("; " in line for line in lines[1:]) and capsys.readouterr().out == ""


class Odd(Bandit):
    """A bandit with one fault."""

    def __init__(self, *, split="train", fault=""):
        super().__init__(split=split)
        self.fault = fault

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed, options=options)
        if self.fault == "raise":
            raise RuntimeError("no display\nfound")
        return {"old gym": observation, "dict": ({"text": observation}, info)}.get(
            self.fault, (observation, info)
        )

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        info.pop("reward_parts")
        reward = {"nan": float("nan"), "str": "good"}.get(self.fault, reward)
        whole = (observation, reward, terminated, truncated, None if self.fault == "no info" else info)
        return whole[:4] if self.fault == "four" else whole


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ("old gym", "reset gave str .*; return .observation, info."),
        ("dict", "the observation of reset is a dict of 1, {'text': .*; return a str: what the policy reads"),
        (
            "raise",
            r"reset\(seed=0.*\) raised RuntimeError: no display found \(test_checker.py:\d+\); mend reset for",
        ),
        ("nan", "the reward is nan; return a finite number"),
        ("str", "the reward is str 'good', not a Python float; return float\\(reward\\)"),
        ("no info", "the info of step is None; return a dict"),
        ("four", "step gave a tuple of 4, .*; return .observation, reward, terminated, truncated, info."),
    ],
)
def test_one_fault_is_one_line_of_part_value_and_remedy(fault, line):
    with pytest.raises(ContractError, match=line) as caught:
        check_env(functools.partial(_make, Odd, fault=fault), episodes=2)
    assert len(caught.value.violations) == 1 and "\n" not in str(caught.value)


def test_a_game_that_keeps_the_contract_gets_one_line_of_what_was_checked(capsys):
    check_env(lambda split: Bandit(split=split), episodes=2)
    said = capsys.readouterr().out
    assert said.startswith("the game keeps the contract: reset, step, ") and said.count("\n") == 1
    assert said.endswith("splits, optimal actions; 2 episodes played for each\n")

    class Plain(Bandit):
        has_state = False

        def optimal_actions(self, *, horizon):
            return None

    check_env(lambda split: Plain(split=split), episodes=1)
    assert capsys.readouterr().out.endswith(
        "splits; 1 episode played for each; not checked: state_dict (has_state is false), pickling (has_state is "
        "false), optimal actions (it gives no best play)\n"
    )


def test_a_world_that_cannot_be_made_is_told_how():
    with pytest.raises(
        ContractError, match="abstract method.*; write reset and step, and let __init__ take split="
    ):
        check_env(lambda split: World(split=split))
