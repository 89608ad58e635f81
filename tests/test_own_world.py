"""The worlds of the page "Bring your world" keep the contract, and stand there as they are."""

from __future__ import annotations

import json
import re
import shlex
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from examples.own_world.server import Handler, episodes
from lit_agentrl.cli.train import main as main_train
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.checker import check_env
from lit_agentrl.envs.hosted.remote import Remote
from tests.conftest import ROOT

OWN, MCP = ROOT / "examples/own_world", ROOT / "examples/own_mcp"


@contextmanager
def served() -> Iterator[str]:
    """The address of the game that imports the standard library alone."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_the_pages_show_the_files_as_they_are() -> None:
    page = (ROOT / "docs/extend.md").read_text(encoding="utf-8")
    for name, language in (("corridor.py", "python"), ("conf/env/corridor.yaml", "yaml")):
        assert f"```{language}\n{(OWN / name).read_text(encoding='utf-8')}```\n" in page
    page = (MCP / "README.md").read_text(encoding="utf-8")
    assert f"```json\n{(MCP / 'tasks.jsonl').read_text(encoding='utf-8').splitlines()[2]}\n```\n" in page
    assert len((MCP / "server.py").read_text(encoding="utf-8").splitlines()) <= 40


def test_a_game_of_30_lines_keeps_the_contract() -> None:
    task: Task = instantiate(OmegaConf.load(OWN / "conf/env/corridor.yaml"))
    check_env(task.make, episodes=5)
    lines = (OWN / "corridor.py").read_text(encoding="utf-8").splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 32


def test_a_world_of_three_methods_keeps_the_contract() -> None:
    task: Task = instantiate(OmegaConf.load(OWN / "conf/env/sums.yaml"))
    check_env(task.make)
    env = task.make("train")
    assert {name for name in vars(type(env)) if not name.startswith("_")} == {
        "reset",
        "step",
        "close",
        "rules",
    }
    first, second = env.reset(seed=0)[0].split(" = ")[0].split(" + ")
    assert env.step(f" {int(first) + int(second)}\n")[1:] == (1.0, True, False, {"success": True})
    env.reset()
    assert env.step("no number")[1] == 0.0


def test_a_server_without_the_package_is_played() -> None:
    text = (OWN / "server.py").read_text(encoding="utf-8")
    assert "import lit_agentrl" not in text and "from lit_agentrl" not in text
    with served() as url:
        make = partial(Remote, url=url, patience_s=5.0)
        check_env(lambda split: make(split=split), episodes=2)
        env = make()
        assert env.reset(seed=0) == ("P D _ _ _ _ _ _ _ _ _ _", {"instance_id": "0"})
        assert env.rules.startswith("Go to the door") and not env.has_state
        assert env.step("right") == (
            "_ D _ _ _ _ _ _ _ _ _ _".replace("D", "P"), 1.0, True, False,
            {"success": True, "action_is_valid": True},
        )  # fmt: skip
        env.close()
        assert env._session is None
        env.reset(seed=1)
        episodes.clear()  # as if it were started again: played again, and equal
        assert env.step("Left")[2] is False


def test_a_tool_world_of_40_lines_keeps_the_contract() -> None:
    task: Task = instantiate(OmegaConf.load(OWN / "conf/env/safe.yaml"))
    check_env(task.make, episodes=5)
    env = task.make("train")
    note = env.reset(seed=0)[0].split()[4]
    said = env.step(f'{{"name": "read", "arguments": {{"note": "{note}"}}}}')[0]
    assert not env.step('{"name": "read", "arguments": {}}')[4]["action_is_valid"]
    told = env.step(f'{{"name": "unlock", "arguments": {{"code": {said.split()[2][:-1]}}}}}')
    assert told[0] == "Open: True" and told[1:3] == (1.0, True)
    lines = (OWN / "safe.py").read_text(encoding="utf-8").splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 40


@pytest.mark.slow
@pytest.mark.sweep
def test_every_training_of_the_pages_runs(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = (ROOT / "docs/extend.md", OWN / "README.md", MCP / "README.md")
    page = " ".join(page.read_text(encoding="utf-8") for page in pages).replace("\n", " ")
    found = re.findall(r"lit-agentrl train ([^`]*?env=[^`]*?) *(?=`| lit-agentrl )", page)
    worlds = [line.split("env=")[1].split()[0] for line in found]
    assert sorted(worlds) == ["corridor", "mcp", "remote", "remote", "safe", "sums"]
    monkeypatch.chdir(ROOT)
    with served() as url:
        # the pages have two servers, in Python and in another language, and one line for both
        for number, line in enumerate(
            dict.fromkeys(re.sub(r"127.0.0.1:\d+", "HOST", each) for each in found)
        ):
            line = line.replace("http://HOST", url)
            line = line.replace("[python,", f"[{sys.executable},")
            if "FOLDER" in line:  # a random model writes no call, and is told so
                line = line.replace("FOLDER", str(tiny_model_folder))
                line += " experiment=quick rollout.max_context_tokens=2048 rollout.max_reply_tokens=8 rollout.prompts=2"
                line += " rollout.members=2 val.episodes=2 test.episodes=2"
            folder = tmp_path / str(number)
            main_train([*shlex.split(line), f"hydra.run.dir={folder}"])
            games = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["games"]
            assert [game["last"]["iteration"] for game in games if game["split"] == "test"] == [2], line
