"""What is published: it declares what it imports and carries its files; installed anywhere, it works."""

from __future__ import annotations

import ast
import importlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

import lit_agentrl
from lit_agentrl import __main__ as program
from lit_agentrl.cli._running import run_command
from lit_agentrl.paths import CONFIG_DIR
from tests.test_architecture import PACKAGE

ROOT = Path(__file__).resolve().parent.parent
# the library of an import; parsing every file takes seconds
IMPORTED = re.compile(r"^ *(?:import (?=\w+[\w., ]*(?:$|#))|from (?=\w+[\w.]* import ))(\w+)", re.MULTILINE)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_file_of_the_package_and_of_conf_is_published() -> None:
    published = {
        file.distribution_path: Path(file.path) for file in WheelBuilder(str(ROOT)).recurse_included_files()
    }
    expected = {
        f"{prefix}/{file.relative_to(folder).as_posix()}": file
        for prefix, folder in (("lit_agentrl", PACKAGE), ("lit_agentrl/conf", CONFIG_DIR))
        for file in folder.rglob("*")
        if file.is_file() and file.suffix != ".pyc"
    }
    assert published == expected
    assert {"lit_agentrl/py.typed", "lit_agentrl/conf/train.yaml"} <= published.keys()
    folders = {file.parent for file in PACKAGE.rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_every_library_that_is_imported_is_declared() -> None:
    project = PROJECT["project"]
    declared = [
        *project["dependencies"],
        *(d for extra in project["optional-dependencies"].values() for d in extra),
    ]
    names = {re.split(r"[^\w-]", line)[0].lower().replace("_", "-") for line in declared}
    of_module = metadata.packages_distributions()
    missing = set()
    for file in PACKAGE.rglob("*.py"):
        for name in set(IMPORTED.findall(file.read_text(encoding="utf-8"))):
            packages = {package.lower().replace("_", "-") for package in of_module.get(name, [name])}
            if name not in sys.stdlib_module_names and not packages & names:
                missing.add(name)
    # textworld: installed without its dependency jericho, docs/adapters.md
    assert not missing - {"lit_agentrl", "textworld"}


def test_make_train_installs_what_training_needs_and_make_test_the_rest(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    planned = {
        target: subprocess.run(
            ["make", "-n", target], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout
        for target in ("train", "test")
    }
    installs = {target: re.findall(r"pip install .*?-e (\S+)", text) for target, text in planned.items()}
    assert installs == {"train": ["."], "test": [".", "'.[dev]'"]}
    assert "train.py algo=grpo env=sokoban" in planned["train"] and "-m pytest" not in planned["train"]


def test_the_version_is_said_once_and_heads_the_changelog() -> None:
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", lit_agentrl.__version__)
    newest = re.search(r"^## \[?([\w.]+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None and newest[1] == lit_agentrl.__version__


# ---------------------------------------------------------------- the program
Printed = Callable[..., str]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    """What a command of ``lit-agentrl`` prints."""

    def run(*arguments: str, status: int = 0) -> str:
        try:
            program.main(arguments)
        except SystemExit as ended:
            assert ended.code == status
        else:
            assert status == 0
        told = capsys.readouterr()
        return told.err if status else told.out

    return run


def test_a_file_is_a_subcommand(printed: Printed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "say_it.py").write_text('"""Say it.\n\nMore."""\ndef main(argv): print("said", *argv)\n')
    (tmp_path / "_helper.py").write_text('"""No subcommand."""\n')
    monkeypatch.setattr(program.cli, "__path__", [*program.cli.__path__, str(tmp_path)])
    assert "\n  say-it     Say it.\n" in printed() == printed("--help") == printed("-h")
    assert "_helper" not in printed() and "No subcommand" not in printed()
    assert printed("say-it", "a=1", "--help") == "said a=1 --help\n"
    assert printed("say-ti", status=1) == "error: unknown subcommand say-ti; did you mean say-it?\n"
    del sys.modules["lit_agentrl.cli.say_it"]


@pytest.mark.parametrize("name", program.find_subcommands())
def test_every_subcommand_has_a_line_of_help_and_a_main(name: str) -> None:
    module = importlib.import_module(f"lit_agentrl.cli.{name.replace('-', '_')}")
    assert callable(module.main)
    line = (
        ast.get_docstring(ast.parse(program.find_subcommands()[name].read_text(encoding="utf-8"))) or ""
    ).split("\n")[0]
    assert 10 < len(line) <= 65


@pytest.mark.parametrize(
    "arguments", ["--version", "train --version", "evaluate --version", "play --version"]
)
def test_the_version_is_ours(printed: Printed, arguments: str) -> None:
    assert printed(*arguments.split()) == f"lit_agentrl {lit_agentrl.__version__}\n"


def test_an_exit_that_lightning_makes_of_an_interrupt_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    def exit_after_interrupt() -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            sys.exit(1)

    for body, status in [(exit_after_interrupt, 130), (lambda: sys.exit(3), 3)]:
        with pytest.raises(SystemExit) as ended, run_command([]):
            body()
        assert ended.value.code == status
    assert capsys.readouterr().err == "interrupted\n"


# ---------------------------------------------------------------- the wheel
def run(*command: str | Path, cwd: Path) -> str:
    """What a program prints, with nothing of this checkout in its environment."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(cwd.parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


OFFLINE = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
TRAIN = ["train", "experiment=quick", "env=bandit", "trainer.accelerator=cpu"]


def source_tree(folder: Path) -> Path:
    """A copy of what the package is made from."""
    shutil.copytree(PACKAGE, folder / "src/lit_agentrl", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(CONFIG_DIR, folder / "conf")
    for name in ("pyproject.toml", ".gitignore", "README.md", "CHANGELOG.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def new_environment(folder: Path) -> Path:
    """The interpreter of an environment that reads our dependencies, and not our package."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    # a line of a .pth adds a folder, but reads none of the .pth files inside, by which our package is found
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin" / "python"


def install(python: Path, *what: str | Path) -> None:
    run(sys.executable, "-m", "pip", "--python", python, "install", *OFFLINE, *what, cwd=python.parent)


def package_folder(python: Path, home: Path) -> Path:
    return Path(run(python, "-c", "import lit_agentrl; print(lit_agentrl.__path__[0])", cwd=home).strip())


@pytest.mark.slow
@pytest.mark.sweep
def test_an_installed_wheel_trains_evaluates_and_plays_in_an_empty_folder(tmp_path: Path) -> None:
    """Made as by ``make dist``, without a network."""
    source, dist, home = source_tree(tmp_path / "source"), tmp_path / "dist", tmp_path / "home"
    home.mkdir()
    hook = f"from hatchling.build import build_sdist; build_sdist({str(dist)!r})"
    run(sys.executable, "-c", hook, cwd=source)
    (archive,) = dist.glob("*.tar.gz")
    run(sys.executable, "-m", "pip", "wheel", *OFFLINE, "--wheel-dir", dist, archive, cwd=dist)
    (wheel,) = dist.glob(f"lit_agentrl-{lit_agentrl.__version__}-py3-none-any.whl")

    python = new_environment(tmp_path / "env")
    install(python, wheel)
    assert package_folder(python, home).is_relative_to(tmp_path / "env")
    program = python.with_name("lit-agentrl")
    assert run(program, "--version", cwd=home) == f"lit_agentrl {lit_agentrl.__version__}\n"
    assert "completed: 2 of 2 iterations" in run(program, *TRAIN, cwd=home)
    (folder,) = home.glob("outputs/*/*")
    module = [python, "-m", "lit_agentrl"]
    assert "last weights" in run(*module, "evaluate", f"run={folder}", "episodes=4", cwd=home)
    assert "turn 1" in run(*module, "play", f"run={folder}", "env=sokoban", cwd=home)
    assert {path.name for path in home.iterdir()} == {"outputs"}


@pytest.mark.slow
@pytest.mark.sweep
def test_an_editable_install_trains_in_an_empty_folder_and_reads_the_configs_of_its_source(
    tmp_path: Path,
) -> None:
    source, home = source_tree(tmp_path / "source"), tmp_path / "home"
    home.mkdir()
    python = new_environment(tmp_path / "env")
    install(python, "--editable", source)
    assert package_folder(python, home) == source / "src/lit_agentrl"
    program = python.with_name("lit-agentrl")
    assert "completed: 2 of 2 iterations" in run(program, *TRAIN, cwd=home)
    (source / "conf/algo/mine.yaml").write_text((CONFIG_DIR / "algo/grpo.yaml").read_text())
    assert "name: grpo" in run(program, "train", "algo=mine", "--cfg", "job", cwd=home)
