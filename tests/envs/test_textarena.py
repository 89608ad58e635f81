"""Games of TextArena: equal in every process, played to their end by the oracle, with nobody's generator touched."""

from __future__ import annotations

import sys

import pytest

from lit_agentrl.envs.adapters.textarena import TextArena
from lit_agentrl.envs.adapters.textarena_games import GAMES
from lit_agentrl.envs.checker import check_env
from tests.conftest import ROOT, leaves_random_alone, thinned
from tests.envs.processes import printed_alike

NONSENSE = [
    "",
    "[",
    "é\0",
    "[" + "9" * 5000 + "]",
    "9" * 900,
    "[-1 0]",
    "[A C][C A]",
    "[up]" * 200,
    "[0 0] [9 9 9]",
]


@pytest.mark.slow
@pytest.mark.parametrize("id", thinned(sorted(GAMES), one_in=12))
def test_a_game_keeps_the_contract_and_is_won_by_best_play(
    id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check_env(lambda split: TextArena(id=id, split=split), episodes=3)
    capsys.readouterr()  # the line of check_env
    env = TextArena(id=id, partial=False)

    def play() -> None:
        for seed in range(4):
            env.reset(seed=seed)
            assert env.optimal_actions(horizon=1) is not None or GAMES[id].best is None
            over = False
            while not over and (plan := env.optimal_actions(horizon=999)):
                _, points, over, _, info = env.step(plan[0])
            assert GAMES[id].best is None or (over and info["success"] and points == 1.0)
        for text in NONSENSE:
            env.reset(seed=1)
            told, points, over, _, info = env.step(text)
            assert told and points == 0.0 and not info["success"], text[:20]

    assert leaves_random_alone(play) and capsys.readouterr().out == ""


def test_a_game_played_by_hand() -> None:
    env = TextArena(id="Mastermind-v0")
    assert env.reset(seed=2)[0] == "The game begins." and "Mastermind" in env.system_text
    told, points, over, _, _ = env.step("1 2 3 4")
    assert "1 2 3 4" in told and "black" in told and (points, over) == (0.0, False)
    assert "invalid move" in env.step("why not")[0]
    told, _, over, _, info = env.step("no")
    assert over and not info["success"] and told.startswith("Invalid Move: ")


@pytest.mark.parametrize("id", ["FifteenPuzzle-v0", "FrozenLake-v0-raw", "Chess-v0", "os:x", 3])
def test_what_is_not_on_the_list_is_told_in_one_line(id: str) -> None:
    with pytest.raises(ValueError, match="^id=.* must be one of the games that docs/adapters.md lists$"):
        TextArena(id=id)


def test_the_page_lists_the_games() -> None:
    page = (
        (ROOT / "docs/adapters.md")
        .read_text(encoding="utf-8")
        .partition("## textarena")[2]
        .partition("\n## ")[0]
    )
    for id in GAMES:
        name, _, variant = id.partition("-v0")
        row = next(line for line in page.splitlines() if f"`{name}-v0`" in line)
        assert not variant or f"`{variant}`" in row, id


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textarena", None)
    with pytest.raises(
        ValueError, match=r"^this game needs textarena .*pip install 'lit-agentrl\[textarena\]'$"
    ):
        TextArena()


@pytest.mark.slow
@pytest.mark.sweep
def test_games_are_the_same_in_two_processes() -> None:
    script = (
        "from lit_agentrl.envs.adapters.textarena import TextArena as T, GAMES\n"
        "for id in GAMES:\n"
        "    env = T(id=id, split='val')\n"
        "    for seed in range(3): print(id, env.reset(seed=seed), env.step('[up]'), env._get_content())\n"
    )
    assert len(printed_alike(script)) > 30_000
