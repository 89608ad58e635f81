"""Every shipped game, a thousand instances of it: two processes see the same, and levels are what is shipped."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

from lit_agentrl.envs.levels import Levels, find_levels
from lit_agentrl.paths import CONFIG_DIR
from tests.conftest import ROOT, load_task_yaml
from tests.envs.java import NO_JAVA, has_java
from tests.envs.processes import printed_alike

SPLIT, NUMBER = "val", 1000
# a mixture is of other games; the others ask a server, or a program for each episode: their own tests play them
ELSEWHERE = {"mixture", "remote", "openenv", "mcp"}
NEEDS = {
    "bfcl": "bfcl_eval", "code": "pydantic_monty", "babyai": "minigrid", "textarena": "textarena",
    "reasoning_gym": "reasoning_gym", "textworld": "textworld",
    "textworld_express": "textworld_express", "scienceworld": "scienceworld",
}  # fmt: skip
WORLDS = sorted(file.stem for file in (CONFIG_DIR / "env").glob("[!_]*.yaml"))
JAVA = {"textworld_express", "scienceworld"}
MINUTES = {"babyai", "textarena", "textworld", "reasoning_gym", *JAVA}  # that they take
SCRIPT = """
import dataclasses, hashlib, json
from hydra.utils import instantiate
from omegaconf import OmegaConf
from lit_agentrl.envs.levels import measure
cfg = OmegaConf.load({file!r})
if "game" in cfg and OmegaConf.is_missing(cfg.game, "path"):
    cfg.game.path = {problems!r}
task = instantiate(cfg)
env, digest, ids = task.make({split!r}), hashlib.blake2b(), set()
for seed in range({number}):
    shown, info = env.reset(seed=seed)
    ids.add(info["instance_id"])
    digest.update(json.dumps([shown, info["instance_id"], env.state_key()]).encode())
found = measure(task, {split!r}, {number}, 7_000_000)
print(json.dumps([digest.hexdigest(), len(ids), dataclasses.asdict(found)]))
"""


def marked(name: str) -> tuple[pytest.MarkDecorator, ...]:
    return (pytest.mark.long,) if name in MINUTES else (pytest.mark.slow, pytest.mark.sweep)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=marked(name)) for name in WORLDS if name not in ELSEWHERE]
)
def test_a_thousand_instances(name: str) -> None:
    if name in NEEDS and find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed (docs/adapters.md)")
    if name in JAVA and not has_java():
        pytest.skip(NO_JAVA)
    file = CONFIG_DIR / f"env/{name}.yaml"
    problems = str(ROOT / "examples/own_data/problems.jsonl")
    script = SCRIPT.format(file=str(file), problems=problems, split=SPLIT, number=NUMBER)
    _, instances, plain = json.loads(printed_alike(script))
    now = Levels(**plain)
    print(name, instances, now)
    assert instances > 1 and now.episodes == NUMBER
    assert now.chance_success is not None and now.oracle_success is not None
    assert now.chance_success <= now.oracle_success
    if name == "dataset":  # levels of one's own data are one's own
        return
    shipped = find_levels(load_task_yaml(name), SPLIT)
    for kind in ("chance_success", "oracle_success"):
        rate = getattr(shipped, kind)
        apart = 4 * (rate * (1 - rate) * 2 / NUMBER) ** 0.5  # four standard errors of the difference
        assert getattr(now, kind) == pytest.approx(rate, abs=apart + 1e-9), (name, kind)
