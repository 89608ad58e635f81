"""The server of AppWorld's tasks: played through the remote adapter, with a stand-in of the real class's shape."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lit_agentrl.envs.checker import check_env
from lit_agentrl.envs.hosted.remote import Remote
from tests.conftest import ROOT
from tests.envs.started import started
from tests.integration.conftest import assert_the_same_twice

LIKE = Path(__file__).with_name("appworld_like")
PYTHON = Path(os.environ.get("APPWORLD_PYTHON", ROOT / ".venv-appworld/bin/python"))
SERVER = "examples/own_appworld/server.py"
FINISH = "apis.supervisor.complete_task()"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("appworld")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(LIKE))
        patch.setenv("APPWORLD_ROOT", str(root))
        options = ["--processes", "4", "--seconds", "1", "--grace", "1", "--idle", "0", "--chars", "200"]
        with started([sys.executable, SERVER, *options]) as found:
            yield found


def wanted(observation: str) -> str:
    return observation.split()[1]


pytestmark = [pytest.mark.slow, pytest.mark.sweep]


def test_tasks_are_played_to_their_end(url: str) -> None:
    env = Remote(url=url, split="val")
    shown, info = env.reset(seed=4)
    assert "on my list" in shown and "Ida Roe (ida@mail.example, 12)" in shown
    assert info["instance_id"].startswith("AppWorld dev") and env.action_format() == "text"
    assert "list: What to buy." in env.rules
    shown, reward, terminated, _, _ = env.step(f"x = 3\napis.list.add('{wanted(shown)}')")
    assert (shown, reward, terminated) == ("Execution successful.", 0.0, False)
    assert env.step("```python\nprint(x)\n```")[0] == "3\n"  # one session, and a fence is taken off
    assert "NameError" in env.step("y")[0]
    long = env.step("print('a' * 1000)")[0]
    assert len(long) < 260 and "801 characters are left out" in long
    assert env.step(FINISH)[1:] == (1.0, True, False, {"success": True})
    wrong = env.reset(seed=5)[0]
    env.step(f"apis.list.add('{wanted(wrong)}'); apis.list.add('a car')")
    assert env.step(FINISH)[1:] == (0.0, True, False, {"success": False})
    env.close()


def test_it_keeps_the_contract(url: str) -> None:
    check_env(lambda split: Remote(url=url, split=split), episodes=3)
    seen = {
        split: {Remote(url=url, split=split).reset(seed=s)[1]["instance_id"] for s in range(6)}
        for split in ("train", "val", "test")
    }
    assert [len(each) for each in seen.values()] == [6, 3, 3] and len(set.union(*seen.values())) == 12


def test_what_hangs_or_dies_ends_its_episode_alone(url: str) -> None:
    one, other = Remote(url=url), Remote(url=url)
    shown = one.reset(seed=0)[0]
    other.reset(seed=1)
    with pytest.raises(ValueError, match=r"AppWorld: its process has ended"):
        other.step("end(1)")
    other.reset(seed=1)
    with pytest.raises(ValueError, match=r"AppWorld: it hangs"):
        other.step("sleep(600)")
    one.step(f"apis.list.add('{wanted(shown)}')")
    assert one.step(FINISH)[1] == 1.0
    assert other.reset(seed=1)[0]


def test_a_run_on_it_is_the_same_twice(url: str, tmp_path: Path) -> None:
    given = [
        "experiment=quick", "env=remote", "env.name=appworld", f"env.game.url={url}", "engine.num_slots=2",
        "rollout.prompts=2", "rollout.members=2", "val.episodes=2", "test.episodes=2", "trainer.accelerator=cpu",
    ]  # fmt: skip
    assert_the_same_twice(given, tmp_path)


SHAPES = """
import inspect, json
from appworld import AppWorld, load_task_ids
from appworld.evaluator import TestTracker
def names(each): return list(inspect.signature(each).parameters)
methods = {name: names(getattr(AppWorld, name)) for name in METHODS}
tracker = [n for n in ("success", "pass_count", "num_tests") if isinstance(getattr(TestTracker, n), property)]
source = inspect.getsource(AppWorld.__init__) + inspect.getsource(__import__("appworld.task").task.Task.__init__)
print(json.dumps([methods, names(load_task_ids), tracker, [a for a in ATTRIBUTES if f"self.{a} = " in source]]))
"""


installed = pytest.mark.skipif(not PYTHON.exists(), reason="appworld is not installed (docs/adapters.md)")


@installed
def test_the_stand_in_has_the_shape_of_the_real_class(tmp_path: Path) -> None:
    import inspect

    sys.path.insert(0, str(LIKE))
    try:
        import appworld as like
    finally:
        sys.path.remove(str(LIKE))
    methods = ["__init__", "execute", "task_completed", "evaluate", "close"]
    attributes = ["task", "output_directory", "instruction", "supervisor", "datetime", "app_descriptions"]
    script = SHAPES.replace("METHODS", repr(methods)).replace("ATTRIBUTES", repr(attributes))
    done = subprocess.run(
        [str(PYTHON), "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path,
        env={**os.environ, "APPWORLD_ROOT": str(tmp_path)},
    )  # fmt: skip
    real, ids, tracker, found = json.loads(done.stdout.splitlines()[-1])
    for name in methods:
        own = list(inspect.signature(getattr(like.AppWorld, name)).parameters)
        assert set(own) <= set(real[name]), name
    assert real["__init__"][:3] == ["self", "task_id", "experiment_name"]
    assert ids == list(inspect.signature(like.load_task_ids).parameters)
    assert tracker == ["success", "pass_count", "num_tests"] and found == attributes


@installed
def test_the_real_class_plays_tasks_of_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPWORLD_ROOT", str(tmp_path))
    tasks = Path(__file__).with_name("appworld_tasks.py")
    subprocess.run([str(PYTHON), str(tasks), str(tmp_path)], check=True, capture_output=True)
    with started([str(PYTHON), SERVER, "--processes", "2", "--seconds", "4", "--idle", "0"]) as url:
        env = Remote(url=url, split="val", timeout_s=300)
        for seed in range(3):
            shown, info = env.reset(seed=seed)
            assert info["instance_id"] == f"AppWorld own1_{seed + 1}" and "supervisor: " in env.rules
            first, second = (int(word.strip("?")) for word in shown.split("\n")[0].split()[2::2])
            right = first * second
            assert env.step(f"x = {right}\nprint(x)")[:3] == (f"{right}\n", 0.0, False)
            assert "not allowed" in env.step("open('/etc/passwd')")[0]
            said = env.step(f"apis.supervisor.complete_task(answer=x + {seed % 2})")
            assert said[1:] == (1.0 - seed % 2, True, False, {"success": seed % 2 == 0})
        env.reset(seed=0)
        assert "timed out" in env.step("while True: pass")[0]
        assert (
            env.step("print(apis.supervisor.show_active_task()['instruction'])")[0] == "What is 2 times 8?\n"
        )
        check_env(lambda split: Remote(url=url, split=split, timeout_s=300), episodes=1)
        env.close()
