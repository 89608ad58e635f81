"""People with their numbers."""

from __future__ import annotations

from lit_agentrl.envs.pocket.phone import TEXT, Phone, Row, api, named

RELATION = {"enum": ["family", "friend", "work"]}


def _search(phone: Phone, query: str) -> list[Row]:
    return named(phone.rows("contacts"), query, "name", "relation")


def _add(phone: Phone, name: str, number: str, relation: str) -> Row:
    return phone.add("contacts", name=name, number=number, relation=relation)


def _renumber(phone: Phone, id: str, number: str) -> Row:
    row = phone.row("contacts", id)
    row["number"] = number
    return row


APIS = (
    api(
        "contacts_search",
        "Finds contacts by a part of the name, or by family, friend or work.",
        _search,
        query=TEXT,
    ),
    api("contacts_add", "Adds a contact.", _add, name=TEXT, number=TEXT, relation=RELATION),
    api("contacts_renumber", "Gives a contact another number.", _renumber, id=TEXT, number=TEXT),
    api("contacts_delete", "Deletes a contact.", lambda phone, id: phone.remove("contacts", id), id=TEXT),
)
