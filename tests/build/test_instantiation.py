"""Parts of a run are made from their sections; members of 0.2 are refused with their names of today."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from omegaconf import OmegaConf

from lit_agentrl.build.instantiation import instantiate_as
from lit_agentrl.data.demonstrations import Demonstrations
from lit_agentrl.data.kinds import Kind
from lit_agentrl.rollout.workers.base import WorkerSettings
from lit_agentrl.rollout.workers.inline import Here


class OldData(Demonstrations):
    """A data set that was written for 0.2."""

    def of_episodes(self, episodes: Any) -> Any:
        return iter(())


class OldWorker(Here):
    """A worker that was written for 0.2."""

    place: ClassVar[bool] = False


@pytest.mark.parametrize(
    ("section", "kind", "told"),
    [
        (
            {"path": "x"},
            Kind,
            "OldData declares of_episodes, which is not read since 0.3; name it make_groups",
        ),
        ({}, WorkerSettings, "OldWorker declares place, which is not read since 0.3; name it opens_worker"),
    ],
)
def test_a_member_of_an_earlier_version_is_refused(section: dict[str, str], kind: type, told: str) -> None:
    target = f"{__name__}.{told.split()[0]}"
    cfg = OmegaConf.create({"part": {"_target_": target, **section}})
    with pytest.raises(ValueError, match=f"^part._target_={target}: {told}$"):
        instantiate_as(cfg, "part", kind)
