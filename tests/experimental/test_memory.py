"""Memory: whose episodes are kept and drawn, that they outlast a restart, and what is refused."""

from __future__ import annotations

import pytest

from lit_agentrl.episode import Source
from lit_agentrl.experimental.memory import Memory
from lit_agentrl.rollout.structures.refill import Refill
from tests.build.test_structure import built
from tests.experimental.test_replay import assert_equal, collector, step
from tests.rollout.test_collector import LOSE, WIN


def played(structure: Refill, iterations: int, first: int = 0) -> list[tuple[object, dict[str, float]]]:
    made, player = collector(structure, lambda spec, turn: WIN if spec.member else LOSE)
    return [step(made, player, iteration) for iteration in range(first, iterations)]


def test_rows_of_the_last_iterations_stand_beside_the_new_ones() -> None:
    structure = Memory(iterations=2, rows=2)
    (first, row), _, _, (last, later) = played(structure, 4)
    assert first.trajectories is not None and not first.trajectories.source_B.any()
    assert (row["structure/kept_episodes"], row["structure/remembered_share"]) == (2.0, 0.0)
    rows = last.trajectories
    assert rows is not None and rows.source_B.tolist() == [Source.ROLLOUT] * 2 + [Source.REPLAY] * 4
    assert rows.group_B.tolist() == [3] * 6 and len(rows.trajectory_B.unique()) == 6
    assert (later["structure/kept_episodes"], later["structure/remembered_share"]) == (4.0, 4 / 6)
    assert 1.0 <= later["structure/remembered_age"] <= 2.0 and later["rollout/episodes"] == 2.0
    kept = {e["iteration"] for e in structure.state_dict()["kept"]}
    assert kept == {2, 3}


def test_it_outlasts_a_restart_and_without_rows_is_refill() -> None:
    structure, again = Memory(), Memory()
    played(structure, 3)
    again.load_state_dict(structure.state_dict())
    assert again.state_dict() == structure.state_dict()
    ((one, _),), ((other, _),) = (played(each, 4, first=3) for each in (structure, again))
    assert_equal(one.trajectories, other.trajectories)
    plain, without = (played(each, 2)[-1][0].trajectories for each in (Refill(), Memory(rows=0)))
    assert_equal(plain, without)
    assert Memory(rows=0).state_dict() == {}


def test_every_rank_keeps_those_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    from lit_agentrl.experimental import memory

    structure = Memory(iterations=1)
    seen: list[object] = []
    monkeypatch.setattr(memory, "gather_objects", lambda own: seen.extend(own) or list(reversed(own)))
    played(structure, 1)
    ids = [(e["group"], e["member"]) for e in structure.state_dict()["kept"]]
    assert ids == [(0, 0), (0, 1)] and len(seen) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("algo=grpo", "algo/structure=memory"), r"by algo=grpo: .* set algo/advantage=archer"),
        (("algo=archer", "algo/ratio=none", "algo/clip=none"), r"Memory needs .* set algo/ratio=token"),
        (("algo=archer", "algo.structure.rows=-1"), "rows=-1 must be a whole number"),
        (("algo=archer", "algo.structure.iterations=0"), "iterations=0 must be a whole number >= 1"),
        (("algo=archer", "critic=none"), "needs the values of a critic"),
    ],
)  # fmt: skip
def test_what_does_not_fit(options: tuple[str, ...], message: str) -> None:
    with pytest.raises(Exception, match=message):
        built(*options)
