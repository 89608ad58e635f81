"""Formats of files (ShareGPT, Alpaca, JSON, CSV, verl), names of columns, and what a run says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from lit_agentrl.data.demonstrations import Demonstrations
from lit_agentrl.data.kinds import Kind
from lit_agentrl.data.pairs import Pairs
from lit_agentrl.data.ranked import Ranked
from lit_agentrl.data.reading import read
from lit_agentrl.data.recordings import Recordings
from lit_agentrl.data.unpaired import Unpaired
from lit_agentrl.runs import training
from tests.data.test_reading import learnt, student

USER, REPLY, OTHER = ({"role": role, "content": text} for role, text in
                      (("user", "2 + 3 ?"), ("assistant", "five"), ("assistant", "six")))  # fmt: skip
RULES = {"role": "system", "content": "Be brief."}
HUMAN, GPT, ROBOT = ({"from": role, "value": text} for role, text in
                     (("human", "2 + 3 ?"), ("gpt", "five"), ("gpt", "six")))  # fmt: skip
SHARED = {"from": "system", "value": "Be brief."}


def load(kind: type[Kind], path: Path, **options: Any) -> Recordings:
    return read(kind(path=str(path), batch=1, **options), student(400), seed=0)


def write(path: Path, rows: Any) -> Path:
    is_text = isinstance(rows, str)
    path.write_text(rows if is_text else "\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("kind", "row", "plain", "name"),
    [
        (Demonstrations, {"conversations": [SHARED, HUMAN, GPT]}, {"messages": [RULES, USER, REPLY]}, "ShareGPT"),
        (Demonstrations, {"conversations": [HUMAN, GPT], "system": "Be brief."}, {"messages": [RULES, USER, REPLY]},
         "ShareGPT"),
        (Demonstrations, {"messages": [HUMAN, GPT]}, {"messages": [USER, REPLY]}, "ShareGPT"),
        (Demonstrations, {"conversations": [USER, REPLY]}, {"messages": [USER, REPLY]}, "messages"),
        (Pairs, {"conversations": [HUMAN], "chosen": GPT, "rejected": ROBOT},
         {"prompt": [USER], "chosen": [REPLY], "rejected": [OTHER]}, "ShareGPT"),
        (Demonstrations, {"instruction": "Add.", "input": "2 + 3", "output": "five"},
         {"prompt": "Add.\n2 + 3", "completion": "five"}, "Alpaca"),
        (Demonstrations, {"instruction": "2 + 3 ?", "input": "", "output": "five", "system": "Be brief."},
         {"prompt": [RULES, USER], "completion": "five"}, "Alpaca"),
        (Demonstrations, {"instruction": "sure?", "output": "yes", "history": [["2 + 3 ?", "five"]]},
         {"prompt": [USER, REPLY, {"role": "user", "content": "sure?"}], "completion": "yes"}, "Alpaca"),
        (Pairs, {"instruction": "2 + 3 ?", "chosen": "five", "rejected": "six"},
         {"prompt": [USER], "chosen": "five", "rejected": "six"}, "Alpaca"),
        (Unpaired, {"prompt": "2 + 3 ?", "response": "five", "system_prompt": "Be brief.", "label": 1},
         {"prompt": [RULES, USER], "completion": "five", "label": True}, "texts"),
    ],
)  # fmt: skip
def test_a_format_is_read_as_plain_rows_are(
    kind: type[Kind], row: Any, plain: Any, name: str, tmp_path: Path
) -> None:
    found = load(kind, write(tmp_path / "a.jsonl", [row]))
    assert repr(found.groups) == repr(load(kind, write(tmp_path / "b.jsonl", [plain])).groups)
    assert found.notes[0].startswith(f"data: read 1 row as {name}: columns ") and len(found.notes) == 1
    assert ("message keys" in found.notes[0]) == (name in ("ShareGPT", "messages"))


@pytest.mark.parametrize(
    "text",
    ["{array}", "\ufeff \n{array}\n", "{line}\n{line}\n", '[\n{row}\n,\n{row}]'],
)  # fmt: skip
def test_an_array_is_read_as_lines_are(text: str, tmp_path: Path) -> None:
    rows = [{"messages": [USER, REPLY]}] * 2
    line = json.dumps(rows[0])
    text = text.replace("{array}", json.dumps(rows)).replace("{line}", line).replace("{row}", line)
    found = load(Demonstrations, write(tmp_path / "a.json", text))
    assert repr(found.groups) == repr(load(Demonstrations, write(tmp_path / "b.jsonl", rows)).groups)


def test_empty_cells_are_not_counted_as_unused(tmp_path: Path) -> None:
    row = {"instruction": "2 + 3 ?", "output": "five", "input": "", "history": [], "tags": {}, "note": "x"}
    found = load(Demonstrations, write(tmp_path / "a.jsonl", [row]))
    assert found.notes[1:] == ("data: not used: columns note (1 row)",)


def test_csv_is_read_as_jsonl_is(tmp_path: Path) -> None:
    text = 'prompt,chosen,rejected,margin,note\r\n"a, ""b""\nc",five,six,2.5,\r\n2 + 3 ?,"five",six,1,x\r\n'
    rows = [{"prompt": 'a, "b"\nc', "chosen": "five", "rejected": "six", "margin": 2.5},
            {"prompt": "2 + 3 ?", "chosen": "five", "rejected": "six", "margin": 1}]  # fmt: skip
    found = load(Pairs, write(tmp_path / "a.csv", text))
    assert repr(found.groups) == repr(load(Pairs, write(tmp_path / "b.jsonl", rows)).groups)
    assert found.notes[1:] == ("data: not used: columns note (1 row)",)
    quoted = '"' + json.dumps([USER, REPLY]).replace('"', '""') + '"'
    found = load(Demonstrations, write(tmp_path / "c.csv", f"messages\n{quoted}\n"))
    assert repr(found.groups) == repr(
        load(Demonstrations, write(tmp_path / "d.jsonl", [{"messages": [USER, REPLY]}])).groups
    )
    found = load(Unpaired, write(tmp_path / "e.csv", "prompt,completion,label\n[1] ?,one,true\nb,two,0\n"))
    assert [group[0].training_return for group in found.groups] == [1.0, 0.0]
    listed = 'prompt,completions,scores\nb,"[""one"", ""two""]","[1, 0]"\n'
    assert [e.training_return for e in load(Ranked, write(tmp_path / "f.csv", listed)).groups[0]] == [
        1.0,
        0.0,
    ]


def test_columns_are_read_under_other_names(tmp_path: Path) -> None:
    row = {"question": "2 + 3 ?", "reward_model": {"ground_truth": "five"}, "better": "five", "worse": ["six"],
           "messages": [USER, OTHER], "prompt": "no"}  # fmt: skip
    path, plain = write(tmp_path / "a.jsonl", [row]), tmp_path / "b.jsonl"
    found = load(
        Demonstrations, path, columns={"prompt": "question", "completion": "reward_model.ground_truth"}
    )
    write(plain, [{"prompt": "2 + 3 ?", "completion": "five"}])
    assert repr(found.groups) == repr(load(Demonstrations, plain).groups)
    assert found.notes == (
        "data: read 1 row as texts: columns question, reward_model.ground_truth",
        "data: not used: columns better (1 row), messages (1 row), prompt (1 row), worse (1 row)",
    )
    names = {"prompt": "question", "chosen": "better", "rejected": "worse.0"}
    pair = load(Pairs, path, columns=names).groups
    write(plain, [{"prompt": "2 + 3 ?", "chosen": "five", "rejected": "six"}])
    assert repr(pair) == repr(load(Pairs, plain).groups)
    swapped = {"chosen": "rejected", "rejected": "chosen"}
    assert repr(load(Pairs, plain, columns=swapped).groups[0][0].opening) == repr(pair[0][0].opening)
    with pytest.raises(ValueError) as raised:
        load(Pairs, path, columns=names | {"rejected": "worst"})
    assert (
        f"columns.rejected=worst is in no row of {path} (there are question, reward_model, better, worse, "
        "messages, prompt); name one of them" in str(raised.value)
    )


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (
            {"question": "prompt"},
            "columns={question: …}: no column question is read; valid: messages, prompt,",
        ),
        ({"prompt": 3}, "columns.prompt=3 must be the name of a column"),
        ({"prompt": " "}, "columns.prompt="),
        (["prompt"], "must be names by name, as in {prompt: question}"),
    ],
)
def test_names_of_columns_are_checked(columns: Any, said: str) -> None:
    with pytest.raises(ValueError) as raised:
        Pairs(path="a.jsonl", columns=columns)
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_what_is_used_and_what_is_not_is_said_in_two_lines(tmp_path: Path) -> None:
    asked = {**USER, "name": "Al", "weight": 0, "train": True}
    rows = [{"id": 1, "messages": [asked, {**REPLY, "weight": 1, "reward": 3}]},
            {"id": 2, "meta": {"a": 1}, "messages": [USER, REPLY], "source": None}]  # fmt: skip
    assert load(Demonstrations, write(tmp_path / "a.jsonl", rows)).notes == (
        "data: read 2 rows as messages: columns messages; message keys content, role, weight",
        "data: not used: columns id (2 rows), meta (1 row); message keys name (1 row), reward (1 row), train (1 row)",
    )


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_a_text_is_read_as_messages_where_it_spells_them(suffix: str, tmp_path: Path) -> None:
    def save(name: str, prompt: str, completion: str) -> Path:
        cells = [f'"{text.replace(chr(34), chr(34) * 2)}"' for text in (prompt, completion)]
        is_csv = suffix == "csv"
        table = "prompt,completion\n" + ",".join(cells)
        return write(tmp_path / name, table if is_csv else [{"prompt": prompt, "completion": completion}])

    found = load(Demonstrations, save(f"a.{suffix}", json.dumps([RULES, USER]), "five"))
    plain = write(tmp_path / "b.jsonl", [{"prompt": [RULES, USER], "completion": "five"}])
    assert repr(found.groups) == repr(load(Demonstrations, plain).groups)
    for answer in ('[{"a": 1}]', "[[1]]", "[]"):  # answers of JSON
        [[episode]] = load(Demonstrations, save(f"c.{suffix}", "2 + 3 ?", answer)).groups
        assert "".join(learnt(episode)[0].split()).startswith("".join(answer.split()))


def test_a_prompt_that_texts_repeat_is_told(tmp_path: Path) -> None:
    prompt = "Human: 2 + 3 ?"
    rows = [{"prompt": prompt, "chosen": f"{prompt} five", "rejected": "six"},
            {"prompt": prompt, "chosen": "five", "rejected": "six"},
            {"prompt": "five", "chosen": "five eggs", "rejected": "six"}]  # fmt: skip
    path = write(tmp_path / "a.jsonl", rows)
    assert load(Pairs, path).notes[1:] == (
        f"data: answers of 1 of 3 rows begin with the text of the prompt, which is learnt; the first: {path} line 1; "
        "take it out of the answers",
    )


def test_how_rows_were_read_is_no_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said: list[str] = []
    monkeypatch.setattr(training.screen, "note", said.append)
    notes = load(Demonstrations, write(tmp_path / "a.jsonl", [{"messages": [USER, REPLY], "id": 1}])).notes
    training.print_notes(OmegaConf.create({}), "", notes)
    assert [line.partition(":")[0] for line in said] == ["data", "warning"]
