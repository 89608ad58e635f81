"""The Dockerfile, read without Docker: what it copies exists and suffices, its versions are those of the project."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
IGNORED = [
    line for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line and line[0] != "#"
]  # fmt: skip


def list_instructions(name: str) -> list[str]:
    """What stands behind an instruction, each time; continued lines are joined, comments are left out."""
    joined = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE))
    return re.findall(rf"^{name} +(.+)$", joined, flags=re.MULTILINE)


ARGUMENTS = dict(each.split("=", 1) for each in list_instructions("ARG"))
COPIED = [word for each in list_instructions("COPY") for word in shlex.split(each)[:-1]]


def test_the_base_is_pinned_and_new_enough() -> None:
    (base,) = list_instructions("FROM")
    name, _, tag = base.partition(":")
    version = re.match(r"(\d+)\.(\d+)\.\d+-slim-[a-z]+$", tag)
    assert name == "python" and version is not None, f"{base} is not one release"
    low = tuple(map(int, PROJECT["requires-python"].removeprefix(">=").split(".")))
    assert (int(version[1]), int(version[2])) >= low


def test_versions_are_those_of_the_makefile_and_the_constraints() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"TORCH := torch=={ARGUMENTS['TORCH']}\n" in makefile
    assert (
        f"torch=={ARGUMENTS['TORCH']}" in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    )


def test_extras_exist_and_arguments_are_used() -> None:
    extras = ARGUMENTS["EXTRAS"].split(",")
    assert set(extras) <= PROJECT["optional-dependencies"].keys()
    assert all(re.search(rf"\$\{{?{name}\b", "\n".join(list_instructions("RUN"))) for name in ARGUMENTS)
    start = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    assert set(re.findall(r"--build-arg (\w+)=", start + DOCKERFILE)) <= ARGUMENTS.keys()


def test_the_context_holds_what_is_copied_and_no_more() -> None:
    assert COPIED and all((ROOT / name).exists() for name in COPIED)
    assert IGNORED[0] == "*" and {line[1:] for line in IGNORED if line.startswith("!")} == set(COPIED)
    assert all(line.startswith(("!", "**/")) for line in IGNORED[1:])


def test_what_is_copied_makes_the_wheel(tmp_path: Path) -> None:
    for name in COPIED:
        (tmp_path / name).symlink_to(ROOT / name)
    here, there = (WheelBuilder(str(place)) for place in (ROOT, tmp_path))
    assert there.metadata.core.readme and there.metadata.core.license_files == ["LICENSE"]
    files = [{file.distribution_path for file in each.recurse_included_files()} for each in (here, there)]
    assert files[0] == files[1] and len(files[1]) > 500


@pytest.mark.parametrize(("arguments", "command"), [
    ({"DEVICE": "cpu"}, "torch==2 --index-url URL"), ({"DEVICE": "cuda"}, "torch==2"),
])  # fmt: skip
def test_the_steps_of_the_shell_are_those_of_the_device(
    arguments: dict[str, str], command: str, tmp_path: Path
) -> None:
    """The RUN lines, by the same shell; the only programs that it finds are stand-ins."""
    checked, torch, package, _ = list_instructions("RUN")
    for name in ("pip", "apt-get", "rm"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*"\n')
        (tmp_path / name).chmod(0o755)

    def run(text: str, **variables: str) -> subprocess.CompletedProcess[str]:
        fixed = {"TORCH": "2", "CPU_INDEX": "URL", "EXTRAS": "a,b", "PATH": str(tmp_path)}
        variables = {**fixed, **arguments, **variables}
        return subprocess.run(["/bin/sh", "-fc", text], env=variables, capture_output=True, text=True)

    assert run(torch).stdout == f"pip install {command}\n"
    assert ("gcc" in run(checked).stdout) == (arguments["DEVICE"] == "cuda") and run(checked).returncode == 0
    assert run(package).stdout == "pip install -c constraints.txt .[a,b]\nrm -rf /src/*\n"
    assert run(package, EXTRAS="").stdout == "pip install -c constraints.txt .\nrm -rf /src/*\n"
    wrong = run(checked, DEVICE="tpu")
    assert wrong.returncode == 1 and wrong.stderr == "DEVICE=tpu must be cpu or cuda\n"


def test_the_program_is_one_that_the_package_installs() -> None:
    assert list_instructions("ENTRYPOINT") == ['["lit-agentrl"]'] and "lit-agentrl" in PROJECT["scripts"]
    assert list_instructions("USER") == ["agent"]
