"""What a command says while it works."""

from __future__ import annotations

import io
import sys
import warnings

import pytest

from lit_agentrl import screen
from lit_agentrl.cli._running import run_command
from lit_agentrl.config import errors


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_whole_plain_lines_whatever_the_environment_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    screen.announce("word " * 40 + "end")
    assert capsys.readouterr().out == "word " * 40 + "end …\n"


@pytest.mark.parametrize("columns", ["80", "120"])
def test_a_terminal_breaks_between_words(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", columns)
    out, err = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    screen.note("constrained " * 30)
    errors.report("constrained " * 30)
    for line in [*out.getvalue().splitlines(), *err.getvalue().splitlines()]:
        words = set(line.removeprefix("error:").split())
        assert len(line) <= int(columns) and words == {"constrained"}


def test_one_process_speaks_for_a_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    screen.announce("measuring")
    assert capsys.readouterr().out == ""


def test_episodes_are_counted_by_game() -> None:
    assert screen.describe_episodes(["bandit"], 1) == "1 episode of bandit"
    assert screen.describe_episodes(["bandit", "sokoban"], 8) == "8 episodes each of bandit, sokoban"
    assert screen.describe_episodes(list("abcd"), 8) == "8 episodes each of 4 games"


def test_a_terminal_shows_how_far_episodes_are_played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(screen.time, "monotonic", lambda: 10.0)
    out, pipe = Terminal(), io.StringIO()
    try:
        screen.PLAYING.begin(8)
        screen.PLAYING.done, screen.PLAYING.tokens, screen.PLAYING.began = 3, 120, 8.0
        for file in (out, pipe):
            monkeypatch.setattr(sys, "stdout", file)
            with screen.show_playing():
                pass
    finally:
        screen.PLAYING.end()
    assert "3 of 8 episodes, 60 tokens/s" in out.getvalue() and not pipe.getvalue()
    assert screen.PLAYING.describe() == ""


def test_a_pipe_gets_a_line_of_progress_every_thirty_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 10.0, 40.0, 40.0, 40.0, 50.0, 60.0])
    monkeypatch.setattr(screen.time, "monotonic", lambda: next(clock, 99.0))
    try:
        with screen.show_playing():
            screen.PLAYING.begin(5)
            screen.PLAYING.tokens = 400
            for _ in range(4):
                screen.PLAYING.count()
        printed = capsys.readouterr().out
        assert printed == "2 of 5 episodes, 10 tokens/s\n"
        screen.PLAYING.begin(5)
        for _ in range(5):
            screen.PLAYING.count()  # in training, where iterations have lines of their own
        assert not capsys.readouterr().out
    finally:
        screen.PLAYING.end()


def test_a_warning_is_one_line_without_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "formatwarning", None)  # restored after the test
    with run_command([]):
        told = [
            warnings.formatwarning("100% of the replies were cut", UserWarning, "rollout.py", 158),
            warnings.formatwarning("old name", DeprecationWarning, "own.py", 3),
        ]
    assert told == ["warning: 100% of the replies were cut\n", "own.py:3: DeprecationWarning: old name\n"]
