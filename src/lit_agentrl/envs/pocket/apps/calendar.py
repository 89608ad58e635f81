"""Events by day."""

from __future__ import annotations

from lit_agentrl.envs.pocket.phone import DATE, TEXT, TIME, Phone, Row, find_rows, make_api


def _list_day(phone: Phone, date: str) -> list[Row]:
    return [row for row in phone.get_rows("events") if row["date"] == date]


def _search(phone: Phone, query: str) -> list[Row]:
    return find_rows(phone.get_rows("events"), query, "title")


def _add(phone: Phone, title: str, date: str, start: str) -> Row:
    return phone.add("events", title=title, date=date, start=start)


def _move(phone: Phone, id: str, date: str, start: str) -> Row:
    row = phone.get_row("events", id)
    row.update(date=date, start=start)
    return row


APIS = (
    make_api("calendar_day", "Lists the events of a day.", _list_day, date=DATE),
    make_api("calendar_search", "Finds events by a part of the title.", _search, query=TEXT),
    make_api("calendar_add", "Adds an event.", _add, title=TEXT, date=DATE, start=TIME),
    make_api(
        "calendar_move", "Moves an event to another day and time.", _move, id=TEXT, date=DATE, start=TIME
    ),
    make_api("calendar_delete", "Deletes an event.", lambda phone, id: phone.remove("events", id), id=TEXT),
)
