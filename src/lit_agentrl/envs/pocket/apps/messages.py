"""Text messages by phone number."""

from __future__ import annotations

from lit_agentrl.envs.pocket.phone import PAGE, TEXT, Phone, Row, get_page, make_api


def _list(phone: Phone, page: int = 1, number: str = "", unread: bool = False) -> Row:
    rows = [row for row in phone.get_rows("messages") if number in ("", row["number"])]
    return get_page([row for row in rows if not unread or not row["read"]], page)


def _send(phone: Phone, number: str, text: str) -> Row:
    return phone.add("messages", number=number, by="me", text=text, read=True)


def _mark(phone: Phone, id: str) -> Row:
    row = phone.get_row("messages", id)
    row["read"] = True
    return row


_SHOWN = {"page": PAGE, "number": TEXT, "unread": {"type": "boolean"}}

APIS = (
    make_api(
        "messages_list", "Lists messages, oldest first: all, with one number, or unread ones.", _list, _SHOWN
    ),
    make_api("messages_send", "Sends a text to a number.", _send, number=TEXT, text=TEXT),
    make_api("messages_mark_read", "Marks a message as read.", _mark, id=TEXT),
    make_api(
        "messages_delete", "Deletes a message.", lambda phone, id: phone.remove("messages", id), id=TEXT
    ),
)
