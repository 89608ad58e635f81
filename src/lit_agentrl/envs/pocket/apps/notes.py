"""Notes with a title and lines of text."""

from __future__ import annotations

from lit_agentrl.envs.pocket.phone import TEXT, Phone, Row, find_rows, make_api


def _search(phone: Phone, query: str) -> list[Row]:
    return [
        {"id": row["id"], "title": row["title"]} for row in find_rows(phone.get_rows("notes"), query, "title")
    ]


def _write(phone: Phone, title: str, text: str) -> Row:
    return phone.add("notes", title=title, text=text)


def _append(phone: Phone, id: str, line: str) -> Row:
    row = phone.get_row("notes", id)
    row["text"] += f"\n{line}"
    return row


APIS = (
    make_api("notes_search", "Finds notes by a part of the title.", _search, query=TEXT),
    make_api("notes_read", "Reads a note.", lambda phone, id: phone.get_row("notes", id), id=TEXT),
    make_api("notes_write", "Writes a new note.", _write, title=TEXT, text=TEXT),
    make_api("notes_append", "Adds a line at the end of a note.", _append, id=TEXT, line=TEXT),
    make_api("notes_delete", "Deletes a note.", lambda phone, id: phone.remove("notes", id), id=TEXT),
)
