"""The model card of a run and its push to the hub, with a stand-in for the hub and with one that does not answer."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from tensorboard.plugin_util import markdown_to_safe_html

from lit_agentrl.cli.push import main
from lit_agentrl.paths import PACKAGE_DIR
from lit_agentrl.report.summary import score
from lit_agentrl.runs.card import USE, add_card, build_card, describe_base, read_license

TOKEN = "hf_secret"


def make_summary(**changes: Any) -> Any:
    game = {
        "name": "sokoban",
        "split": "val",
        "chance": score([True] + [False] * 9),
        "oracle": score([True] * 10),
    }
    game |= {"start": score([True] * 4 + [False] * 6, returns=[0.5] * 10, iteration=0), "last": None}
    game |= {"best": score([True] * 7 + [False] * 3, iteration=30)}
    return {
        "version": 1, "status": "completed", "error": None, "warnings": [], "command": "train.py algo=grpo", "seed": 3,
        "versions": {"torch": "2.13"}, "git_revision": "abc123", "games": [game], "held_out": {},
        "monitored": {"name": "val/success", "mode": "max", "value": 0.7, "iteration": 30}, "iterations": 42,
        "planned_iterations": 100, "episodes": 1000, "action_tokens": 10_000, "prefilled_tokens": 5_000,
        "seconds": {}, "engine": {}, "peak_memory_bytes": 1, "saves": None, "threads": None,
    } | changes  # fmt: skip


def make_settings(name: str = "org/base", target: str = "lit_agentrl.models.policy.load_pretrained") -> Any:
    return {"model": {"_target_": target, "name": name}, "algo": {"name": "grpo"}}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "run"
    for file, text in {
        "summary.json": json.dumps(make_summary()), ".hydra/config.yaml": yaml.safe_dump(make_settings()),
        "hf/config.json": "{}", "hf/model.safetensors": "weights",
    }.items():  # fmt: skip
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.chdir(tmp_path)
    return folder


def read_metadata(card: str) -> Any:
    return yaml.safe_load(card.split("---\n")[1])


def test_a_card_has_what_held_out_data_measured() -> None:
    start, best = {"iteration": 0.0, "loss": 0.6931, "entropy": 2.0}, {"iteration": 2.0, "loss": 0.5}
    card = build_card(make_summary(games=[], held_out={"start": start, "best": best}), make_settings())
    for line in (
        "## Held-out data",
        "| policy | iter. | loss |",
        "| start | 0 | 0.6931 |",
        "| best | 2 | 0.5 |",
    ):
        assert line in card.splitlines(), line
    assert "| last | – | – |" in card and "## Scores" not in card
    assert "Held-out" not in build_card(make_summary(), make_settings())


def test_a_card_of_a_run_on_data_speaks_of_data() -> None:
    on_data = make_settings() | {"data": {"path": "pairs.jsonl"}}
    card = build_card(make_summary(games=[]), on_data)
    assert "10000 learnt tokens" in card and "a prompt, as in the data" in card and "world shows" not in card
    beside = make_settings() | {"data": {"path": "texts.jsonl", "coef": 1.0}}
    assert "10000 sampled tokens" in build_card(make_summary(), beside)
    assert '"what the world shows"' in build_card(make_summary(), make_settings())


def test_a_card_says_what_a_reader_of_the_weights_asks() -> None:
    card = build_card(make_summary(), make_settings())
    assert read_metadata(card)["base_model"] == "org/base" and "license" not in read_metadata(card)
    for line in (
        "| base model | `org/base` |", "| licence of the base | not known |", "| algorithm | `grpo` |",
        "| worlds | `sokoban` |", "| seed | 3 |", "| commit of lit_agentrl | `abc123` |",
        "| training | 42 of 100 iterations, 1000 episodes, 10000 sampled tokens |",
        "| weights | of iteration 30, chosen by the highest `val/success` |",
        "| `sokoban` | `val` | chance | – | 10 | 0.100 [0.018, 0.404] | – |",
        "| `sokoban` | `val` | start | 0 | 10 | 0.400 [0.168, 0.687] | 0.500 [0.500, 0.500] |",
        "| `sokoban` | `val` | best | 30 | 10 | 0.700 [0.397, 0.892] | – |",
        "| `sokoban` | `val` | last | – | – | – | – |", "```\ntrain.py algo=grpo\n```",
    ):  # fmt: skip
        assert line in card, line
    reward = build_card(make_summary(games=[], monitored=None), {}, "reward model")
    assert "# A reward model trained by `unknown`" in reward and "## Scores" not in reward
    assert "the last, of iteration 42" in reward and "from_pretrained" not in reward


@pytest.mark.slow
def test_the_use_of_a_card_writes_a_reply(capsys: pytest.CaptureFixture[str]) -> None:
    exec(USE.replace("FOLDER", str(PACKAGE_DIR / "models/nano")), {})
    assert "</answer>" in capsys.readouterr().out


def test_the_base_and_its_licence_are_named_where_they_are_known(tmp_path: Path) -> None:
    assert describe_base(make_settings("nano_tools", "lit_agentrl.models.policy.load_nano")) == (
        "nano_tools, embedded in lit_agentrl", None, "apache-2.0",
    )  # fmt: skip
    assert describe_base(make_settings("pypi:smollm2"))[1:] == (None, "apache-2.0")
    assert describe_base(make_settings("pypi:other")) == ("pypi:other", None, None)
    assert describe_base(make_settings("a/b/c/d")) == ("d", None, None)
    assert describe_base({}) == ("not known", None, None) == describe_base({"model": 3})
    for text, name in {
        "---\nlicense: mit\n---\n# x": "mit", "---\nlicense: other\nlicense_name: llama3.1\n---\n": "llama3.1",
        "---\nlicense: [mit]\n---\n": None, "license: mit": None, "---\n: : [\n---\n": None, "---\n- a\n---\n": None,
        "---\nlicense: !!python/name:os.system\n---\n": None,
    }.items():  # fmt: skip
        (tmp_path / "README.md").write_text(text)
        assert read_license(tmp_path / "README.md") == name
        assert describe_base(make_settings(str(tmp_path))) == (tmp_path.name, None, name)
    (tmp_path / "README.md").write_bytes(b"---\xff")
    assert read_license(tmp_path / "README.md") is None and read_license(tmp_path / "none") is None


HOSTILE = [
    "<script>alert(1)</script>",
    "a`b`` | c\n---\n# x",
    "\x00\x1b\ud800\u2028",
    "]( javascript:x)",
    "```\n<b>",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_stay_data(text: str) -> None:
    summary = make_summary(command=text, error=text, git_revision=text, versions={text: text})
    summary["games"][0] |= {"name": text, "split": text}
    summary["monitored"]["name"] = text
    settings = {"model": {"_target_": text, "name": text}, "algo": {"name": text}}
    card = build_card(summary, settings)
    card.encode()  # no lone surrogate
    assert set(read_metadata(card)) <= {"library_name", "tags", "pipeline_tag"}
    assert card.count("\n---\n") == 1 + ("\n---\n" in text)  # in the block of the command
    html = markdown_to_safe_html(card.split("\n---\n", 1)[1])
    assert "<script" not in html and "<b>" not in html and html.count("<h1>") == 1 and "<a" not in html
    assert not re.search(r"[\x00-\x08\x1b\u2028]", card)
    rows = [line for line in card.splitlines() if re.search(r"\| (chance|start|best|last|oracle) \|", line)]
    assert len(rows) == 5 and {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {8}


def test_a_run_ends_with_a_card(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    add_card(run)
    assert "# A policy trained by `grpo`" in (run / "hf/README.md").read_text()
    (run / "summary.json").write_text("{")
    add_card(run)
    assert "has no card" in caplog.text and "summary.json is not JSON" in caplog.text
    add_card(run / "other")
    assert not (run / "other").exists()


class Hub:
    """A stand-in for `HfApi` that keeps what it is asked."""

    def __init__(self, *, is_private: bool = True, error: Exception | None = None) -> None:
        self.is_private, self.error = is_private, error
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.files: dict[str, str] = {}

    def __call__(self, *, token: str) -> Hub:
        assert token == TOKEN
        return self

    def create_repo(self, repo: str, **options: Any) -> None:
        if self.error is not None:
            raise self.error
        self.calls.append((repo, options))

    def repo_info(self, repo: str, **options: Any) -> Any:
        return SimpleNamespace(private=self.is_private)

    def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str) -> Any:
        self.files = {path.name: path.read_text() for path in folder_path.iterdir()}
        return SimpleNamespace(commit_url=f"https://hub/{repo_id}/commit/1")


def push(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], hub: Hub | None, *words: str
) -> tuple[int, str]:  # fmt: skip
    """Exit status and what is printed."""
    if hub is not None:
        monkeypatch.setattr("huggingface_hub.HfApi", hub)
    try:
        main(words)
        code = 0
    except SystemExit as ended:
        code = int(str(ended.code))
    printed = capsys.readouterr()
    assert TOKEN not in printed.out + printed.err and "Traceback" not in printed.err
    return code, " ".join((printed.out + printed.err).split())


def test_a_push_is_private_and_brings_the_card(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = Hub()
    code, text = push(monkeypatch, capsys, hub, "run", "repo=me/mine")
    assert code == 0 and text == "pushed to https://hub/me/mine/commit/1"
    assert hub.calls == [("me/mine", {"private": True, "repo_type": "model", "exist_ok": True})]
    assert set(hub.files) == {"README.md", "config.json", "model.safetensors"}
    assert "base_model: org/base" in hub.files["README.md"]
    (run / "hf/README.md").write_text("my own card")
    code, _ = push(monkeypatch, capsys, hub := Hub(is_private=False), "run", "repo=me/mine", "public=true")
    assert code == 0 and hub.calls[0][1]["private"] is False and hub.files["README.md"] == "my own card"


def test_what_cannot_be_pushed_gets_one_line(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*words: str, hub: Hub | None = None) -> str:
        hub = hub or Hub()
        code, text = push(monkeypatch, capsys, hub, *words)
        assert code == 1 and not hub.files
        return text

    assert "repo is missing; write lit-agentrl push RUN repo=USER/NAME" in refused("run")
    assert "public=yes must be one of true, false" in refused("run", "repo=a/b", "public=yes")
    assert "push takes no token=x" in refused("run", "repo=a/b", "token=x")
    assert "repo=a/b/c is not the name of a repo" in refused("run", "repo=a/b/c")
    assert "none is not a folder" in refused("none", "repo=a/b")
    public = Hub(is_private=False)
    assert "repo=a/b exists and is public; add public=true" in refused("run", "repo=a/b", hub=public)
    error = Hub(error=OSError(f"401 {TOKEN} is wrong\nmore"))
    assert "repo=a/b could not be pushed: 401 … is wrong; check that" in refused("run", "repo=a/b", hub=error)
    (run / "hf" / "secret").symlink_to("/etc/hostname")
    assert "secret leads out of hf/" in refused("run", "repo=a/b")
    (run / "hf" / "secret").unlink()
    os.mkfifo(run / "hf" / "pipe")
    assert "pipe leads out of hf/ or is not a file" in refused("run", "repo=a/b")
    (run / "hf" / "pipe").unlink()
    (run / "hf" / "README.md").unlink()
    (run / "summary.json").unlink()
    assert "no card can be made for run/hf: [Errno 2] No such file" in refused("run", "repo=a/b")
    (run / "hf" / "config.json").unlink()
    assert "run holds no policy: there is no hf/config.json" in refused("run", "repo=a/b")
    for value in ("", "  "):
        monkeypatch.setenv("HF_TOKEN", value)
        assert "HF_TOKEN is not set; put a token" in refused("run", "repo=a/b")


def test_a_hub_that_cannot_be_reached_gets_one_line(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the real client: nothing listens at the address."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    code, text = push(monkeypatch, capsys, None, "run", "repo=me/mine")
    assert code == 1 and "repo=me/mine could not be pushed: " in text and "reaches the hub" in text


def test_a_run_in_use_is_not_pushed(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lit_agentrl.runs.run_folder.find_owner", lambda folder: "process 7")
    code, text = push(monkeypatch, capsys, hub := Hub(), "run", "repo=me/mine")
    assert code == 1 and "run=run is in use by process 7; wait for its end" in text and not hub.files
