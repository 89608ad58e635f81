"""People with their phone numbers."""

from __future__ import annotations

from lit_agentrl.envs.pocket.phone import TEXT, Phone, Row, find_rows, make_api

RELATION = {"enum": ["family", "friend", "work"]}


def _search(phone: Phone, query: str) -> list[Row]:
    return find_rows(phone.get_rows("contacts"), query, "name", "relation")


def _add(phone: Phone, name: str, number: str, relation: str) -> Row:
    return phone.add("contacts", name=name, number=number, relation=relation)


def _change_number(phone: Phone, id: str, number: str) -> Row:
    row = phone.get_row("contacts", id)
    row["number"] = number
    return row


APIS = (
    make_api(
        "contacts_search",
        "Finds contacts by a part of the name, or by family, friend or work.",
        _search,
        query=TEXT,
    ),
    make_api("contacts_add", "Adds a contact.", _add, name=TEXT, number=TEXT, relation=RELATION),
    make_api("contacts_renumber", "Gives a contact another number.", _change_number, id=TEXT, number=TEXT),
    make_api(
        "contacts_delete", "Deletes a contact.", lambda phone, id: phone.remove("contacts", id), id=TEXT
    ),
)
