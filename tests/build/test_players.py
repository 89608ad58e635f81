"""Engine, worker and training processes fit together, or are refused before any of them starts."""

from __future__ import annotations

import pytest

from lit_agentrl.engines.served import vllm
from tests.build.test_structure import built
from tests.conftest import thinned


@pytest.mark.parametrize("strategy", thinned(["ddp", "fsdp"]))
def test_vllm_in_each_of_several_processes(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "require_vllm", lambda: "0.32.0")
    given = ("engine=vllm", f"strategy={strategy}", "trainer.accelerator=cpu")
    assert built(*given, "trainer.devices=1")
    assert built(*given, "trainer.devices=2")  # each has an engine of its own
