"""`lit-agentrl data show`: rows as the model reads them, what is learnt of them, and what is not used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lit_agentrl.cli.data import main, print_data
from lit_agentrl.offline.showing import ShownData, ShownRow, guess_kind
from tests.commands import Refused


def write(folder: Path, *rows: object) -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.slow
def test_rows_are_shown_with_what_is_learnt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    talk = [{"role": "user", "content": "P", "id": 1}, {"role": "assistant", "content": "Up"}]
    path = write(
        tmp_path, {"messages": talk, "source": "web"}, {"messages": talk, "source": None}, {"messages": 3}
    )
    main(["show", path, "data.max_bad_share=0.5", "--rows", "1"])
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert lines[0].startswith(
        "data=demonstrations: 2 groups, 2 episodes, 2 rows; 2 replies are learnt, 4 of"
    )
    assert "data: read 2 rows as messages: columns messages; message keys content, role" in lines
    assert "data: not used: columns source (1 row); message keys id (2 rows)" in lines
    assert "data: left out 1 of 3 rows (1 no_messages)" in shown
    assert shown.count("---") == 1 and "<|assistant|>[[Up <|end|>]]" in shown


def test_both_sides_of_a_pair_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, {"prompt": "P", "chosen": "Up", "rejected": "Down"})
    assert guess_kind(Path(path)) == "pairs"
    main(["show", path])
    _, chosen, rejected = capsys.readouterr().out.split("--- ")
    assert chosen.startswith("1 of 1, chosen\n") and "[[Up <|end|>]]" in chosen
    assert rejected.startswith("1 of 1, rejected\n") and "[[Down <|end|>]]" in rejected


@pytest.mark.parametrize(
    "columns, kind",
    [("prompt completions scores", "ranked"), ("messages labels", "stepwise"), ("messages label", "unpaired"),
     ("prompt completion", "demonstrations")],
)  # fmt: skip
def test_the_kind_is_that_of_the_columns(tmp_path: Path, columns: str, kind: str) -> None:
    assert guess_kind(Path(write(tmp_path, dict.fromkeys(columns.split(" "), 1)))) == kind


def test_a_row_cannot_act_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_data(ShownData(["a\x1b[2J"], [ShownRow("one", [("[red]b\x1b]0;c\x07", True)])]))
    assert capsys.readouterr().out == "a\\x1b[2J\n\n--- one\n[[[red]b\\x1b]0;c\\x07]]\n"


def test_lines_are_not_broken_where_no_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    long = "word " * 100 + "end"
    print_data(ShownData([long], [ShownRow("one", [(long, False)])]))
    assert capsys.readouterr().out == f"{long}\n\n--- one\n{long}\n"


@pytest.mark.slow
def test_what_is_wrong_is_one_line(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "d.txt").write_text("a")
    assert "write data show FILE" in refused(f"look {tmp_path}", main)
    assert "--rows=0 must be a whole number" in refused(f"show {tmp_path} --rows 0", main)
    assert "path=missing.jsonl is not there" in refused("show missing.jsonl", main)
    assert "d.txt must be a folder" in refused(f"show {tmp_path}/d.txt", main)
    assert "line 1" in refused(f"show {write(tmp_path, {'messages': 3})}", main)
