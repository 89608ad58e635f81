"""Chance and oracle: measured, shipped, looked up."""

from __future__ import annotations

from functools import partial

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from lit_agentrl.cli import levels as command
from lit_agentrl.cli.levels import main
from lit_agentrl.envs import levels
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.games.bandit import Bandit
from lit_agentrl.envs.games.sokoban import Sokoban
from lit_agentrl.envs.levels import Levels, find_levels, make_level_key, measure
from lit_agentrl.paths import CONFIG_DIR

CONF = CONFIG_DIR / "env"
NAMES = ("sokoban", "frozen_lake", "bandit", "bandit_reversed")


def load(name: str) -> Task:
    return instantiate(OmegaConf.load(CONF / f"{name}.yaml"))


def bandit(**options: object) -> Task:
    return Task("bandit", partial(Bandit, **options), max_turns=1, max_actions_per_turn=1, max_actions=1)


def test_bandit_levels_are_the_known_means():
    found = measure(bandit(payoff="expected"), "train", episodes=600, seed=0)
    assert (found.oracle_success, found.oracle_return) == (1.0, pytest.approx(0.25))
    assert found.chance_success == pytest.approx(0.5, abs=0.06)
    assert found.chance_return == pytest.approx(0.15 + 0.1 * found.chance_success)
    assert found.episodes == 600


def test_measuring_twice_gives_the_same():
    assert measure(load("sokoban"), "val", 20, 3) == measure(load("sokoban"), "val", 20, 3)


def test_play_stops_at_the_action_budget():
    game = partial(Sokoban, min_solution=2, max_solution=2)
    found = measure(Task("sokoban", game, max_turns=1, max_actions_per_turn=2), "train", episodes=200, seed=0)
    assert found.oracle_success == 1.0 and found.oracle_return == pytest.approx(11 - 0.2)
    # Two steps at -0.1 whatever happens; about one random pair in sixteen is the solution.
    assert 0 < found.chance_success < 0.2
    assert found.chance_return == pytest.approx(-0.2 + 11 * found.chance_success)


@pytest.mark.parametrize("split", ["train", "val", "test"])
@pytest.mark.parametrize("name", NAMES)
def test_shipped_levels_belong_to_the_shipped_games(name, split):
    shipped = find_levels(load(name), split)
    assert shipped.episodes >= 2000 and shipped.chance_success < shipped.oracle_success


@pytest.mark.parametrize("name", NAMES)
def test_shipped_levels_are_what_the_games_give_now(name):
    shipped, now = find_levels(load(name), "test"), measure(load(name), "test", 150, seed=50_000)
    # 4 standard errors of 150 episodes.
    for level in ("chance_success", "oracle_success"):
        rate = getattr(shipped, level)
        assert getattr(now, level) == pytest.approx(rate, abs=4 * (rate * (1 - rate) / 150) ** 0.5 + 1e-9)


def test_what_nobody_measured_is_unknown_and_nothing_is_played(monkeypatch):
    monkeypatch.setattr(Bandit, "reset", lambda *args, **kwargs: pytest.fail("played"))
    assert find_levels(bandit(payoff="expected", low_reward=0.2), "val") == Levels()


def test_key_sees_options_limits_split_and_not_the_spelling_of_defaults():
    keys = {
        make_level_key(bandit(), "train"),
        make_level_key(bandit(), "val"),
        make_level_key(bandit(payoff="expected"), "train"),
        make_level_key(Task("bandit", Bandit), "train"),
        make_level_key(Task("other", Bandit), "train"),
    }
    assert len(keys) == 5
    assert make_level_key(bandit(payoff="sampled"), "train") == make_level_key(bandit(), "train")
    assert make_level_key(Task("bandit", Bandit), "train") == make_level_key(
        Task("bandit", partial(Bandit)), "train"
    )


class NoOracle(Bandit):
    def optimal_actions(self, *, horizon):
        return None


def test_a_level_that_a_game_does_not_say_is_unknown():
    found = measure(Task("bandit", NoOracle), "train", episodes=50, seed=0)
    assert found.oracle_success is None and found.chance_success > 0
    monkey = type("Silent", (NoOracle,), {"random_action": lambda self, rng: None})
    assert measure(Task("bandit", monkey), "train", episodes=5, seed=0) == Levels(episodes=5)


def test_the_command_says_why_a_level_stays_unknown(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(levels, "locate_levels", lambda task: tmp_path / "levels.json")
    command.measure_game(Task("bandit", NoOracle), 2, 0, is_shipped=False)
    told = capsys.readouterr().err
    assert "bandit: oracle stays unknown, since the game's optimal_actions(horizon) returns None\n" in told
    assert "chance" not in told


@pytest.mark.slow
def test_the_command_writes_levels_beside_the_game(tmp_path, monkeypatch, capsys):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "levelled.py").write_text(
        "from lit_agentrl.envs.games.bandit import Bandit\nclass Mine(Bandit):\n    pass\n"
    )
    (tmp_path / "env").mkdir()
    config = OmegaConf.load(CONF / "bandit.yaml")
    config.game._target_, config.name = "levelled.Mine", "mine"
    OmegaConf.save(config, tmp_path / "env" / "mine.yaml")
    monkeypatch.syspath_prepend(str(tmp_path / "own"))
    given = ["--config-dir", str(tmp_path), "env=mine", "--episodes", "40"]
    for more in ([], ["env.game.low_reward=0.1"]):
        main([*given, *more])
    found = find_levels(instantiate(config), "val")
    assert found.episodes == 40 and found.oracle_success == 1.0
    assert len(levels.read_levels(tmp_path / "own" / "levels.json")) == 6
    assert "| mine | test |" in capsys.readouterr().out
    (tmp_path / "own" / "levels.json").write_text("[]")
    with pytest.raises(ValueError, match="is no file of levels; write it again with lit-agentrl levels"):
        find_levels(instantiate(config), "val")


@pytest.mark.slow
def test_levels_of_a_shipped_game_are_written_outside_of_the_package(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_PERIOD_S", 0.0)
    shipped = levels.locate_levels(bandit())
    before = shipped.read_bytes()
    main(["env=bandit", "env.game.low_reward=0.12", "--episodes", "5"])
    assert shipped.read_bytes() == before and levels.MEASURED.exists()
    found = find_levels(bandit(low_reward=0.12), "val")
    assert found.episodes == 5 and found.oracle_success == 1.0
    printed = capsys.readouterr()
    assert "bandit val: 3 of 5 episodes of random play\n" in printed.err and "of" not in printed.out
    assert "bandit test: 5 of 5 episodes of best play\nwrote outputs/levels.json" in printed.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["env=dataset"], "env.game.path has no value; set env.game.path="),
        (["env=sokoban", "env.game.size=2"], "env.game.size=2 must be a whole number >= 5"),
    ],
)
def test_the_command_refuses_before_it_prints(options, said, capsys):
    with pytest.raises(SystemExit):
        main(options)
    printed = capsys.readouterr()
    assert printed.err.startswith(f"error: {said}") and not printed.out
