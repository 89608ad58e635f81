"""What both Java worlds share: the words about what is missing."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

from lit_agentrl.envs.adapters.base import Replayed


@pytest.mark.parametrize(
    ("library", "world"), [("scienceworld", "ScienceWorld"), ("textworld_express", "TextWorldExpress")]
)
def test_what_is_missing_is_named(library: str, world: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(library)
    make: type[Replayed] = getattr(import_module(f"lit_agentrl.envs.adapters.{library}"), world)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(
        ValueError, match=r"^this game needs a Java runtime .*apt install default-jre-headless"
    ):
        make()
    monkeypatch.setitem(sys.modules, f"{library}.constants", None)
    with pytest.raises(ValueError, match=rf"pip install 'lit-agentrl\[{library}\]'$"):
        make()
