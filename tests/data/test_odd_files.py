"""Odd files: each is one clear line, or right."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from lit_agentrl.data.demonstrations import Demonstrations
from lit_agentrl.data.kinds import Kind
from lit_agentrl.data.pairs import Pairs
from lit_agentrl.data.reading import read
from lit_agentrl.data.unpaired import Unpaired
from tests.data.test_reading import student

ROW = '{"prompt": "a", "completion": "b"}'
MORE = ROW[:-1] + ", "  # a row that goes on
REPLY = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", '


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", f"[{ROW}, {ROW[:-5]}", "a.json row 2 is no JSON ("),
        ("a.json", f"[{ROW}", "a.json: the array is wrong or cut after row 1 (character 36 of the file)"),
        ("a.json", f"[{ROW}{ROW}]", "a.json: the array is wrong or cut after row 1"),
        ("a.json", f"[{ROW}] {ROW}", "a.json: text follows the array; keep one array, or write JSONL"),
        ("a.json", '[{"a": ' + "[" * 100_000, "a.json row 1 is nested too deeply"),
        ("a.json", f'[{MORE}"n": 1{"0" * 9000}}}, {ROW}]', "a.json row 1: a number has 9001 digits"),
        ("a.json", f'[{ROW}, {MORE}"prompt": "c"}}, {ROW}]', "a.json row 2: column prompt occurs twice"),
        ("a.json", f"[{ROW}, 1]", "a.json row 2: it is not an object"),
        ("a.json", "[]", "none of its 0 rows makes a group"),
        ("a.json", f"[{ROW}]".encode("utf-16"), "a.json is not UTF-8 (byte 1); save the file as UTF-8"),
        ("a.jsonl", ROW.encode("utf-16-le"), "line 1: it contains zero bytes, as UTF-16 does"),
        ("a.jsonl", "zip", "a.jsonl is compressed; unpack it, and name the file inside"),
        ("a.json", b"\x1f\x8b\x08\0", "a.json is compressed; unpack it"),
        ("a.jsonl", b"\xff\xfe", "line 1: it is not UTF-8"),
        ("a.jsonl.gz", b"\x1f\x8b\x08\0", ".csv or .parquet; unpack it, and name the file inside"),
        ("a.jsonl", f"[{ROW}]", "line 1: it is an array, and not an object; let the name of a file of one array"),
        ("a.jsonl", REPLY[:-2].replace('"a"', "5") + "}]}", "has the content '5', which is no text; write a text"),
        ("folder", "folder", "folder is a folder of files; name the files, such as 'data.path=["),
        ("a.jsonl", MORE + '"tools": [{"name": "\\ud800"}]}', "column tools holds half a character"),
        ("a.jsonl", MORE + '"system": "\\ud800"}', "column system holds half a character"),
        ("a.jsonl", REPLY + '"thinking": "\\ud800"}]}', "column messages holds half a character"),
        ("a.jsonl", REPLY + '"weight": [1]}]}', "weight of a message is '[1]'; write 1 (learnt)"),
        ("a.jsonl", '{"instruction": ["a"], "output": "b"}', "column instruction is"),
        ("a.jsonl", '{"instruction": " ", "output": "b"}', "columns instruction and input are blank"),
        ("a.jsonl", '{"instruction": "a", "output": "b", "history": [["c"]]}', "column history must be a list"),
        ("a.csv", "prompt,completion\na,b\na\n", "line 3: it has 1 fields, and the header has 2"),
        ("a.csv", "prompt,completion\na,b,c\n", "line 2: it has 3 fields, and the header has 2"),
        ("a.csv", "prompt,completion\na\0,b\n", "a.csv contains zero bytes"),
        ("a.csv", 'prompt,completion\na,"b\n', "a.csv line 2 is no CSV (unexpected end of data)"),
        ("a.csv", "prompt, prompt\na,b\n", "a.csv: column 'prompt' occurs twice in the header"),
        ("a.csv", "prompt;completion\na;b\n", "'prompt;completion' has ';' between names; separate the columns with"),
        ("a.jsonl", b"PAR1\0", "a.jsonl is a Parquet file; let its name end in .parquet"),
        ("a.jsonl", '{"messages": null}', "line 1: column messages is empty; fill it in"),
        ("a.jsonl", '{"prompt": null, "completion": "b"}', "line 1: column prompt is empty; fill it in"),
        ("a.jsonl", '{"prompt": "a", "chosen": "b", "rejected": "c"}', "; data=pairs reads chosen and rejected"),
        ("a.csv", "prompt,completion\na,\n", "line 2: column completion is empty; fill it in"),
        ("a.csv", "prompt,completion\n\u00e9,b\n".encode("latin-1"), "a.csv is not UTF-8 (byte 19)"),
        ("a.csv", "", "none of its 0 rows makes a group"),
        ("a.parquet", ROW, "cannot be read as Parquet (Parquet magic bytes not found"),
        ("a.parquet", b"", "cannot be read as Parquet (Parquet file size is 0 bytes)"),
        ("a.json", f'{{"data": [{ROW}], "test": [{ROW}]}}', "neither messages nor completion (there are data, test)"),
        ("a.csv", "prompt,completion\n\"[{'role': 'user', 'content': 'a'}]\",b\n", "column prompt spells messages as"),
        ("a.jsonl", '{"messages": "[{\'content\': 1}]"}', "column messages spells messages as Python prints them"),
        ("a.jsonl", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a pointer of Git LFS, and not the"),
        ("a.parquet", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "fetch them with git lfs pull"),
        ("a.json", '{"prompt": ["a", "c"], "completion": ["b", "d"]}', "a.json holds a list for each column; write an"),
        ("a.json", '{"prompt": {"0": "a"}, "completion": {"0": "b"}}', "(in pandas: to_json with orient='records')"),
        ("a.csv", '"prompt";"completion"\n"a";"b"', "has ';' between names; separate the columns with commas"),
        ("a" * 300 + ".jsonl", "none", ".jsonl is not there; looked for"),
        ("a.jsonl", "link", "a.jsonl is not there; looked for"),
        ("a.jsonl", "pipe", "a.jsonl must be a folder of lit-agentrl collect, or a file that ends in .jsonl, .json"),
    ],
)  # fmt: skip
def test_an_odd_file_is_one_line(name: str, content: str | bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if path.suffix == ".parquet":
        pytest.importorskip("datasets")
    if content == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a", "b")
    elif content == "link":
        path.symlink_to(tmp_path / "nowhere")
    elif content == "folder":
        path.mkdir()
        (path / "a.jsonl").write_text(ROW)
    elif content == "pipe":
        os.mkfifo(path)
    elif content != "none":
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ValueError) as raised:
        read(Demonstrations(path=str(path), batch=1), student(), seed=0)
    assert said in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "content", "count"),
    [
        ("a.json", "\ufeff" + json.dumps(json.loads(ROW), indent=1), 1),  # a single object
        ("a.json", f"[{ROW}, {ROW},]", 2),
        ("a.JSONL", f"{ROW}\n{ROW}", 2),
        (
            "a.Json",
            '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}',
            1,
        ),
        ("a.json", f'{{"version": 1, "data": [{ROW}, {ROW}]}}', 2),
        ("a.csv", "\ufeff\n\nprompt,completion\r\n\r\na,b\r\n", 1),
        ("a.csv", ",prompt,completion\r0,a,b\r1,c,d\r", 2),
        ("a.csv", "prompt,completion,x\na,b," + "c" * 200_000, 1),
        ("a.jsonl", MORE + '"n": 1' + "0" * 3000 + "}", 1),
        ("a.jsonl", MORE + '"x\\n\\u001b[31m\\ud800": ' + "[" * 200 + "]" * 200 + "}", 1),
    ],
)
def test_an_odd_file_is_right(name: str, content: str, count: int, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode())
    found = read(Demonstrations(path=str(path), batch=1), student(), seed=0)
    assert len(found.groups) == count and all(note.isprintable() for note in found.notes)


@pytest.mark.parametrize(
    ("kind", "row", "said"),
    [
        (Pairs, {"chosen": "b", "rejected": "c", "margin": 10**400}, "column margin is '1000"),
        (Unpaired, {"completion": "b", "score": -(10**400)}, "column score is '-1000"),
    ],
)
def test_a_number_beyond_all_others_is_refused(
    kind: type[Kind], row: dict[str, Any], said: str, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"prompt": "a", **row}))
    with pytest.raises(ValueError, match=said):
        read(kind(path=str(tmp_path / "a.jsonl"), batch=1), student(), seed=0)


def test_a_column_without_a_value_is_told_from_a_missing_one(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": null}')
    with pytest.raises(ValueError, match="line 1: column rejected is empty; fill it in"):
        read(Pairs(path=str(tmp_path / "a.jsonl"), batch=1), student(), seed=0)
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    parquet.write_table(pyarrow.table({"prompt": ["a"], "completion": [None]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="row 1: column completion is empty; fill it in"):
        read(Demonstrations(path=str(tmp_path / "a.parquet"), batch=1), student(), seed=0)


def test_a_parquet_file_without_rows_is_named_so(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    parquet.write_table(
        pyarrow.table({"prompt": pyarrow.array([], pyarrow.string())}), tmp_path / "a.parquet"
    )
    with pytest.raises(ValueError, match=r"a\.parquet: none of its 0 rows makes a group"):
        read(Demonstrations(path=str(tmp_path / "a.parquet"), batch=1), student(), seed=0)
