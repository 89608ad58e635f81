"""Match the facts that the parts of a run require with those that they provide.

A part is any object of a config.  It may have two attributes, or properties that depend on its settings: ``requires``,
of `Fact` and `Requirement`, and ``provides``, of `Fact` and `Offer`.  No part names another one: `match` compares all
of them before anything is played.  Facts that parts of several modules share are in `lit_agentrl.facts`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Fact:
    """Something that is true of a run because one of its parts makes it so.

    Attributes:
        name: by which a requirement and an offer are matched.
        sentence: completes "needs"; ``{}`` stands for the amount.
        remedy: completes "set": the options with which a run has it.
        owner: the option whose part usually provides it, for the message; empty: any part may.
    """

    name: str
    sentence: str
    remedy: str
    owner: str = ""


@dataclass(frozen=True)
class Requirement:
    """A fact that a part cannot do without.

    Attributes:
        fact: the fact that some part must provide.
        at_least: the least amount of the fact.
        by: what asks for the fact, as a user writes it; empty: the label of the part.
        reason: completes ": ", why the fact is needed; may be empty.
        remedy: completes "or": options with which the fact is needed no more; may be empty.
    """

    fact: Fact
    at_least: float = 1
    by: str = ""
    reason: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Offer:
    """An amount of a fact; a `Fact` on its own is offered without limit.

    Attributes:
        fact: the fact that is provided.
        amount: how much of the fact; 0: none, but the message about a missing fact names ``by``.
        by: what provides the fact, as a user writes it; empty: the label of the part.
    """

    fact: Fact
    amount: float = math.inf
    by: str = ""


@dataclass(frozen=True)
class Part:
    """A part of a run, as `match` sees it.

    Attributes:
        key: the option that describes the part, such as ``algo.structure``.
        label: the option with its value, such as ``algo.structure=Refill``.
        requires: what it needs of the run.
        provides: what it gives to the run.
    """

    key: str
    label: str
    requires: tuple[Requirement, ...] = ()
    provides: tuple[Offer, ...] = ()


def describe_part(
    key: str,
    part: object = None,
    *,
    name: str = "",
    requires: Iterable[Fact | Requirement] = (),
    provides: Iterable[Fact | Offer] = (),
) -> Part:
    """Return an object as a part of a run, with its own and further declarations.

    Args:
        key: the option of the object.
        part: the object; an object without ``requires`` and ``provides`` declares nothing.
        name: the value of the option in messages; empty: the name of the object's class.
        requires: requirements in addition to those that the object declares.
        provides: facts and offers in addition to those that the object declares.

    Raises:
        ValueError: the object declares something that is no fact.
    """
    label = f"{key}={name or type(part).__name__}"
    wanted = [
        Requirement(entry) if isinstance(entry, Fact) else _require_kind(label, entry, Requirement)
        for entry in (*_list_declared(part, "requires"), *requires)
    ]
    offered = [
        Offer(entry) if isinstance(entry, Fact) else _require_kind(label, entry, Offer)
        for entry in (*_list_declared(part, "provides"), *provides)
    ]
    return Part(
        key,
        label,
        tuple(replace(requirement, by=requirement.by or label) for requirement in wanted),
        tuple(replace(offer, by=offer.by or label) for offer in offered),
    )


def match(parts: Iterable[Part], *, undecided: Collection[str] = ()) -> None:
    """Refuse a run in which a part requires a fact that no part provides.

    Args:
        parts: all parts of the run; in their order, the first unmet requirement is reported.
        undecided: options whose parts are not known yet; facts that they own are taken as provided.

    Raises:
        ValueError: a requirement is unmet; the message names the part that requires the fact, the fact, the option
            whose part does not provide it, and the remedy.
    """
    parts = list(parts)
    for part in parts:
        for wanted in part.requires:
            offers = [
                offer for other in parts for offer in other.provides if offer.fact.name == wanted.fact.name
            ]
            if wanted.fact.owner in undecided or any(offer.amount >= wanted.at_least for offer in offers):
                continue
            raise ValueError(_explain(wanted, parts, offers))


def _explain(wanted: Requirement, parts: list[Part], offers: list[Offer]) -> str:
    fact = wanted.fact
    owners = [offer.by for offer in offers] or [part.label for part in parts if part.key == fact.owner]
    source = " and ".join(dict.fromkeys(owners)) or "any part of this run"
    reason = f": {wanted.reason}" if wanted.reason else ""
    remedies = ", or ".join(filter(None, [fact.remedy, wanted.remedy]))
    text = f"{wanted.by} needs {fact.sentence}, not given by {source}{reason}; set {remedies}"
    return text.replace("{}", f"{wanted.at_least:g}")


def _list_declared(part: object, attribute: str) -> Iterable[Any]:
    declared: Iterable[Any] = getattr(part, attribute, ())
    if isinstance(declared, set | frozenset):  # the order of a set differs between processes
        return sorted(declared, key=lambda entry: str(getattr(entry, "fact", entry)))
    return declared


def _require_kind(label: str, entry: Any, kind: type[Any]) -> Any:
    if not isinstance(entry, kind):
        raise ValueError(f"{label} declares {entry!r}, which must be a Fact or {kind.__name__}")
    return entry
