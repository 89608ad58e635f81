"""All tasks: each template has scenarios of three tasks, which belong to a split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from lit_agentrl.envs.pocket import joined, simple, wide
from lit_agentrl.envs.pocket.people import create_phone
from lit_agentrl.envs.pocket.phone import Phone
from lit_agentrl.envs.pocket.plan import Kind, Plan
from lit_agentrl.envs.splits import keyed_rng, stable_hash
from lit_agentrl.envs.splits import split_of as split_of_content

# scenarios per template, and tasks per scenario, which differ in people and amounts; the last task is the special case
SCENARIOS, TASKS = 12, 3
KINDS: Mapping[str, Kind] = {each.name: each for each in (*simple.KINDS, *joined.KINDS, *wide.KINDS)}
HELD_OUT = frozenset({"music", "files"})  # apps that no task of training needs
_VAL = frozenset({"write_note", "spent_on", "save_sender", "share_costs"})
_TEST = frozenset({"forget", "transfer", "pay_asked", "cheapest"})
# templates of level 0, which holds out scenarios instead of templates
EASY = (
    "find_number",
    "renumber",
    "tell",
    "add_event",
)
_EASY_SCENARIOS = range(1000, 1600)
_DRAW = 81  # purpose key


@dataclass(frozen=True)
class Address:
    """The address of a task."""

    kind: str
    scenario: int
    task: int

    @property
    def name(self) -> str:
        """Name such as ``tell/3_1``; everything before the last ``_`` is the scenario."""
        return f"{self.kind}/{self.scenario}_{self.task}"


def split_of(kind: Kind) -> str:
    """Return the split of a template; templates of held-out apps are never trained on."""
    if kind.name in _TEST or HELD_OUT & {*kind.apps}:
        return "test"
    return "val" if kind.name in _VAL else "train"


@lru_cache(None)
def list_addresses(split: str, levels: tuple[int, ...]) -> tuple[Address, ...]:
    """Return the tasks of a split and of these levels, alternating between templates."""
    kinds = [kind.name for kind in KINDS.values() if split_of(kind) == split and kind.level in levels]
    addresses = [
        Address(kind, scenario, task)
        for scenario in range(SCENARIOS)
        for task in range(TASKS)
        for kind in kinds
    ]
    if 0 in levels:
        addresses += [
            Address(kind, scenario, task)
            for scenario in _EASY_SCENARIOS
            for task in range(TASKS)
            for kind in EASY
            if split_of_content(f"{kind} {scenario}") == split
        ]
    return tuple(addresses)


def begin(address: Address) -> tuple[Phone, Plan]:
    """Create the phone before a task, and its plan."""
    key = stable_hash(f"{address.kind} {address.scenario}")
    phone = create_phone(keyed_rng(key, 0, _DRAW))
    rng = keyed_rng(key, address.task + 1, _DRAW)
    return phone, KINDS[address.kind].make(phone, rng, address.task == TASKS - 1)
