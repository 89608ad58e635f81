"""mini-SWE-agent on a small repository with a failing test: it mends the code by commands of bash."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MOST_CALLS = 8


def make_repository(folder: Path, files: dict[str, str]) -> None:
    """Write the files of a task as a repository of git."""
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "as it was"]):
        who = ["-c", "user.name=nobody", "-c", "user.email=nobody@localhost"]
        subprocess.run(["git", *who, *arguments], cwd=folder, check=True)


def mend(issue: str, repository: Path) -> None:
    """Let the agent work in a repository until it submits, or has made its calls."""
    import yaml
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.config import builtin_config_dir
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models.litellm_model import LitellmModel

    config = yaml.safe_load((builtin_config_dir / "mini.yaml").read_text())
    templates = {name: config["agent"][name] for name in ("system_template", "instance_template")}
    model = LitellmModel(model_name="openai/policy", cost_tracking="ignore_errors", **config["model"])
    place = {**config["environment"]["env"], "HOME": str(repository.parent)}
    agent = DefaultAgent(
        model, LocalEnvironment(cwd=str(repository), env=place), step_limit=MOST_CALLS, **templates
    )
    agent.run(issue)


def passes(task: dict[str, Any], repository: Path) -> bool:
    """Return whether the test of a task passes, which is first written as it was."""
    (repository / task["test"]).write_text(task["files"][task["test"]])
    command = [sys.executable, "-B", task["test"]]
    try:
        return subprocess.run(command, cwd=repository, capture_output=True, timeout=30).returncode == 0
    except subprocess.TimeoutExpired:
        return False


if __name__ == "__main__":
    task = json.loads(os.environ["LIT_AGENTRL_TASK"])
    with tempfile.TemporaryDirectory() as name:
        # its settings and caches belong to this episode; prices of models are not looked up
        os.environ |= {"MSWEA_GLOBAL_CONFIG_DIR": name, "MSWEA_SILENT_STARTUP": "1", "TMPDIR": name,
                       "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # fmt: skip
        repository = Path(name) / "repository"
        make_repository(repository, task["files"])
        mend(task["issue"], repository)
        print(json.dumps({"reward": float(passes(task, repository))}))
