"""All tasks: scenarios of each template, each of three tasks, and the split that they belong to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from lit_agentrl.envs.pocket import joined, simple, wide
from lit_agentrl.envs.pocket.people import phone
from lit_agentrl.envs.pocket.phone import Phone
from lit_agentrl.envs.pocket.plan import Kind, Plan
from lit_agentrl.envs.splits import keyed_rng, stable_hash
from lit_agentrl.envs.splits import split_of as split_of_content

SCENARIOS, TASKS = (
    12,
    3,
)  # of a template; of a scenario, which differ in people and amounts; the last is the odd case
KINDS: Mapping[str, Kind] = {each.name: each for each in (*simple.KINDS, *joined.KINDS, *wide.KINDS)}
HELD_OUT = frozenset({"music", "files"})  # apps that no task of training needs
_VAL = frozenset({"write_note", "spent_on", "save_sender", "share_costs"})
_TEST = frozenset({"forget", "transfer", "pay_asked", "cheapest"})
EASY = ("find_number", "renumber", "tell", "add_event")  # level 0: their scenarios, not they, are held out
_EASY_SCENARIOS = range(1000, 1600)
_DRAW = 81  # purpose key


@dataclass(frozen=True)
class Address:
    """Where a task is found."""

    kind: str
    scenario: int
    task: int

    @property
    def name(self) -> str:
        """Such as ``tell/3_1``: what stands before the last sign ``_`` is the scenario."""
        return f"{self.kind}/{self.scenario}_{self.task}"


def split_of(kind: Kind) -> str:
    """Templates of held-out apps, and some others, are never trained on."""
    if kind.name in _TEST or HELD_OUT & {*kind.apps}:
        return "test"
    return "val" if kind.name in _VAL else "train"


@lru_cache(None)
def addresses(split: str, levels: tuple[int, ...]) -> tuple[Address, ...]:
    """The tasks of a split and of these levels: neighbours are of different templates."""
    kinds = [kind.name for kind in KINDS.values() if split_of(kind) == split and kind.level in levels]
    found = [
        Address(kind, scenario, task)
        for scenario in range(SCENARIOS)
        for task in range(TASKS)
        for kind in kinds
    ]
    if 0 in levels:
        found += [
            Address(kind, scenario, task)
            for scenario in _EASY_SCENARIOS
            for task in range(TASKS)
            for kind in EASY
            if split_of_content(f"{kind} {scenario}") == split
        ]
    return tuple(found)


def begin(address: Address) -> tuple[Phone, Plan]:
    """The phone before a task, and the plan of it."""
    key = stable_hash(f"{address.kind} {address.scenario}")
    made = phone(keyed_rng(key, 0, _DRAW))
    plan = KINDS[address.kind].make(made, keyed_rng(key, address.task + 1, _DRAW), address.task)
    return made, plan


def completion(solved: Iterable[tuple[str, bool]]) -> tuple[float, float | None]:
    """Task goal completion and scenario goal completion, both 0 to 1 (Trivedi et al. 2024).

    ``TGC`` is the share of tasks that were solved.  ``SGC`` is the share of scenarios of which all three tasks were
    solved, among those of which all three were played; None: there is no such scenario.

    Args:
        solved: names of tasks, as in ``info["instance_id"]``, and whether they were solved.  A task that comes again
            counts each time, and is solved for its scenario if it was solved each time.

    Raises:
        ValueError: no tasks.
    """
    played = list(solved)
    if not played:
        raise ValueError("completion needs at least one task")
    scenarios: dict[str, dict[str, bool]] = {}
    for name, is_solved in played:
        tasks = scenarios.setdefault(name.rpartition("_")[0], {})
        tasks[name] = tasks.get(name, True) and is_solved
    whole = [all(tasks.values()) for tasks in scenarios.values() if len(tasks) == TASKS]
    share = sum(is_solved for _, is_solved in played) / len(played)
    return share, sum(whole) / len(whole) if whole else None
