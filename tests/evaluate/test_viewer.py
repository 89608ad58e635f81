"""The page of recorded episodes: its data by HTTP, hostile texts, odd folders, files that grow and are replaced."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from lit_agentrl.callbacks.transcript_lines import to_line
from lit_agentrl.cli.view import describe_run, main
from lit_agentrl.episode import EndReason, Episode, FinishReason, Segment, Turn
from lit_agentrl.evaluate.viewer.recorded import Recorded, make_visible
from lit_agentrl.evaluate.viewer.serving import ViewerServer
from lit_agentrl.runs.run_folder import lock_folder

HOSTILE = [
    "<script>alert(1)</script>", "</pre><img src=x onerror=alert(1)>", "\x00\x1b[2J\x07\x9b", "\ud800", "\u202eevil",
    "\u2028", "&lt;b&gt;", "a\nb", "${7*7}{{7*7}}", "é\t漢",
]  # fmt: skip


def make_turn(**changes: Any) -> Turn:
    fields: dict[str, Any] = {
        "observation": "seen", "prefix_tokens": [1, 2], "prefix_segments": [Segment.PROMPT, Segment.FORCED],
        "reply_tokens": [3, 4], "reply_segments": [Segment.THINK, Segment.ANSWER], "reply_logps": [-0.5, -1.5],
        "reply_entropies": [0.25, 0.75], "is_valid": True, "actions": ["Up"], "reward": -0.5,
    }  # fmt: skip
    return Turn(**{**fields, **changes})


def make_episode(member: int = 0, turns: list[Turn] | None = None, **changes: Any) -> Episode:
    fields: dict[str, Any] = {
        "iteration": 0, "group": 3, "task": 0, "task_name": "sokoban", "instance_seed": 7, "instance_id": "abc",
        "end": EndReason.TURN_LIMIT,
    }  # fmt: skip
    return Episode(**{**fields, "member": member, "turns": turns or [make_turn()], **changes})


TEXTS = {str(number): f"t{number}" for number in range(1, 5)}
EPISODES = [
    make_episode(0, success=True, end=EndReason.SUCCESS),
    make_episode(1, turns=[make_turn(), make_turn(is_valid=False, problem="no_answer", finish=FinishReason.LENGTH)]),
    make_episode(2, end=EndReason.ERROR, error="boom"),
]  # fmt: skip


def write(folder: Path, split: str, *lines: str, mode: str = "a") -> Path:
    path = folder / "transcripts" / f"{split}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, mode, encoding="utf-8") as file:
        file.write("".join(lines))
    return path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ViewerServer]:
    server = ViewerServer(0, Recorded(tmp_path), lambda: describe_run(tmp_path))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def ask(
    server: ViewerServer, path: str, host: str | None = None, method: str = "GET"
) -> tuple[int, str, Any]:
    """Status, content type and content (parsed, if it is JSON) of an answer."""
    connection = HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    kind, content = answer.headers["Content-Type"], answer.read()
    connection.close()
    if answer.status < 400:
        assert "default-src 'none'; script-src 'self'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["Cache-Control"] == "no-store"
    return answer.status, kind, json.loads(content) if "json" in kind else content.decode()


def test_iterations_episodes_and_tokens(server: ViewerServer, tmp_path: Path) -> None:
    update = {"trained": [[1, 0]], "advantages": [[2.5, float("nan")]]}
    notes = [{"texts": TEXTS, "update": update}, {"texts": TEXTS}, {"texts": TEXTS}]
    write(tmp_path, "train", *(to_line(e, 5, "train", n) for e, n in zip(EPISODES, notes, strict=True)))
    write(tmp_path, "val", to_line(EPISODES[0], 0, "val"))
    (tmp_path / "summary.json").write_text('{"status": "completed"}')
    status, _, run = ask(server, "/api/run")
    assert status == 200 and run["status"] == "completed" and not run["is_running"] and not run["problems"]
    assert run["splits"]["train"] == [{"iteration": 5, "episodes": 3, "success": 1}]
    assert run["splits"]["val"] == [{"iteration": 0, "episodes": 1, "success": 1}]
    listed = ask(server, "/api/episodes?split=train&iteration=5")[2]["episodes"]
    assert [e["outcomes"] for e in listed] == [["success"], ["failure", "truncated", "invalid"], ["error"]]
    assert [e["return"] for e in listed] == [-0.5, -1.0, -0.5] and listed[1]["tokens"] == 4
    assert ask(server, "/api/episodes?split=train&iteration=6")[2] == {"episodes": []}
    episode = ask(server, "/api/episode?split=train&line=0")[2]
    (turn,) = episode["rows"]
    assert episode["texts"] == TEXTS and turn["ids"] == [1, 2, 3, 4] and turn["given"] == 2
    assert turn["kinds"] == [
        "prompt",
        "forced",
        "think",
        "answer",
    ]
    assert turn["logp"] == [None, None, -0.5, -1.5] and turn["entropy"] == [None, None, 0.25, 0.75]
    assert turn["advantage"] == [None, None, 2.5, None] and turn["trained"] == [0, 0, 1, 0]
    assert turn["reward"] == -0.5 and turn["actions"] == ["Up"] and episode["is_update_known"]
    cut = ask(server, "/api/episode?split=train&line=1")[2]["rows"][1]
    assert (cut["finish"], cut["problem"], cut["trained"]) == ("length", "no_answer", [0] * 4)
    bare = ask(server, "/api/episode?split=val&line=0")[2]  # a line of an earlier version
    assert bare["texts"] == {}
    assert bare["rows"][0]["observation"] == "seen"


def test_the_page_is_one_of_three_files_and_names_no_other_host(server: ViewerServer) -> None:
    kinds = {"/": "text/html", "/page.css": "text/css", "/page.js": "text/javascript"}
    for path, kind in kinds.items():
        status, got, text = ask(server, path)
        assert status == 200 and got.startswith(kind) and "//" not in text.replace("// ", "")
        assert not {"innerHTML", "insertAdjacentHTML", "document.write", "eval("} & set(text.split())
        assert "innerHTML" not in text
    page = ask(server, "/")[2]
    assert page.count("<script") == 1 and "onclick" not in page and "style=" not in page


def test_hostile_texts_reach_the_page_as_visible_texts(server: ViewerServer, tmp_path: Path) -> None:
    for number, text in enumerate(HOSTILE):
        turn = make_turn(observation=text, reply_text=text, actions=[text], problem=text, player=text)
        turn.shaping, turn.shaped_reward = {text: 1.0}, 0.5
        episode = make_episode(number, [turn], task_name=text, instance_id=text, error=text)
        write(tmp_path, "train", to_line(episode, 1, "train", {"texts": {"3": text}}))
        write(tmp_path, "val", to_line(episode, 1, "val"))
    assert ask(server, "/api/run")[2]["splits"]["train"][0]["episodes"] == len(HOSTILE)
    listed = ask(server, "/api/episodes?split=train&iteration=1")[2]["episodes"]
    for number, text in enumerate(HOSTILE):
        shown = make_visible(text)
        assert all(c == "\n" or c.isprintable() for c in shown)
        assert listed[number]["game"] == listed[number]["instance"] == shown
        for split in ("train", "val"):
            episode = ask(server, f"/api/episode?split={split}&line={number}")[2]
            (turn,) = episode["rows"]
            assert episode["error"] == turn["problem"] == turn["player"] == turn["actions"][0] == shown
            assert list(turn["shaping"]) == [shown]
        assert turn["observation"] == turn["reply"] == shown
    assert ask(server, "/api/episode?split=train&line=0")[2]["texts"] == {"3": HOSTILE[0]}
    assert make_visible("\x1b\ud800\u202e\n") == "\\x1b\\ud800\\u202e\n"


DAMAGED = [
    "{", "[]", "null", "7", "[" * 100_000, '{"schema": 1}', '{"schema": 2, "episode": {}}', "\x00",
    to_line(EPISODES[0], 1, "train").replace('"reward": -0.5', '"reward": "<b>"'),
    to_line(EPISODES[0], 1, "train").replace('"TURN_LIMIT"', '"X"').replace('"SUCCESS"', '"X"'),
    to_line(EPISODES[0], 1, "train").replace('"reply_tokens": [3, 4]', '"reply_tokens": ["x"]'),
    to_line(EPISODES[0], 1, "train").replace('"iteration": 1', '"iteration": "x"'),
    to_line(EPISODES[0], 1, "train").replace('"reply_tokens": [3, 4]', f'"reply_tokens": [{10**30}]'),
    to_line(EPISODES[0], 1, "train").replace('"actions": ["Up"]', '"actions": 7'),
]  # fmt: skip


def test_damaged_lines_are_counted_and_left_out(server: ViewerServer, tmp_path: Path) -> None:
    good = to_line(EPISODES[0], 1, "train", {"texts": 7, "update": [1]})
    for line in DAMAGED:
        write(tmp_path, "train", line.rstrip("\n") + "\n", good)
    path = write(tmp_path, "train", good[:50])  # being written
    with open(path, "ab") as file:
        file.write(b"\xff\xfe")
    run = ask(server, "/api/run")[2]
    shown = run["splits"]["train"][0]["episodes"]
    left_out = len(DAMAGED) * 2 - shown
    assert run["problems"] == [f"train.jsonl: damaged lines that are left out: {left_out}"]
    assert len(DAMAGED) - 1 <= left_out <= len(DAMAGED)
    for line in range(shown):
        status, _, answer = ask(server, f"/api/episode?split=train&line={line}")
        assert status in (200, 404) and ("rows" in answer or "error" in answer)
    odd = to_line(EPISODES[0], 2, "train", {"texts": {"3": 5}, "update": {"trained": [[1]], "advantages": 3}})
    write(tmp_path, "val", odd.replace('"reply_logps": [-0.5, -1.5]', '"reply_logps": [NaN]'))
    ask(server, "/api/run")
    episode = ask(server, "/api/episode?split=val&line=0")[2]
    (turn,) = episode["rows"]
    assert turn["logp"] == turn["advantage"] == [None] * 4 and turn["trained"] == [0] * 4
    assert episode["texts"] == {"3": "5"}


def test_a_run_that_goes_on_and_one_that_was_resumed(server: ViewerServer, tmp_path: Path) -> None:
    assert ask(server, "/api/run")[2]["splits"] == {"train": [], "val": []}
    line = to_line(EPISODES[0], 1, "train")
    write(tmp_path, "train", line, line[:40])
    first = ask(server, "/api/run")[2]
    assert first["splits"]["train"][0]["episodes"] == 1
    assert ask(server, "/api/run")[2]["revision"] == first["revision"]
    write(tmp_path, "train", line[40:])
    second = ask(server, "/api/run")[2]
    assert second["splits"]["train"][0]["episodes"] == 2 and second["revision"] > first["revision"]
    # resuming cuts the file back, and goes on otherwise; it may be as long as before
    write(tmp_path, "train", to_line(EPISODES[1], 1, "train"), to_line(EPISODES[2], 3, "train"), mode="w")
    third = ask(server, "/api/run")[2]
    assert [each["iteration"] for each in third["splits"]["train"]] == [1, 3]
    assert third["revision"] > second["revision"]
    (tmp_path / "transcripts" / "train.jsonl").unlink()
    assert ask(server, "/api/episode?split=train&line=0")[0] == 404
    assert ask(server, "/api/run")[2]["splits"]["train"] == []
    with lock_folder(tmp_path):  # as the process of the run does
        assert describe_run(tmp_path)["is_running"] is False  # of this very process


@pytest.mark.parametrize("kind", ["link", "folder link", "pipe", "folder"])
def test_only_regular_files_inside_of_the_run_are_read(kind: str, tmp_path: Path) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    secret = write(outside, "train", to_line(EPISODES[0], 1, "train"))
    place = run / "transcripts" / "train.jsonl"
    (run if kind == "folder link" else place.parent).mkdir(parents=True)
    if kind == "link":
        place.symlink_to(secret)
    elif kind == "folder link":
        place.parent.symlink_to(secret.parent)
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        place.mkdir()
    described = Recorded(run).describe()
    assert described["splits"]["train"] == []
    reason = "it leads out of the run folder" if "link" in kind else "regular file"
    assert reason in described["problems"][0] or kind == "folder"
    assert len(described["problems"]) == 1 and described["problems"][0].startswith(
        "transcripts/train.jsonl is not read"
    )


def test_only_this_machine_by_its_own_name_is_answered(server: ViewerServer) -> None:
    port = server.server_address[1]
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", "localhost:9", "LOCALHOST"):
        assert ask(server, "/api/run", host)[0] == 200
    for host in (
        f"evil.example:{port}",
        "",
        "127.0.0.1.evil.example",
        "localhost@evil.example",
        "0.0.0.0",
        "a b",
    ):
        for path in ("/", "/api/run", "/api/episodes?split=train&iteration=1"):
            assert ask(server, path, host)[0] == 403
    assert server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/../../etc/passwd", 404), ("/page.html", 404), ("/api", 404), ("//evil.example/api/run", 404),
        ("/api/episodes", 400), ("/api/episodes?split=test&iteration=1", 400),
        ("/api/episode?split=train&line=-1", 400), ("/api/run?[", 200),
        ("/api/episode?split=train&line=9999999999999999999", 400), ("/api/episode?split=train&line=5", 404),
        ("/api/episodes?split=../../train&iteration=1", 400), ("/api/episode?split=train&line=%D9%A3", 400),
    ],
)  # fmt: skip
def test_other_requests_are_refused(server: ViewerServer, path: str, status: int) -> None:
    assert ask(server, path)[0] == status
    assert ask(server, "/api/run", method="POST")[0] == 501


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere is not a folder; give the folder of a run, such as outputs/DATE/TIME"),
        (["."], ". holds no run: neither .hydra/config.yaml nor transcripts/"),
        (["run", "--port", "70000"], "--port=70000 must be a whole number from 0 to 65535"),
        (["run", "--port", "x"], "argument --port: invalid int value: 'x'"),
        ([], "RUN must be given; lit-agentrl view --help"),
        (["run", "--port", "BUSY"], "cannot listen on 127.0.0.1 (Address already in use); choose another, or --port 0"),
    ],
)  # fmt: skip
def test_a_wrong_command_gets_one_line(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as busy, pytest.raises(SystemExit) as ended:
        if "run" in words:
            write(tmp_path / "run", "train")
        main([str(busy.getsockname()[1]) if word == "BUSY" else word for word in words])
    printed = capsys.readouterr()
    assert ended.value.code == 1 and not printed.out
    assert message in " ".join(printed.err.split()) and "Traceback" not in printed.err
