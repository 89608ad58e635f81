"""Agents of frameworks as they are, with their packages in an environment of their own: `make test-agents`."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import pytest

from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.engines.scripted import ScriptedEngine
from lit_agentrl.envs.hosting import Hosting
from lit_agentrl.episode import EndReason, Episode
from lit_agentrl.experimental.gateway.context import Calls
from lit_agentrl.experimental.gateway.task import ProgramTask
from lit_agentrl.experimental.gateway.world import AgentProgram
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import EpisodeSpec, Scheduler, Wave
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.dialects.tool_call import ToolCalls
from lit_agentrl.text.ledger import check_ledger
from lit_agentrl.text.prompts import Prompt
from tests.conftest import ROOT
from tests.experimental.gateway_once import assert_whole_and_rewarded, train_once
from tests.text.conftest import make_bpe

PYTHON = Path(os.environ.get("AGENTS_PYTHON", ROOT / ".venv-agents/bin/python"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not PYTHON.exists(), reason="langgraph and mini-swe-agent are not installed (make test-agents)"
    ),
]
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
READ = "git log --oneline && cat mean.py"
SOLUTIONS = {
    "mended": ([READ, "sed -i 's/(len(numbers) - 1)/len(numbers)/' mean.py && python test_mean.py", SUBMIT], 1.0),
    "another mistake": (["sed -i 's/- 1/+ 1/' mean.py", SUBMIT], 0.0),
    "the test removed": (["echo > test_mean.py && python test_mean.py", SUBMIT], 0.0),
}  # fmt: skip


def test_a_graph_of_langgraph_is_trained_as_it_is(tmp_path: Path) -> None:
    folder = ROOT / "examples" / "agent_langgraph"
    row = train_once(
        tmp_path,
        f"env.game.command=[{PYTHON},{folder / 'agent.py'}]",
        f"env.game.path={folder / 'tasks.jsonl'}",
    )
    assert_whole_and_rewarded(row)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Where a program could leave something: its folder, its home, and that of temporary files."""
    found = [tmp_path / name for name in ("here", "home", "temporary")]
    for place in found:
        place.mkdir()
    monkeypatch.chdir(found[0])
    monkeypatch.setenv("HOME", str(found[1]))
    monkeypatch.setenv("TMPDIR", str(found[2]))
    return found


def mend(commands: list[str], tasks: dict[str, str]) -> Episode:
    """The episode of mini-SWE-agent on a task, in which the policy writes these commands."""
    calls = [json.dumps({"name": "bash", "arguments": {"command": each}}) for each in commands]
    replies = [ToolCalls().write([call], thought="try") + "<|im_end|>" for call in calls]
    tokenizer = make_bpe()
    engine = ScriptedEngine(
        lambda _, turn: replies[turn],
        encode=lambda text: tokenizer(text, add_special_tokens=False)["input_ids"],
    )
    world = partial(
        AgentProgram, mode="command", command=[str(PYTHON), str(ROOT / "examples/agent_swe/agent.py")],
        path=tasks, timeout_s=300.0,
    )  # fmt: skip
    task = ProgramTask(
        "program", world, max_turns=20, max_actions_per_turn=1, max_actions=20, invalid_penalty=0.0,
        hosting=Hosting(where="thread", workers=1),
    )  # fmt: skip
    rules = Rules(
        tasks=[task], prompt=Prompt(style="bare"), chat=ChatRenderer(tokenizer, dialect=ToolCalls()), context=Calls(),
        engine=lambda **_: engine, max_context_tokens=30_000,
    )  # fmt: skip
    scheduler = Scheduler(rules, engine)
    try:
        params = SamplingParams(max_reply_tokens=400, max_context_tokens=30_000)
        [episode] = scheduler.play(Wave("train", 0, params, (EpisodeSpec(0, 0, 0, 0, 5),)))
    finally:
        scheduler.close()
    return episode


@pytest.mark.parametrize("name", SOLUTIONS)
def test_mini_swe_agent_is_rewarded_by_the_test_of_the_repository(
    name: str, places: list[Path], tmp_path: Path
) -> None:
    commands, reward = SOLUTIONS[name]
    rows = (ROOT / "examples/agent_swe/tasks.jsonl").read_text().splitlines()
    tasks = {split: tmp_path / f"{split}.jsonl" for split in ("train", "val", "test")}
    for file, row in zip(tasks.values(), rows, strict=False):
        file.write_text(row)
    episode = mend(commands, {split: str(file) for split, file in tasks.items()})
    assert (episode.error, len(episode.turns)) == ("", len(commands))
    assert episode.end is (EndReason.SUCCESS if reward else EndReason.FAILURE)
    assert episode.turns[-1].reward == reward
    assert [turn.starts_row for turn in episode.turns] == [True, *[False] * (len(commands) - 1)]
    check_ledger(episode)
    if name == "mended":
        assert "as it was" in episode.turns[1].message and "len(numbers) - 1" in episode.turns[1].message
    assert [list(place.iterdir()) for place in places] == [[], [], []]
