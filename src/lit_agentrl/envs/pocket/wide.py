"""Tasks of three apps, or of many calls."""

from __future__ import annotations

from typing import Any

import numpy as np

from lit_agentrl.envs.pocket.joined import choose_contact, find_contact, send_text
from lit_agentrl.envs.pocket.people import ARTISTS, PRODUCTS, choose, draw_day, pick
from lit_agentrl.envs.pocket.phone import Phone
from lit_agentrl.envs.pocket.plan import Calls, Plan, declare


@declare(3, "bank", "contacts", "messages")
def settle(phone: Phone, rng: np.random.Generator, is_special: bool) -> Plan:
    """Pay requests of the family; in the special case, the family has none."""
    family = [row for row in phone.get_rows("contacts") if row["relation"] == "family"]
    others = [row for row in phone.get_rows("contacts") if row["relation"] != "family"]
    calls: Calls = [("bank_pending", {}), ("contacts_search", {"query": "family"})]
    asking = [*(choose_rows(family, 2, rng) if not is_special else []), *choose_rows(others, 2, rng)]
    for row in choose_rows(asking, len(asking), rng):
        request = phone.add(
            "requests", by=row["name"], of="me", amount=int(rng.integers(5, 60)), memo="dinner"
        )
        if row["relation"] == "family":
            calls += [("bank_pay_request", {"id": request["id"]}), send_text(row, "Paid.")]
    count = sum(row["relation"] == "family" for row in asking)
    text = (
        "Pay the waiting requests of my family, and of nobody else, and send each of them the message 'Paid.'"
    )
    return Plan(f"{text} Answer with the number of requests that you paid.", calls, str(count))


@declare(3, "calendar", "contacts", "messages")
def call_off(phone: Phone, rng: np.random.Generator, is_special: bool) -> Plan:
    """Cancel the events of a day; in the special case, one event stays."""
    date, people = draw_day(rng), choose_rows(phone.get_rows("contacts"), 3, rng)
    calls: Calls = [("calendar_day", {"date": date})]
    for event in [row for row in phone.get_rows("events") if row["date"] == date]:
        phone.remove("events", event["id"])
    events = [
        phone.add("events", title=f"{title} with {row['name']}", date=date, start=f"{start}:00")
        for title, row, start in zip(("coffee", "tennis", "dinner"), people, (10, 15, 19), strict=True)
    ]
    text = f"I am ill on {date}. Delete all my events of that day, and send each person whom I wanted to meet the "
    text += "message 'Sorry, I am ill.'"
    cancelled = events[1:] if is_special else events
    if is_special:
        text += " Only the coffee in the morning stays as it is."
    for row, event in zip(people, events, strict=True):
        if event in cancelled:
            calls += [
                ("calendar_delete", {"id": event["id"]}),
                find_contact(row),
                send_text(row, "Sorry, I am ill."),
            ]
    return Plan(text, calls)


@declare(3, "notes", "contacts", "bank", "messages")
def share_costs(phone: Phone, rng: np.random.Generator, is_special: bool) -> Plan:
    """Request shares of a cost; in the special case, one person has paid already."""
    people, cost = choose_rows(phone.get_rows("contacts"), 3, rng), int(rng.integers(8, 60))
    lines = [f"cost of all four of us: {4 * cost}", *(row["name"] for row in people), "me"]
    note = phone.add("notes", title="cabin trip", text="\n".join(lines))
    if is_special:
        note["text"] += f"\n{people[0]['name']} has paid"
        people = people[1:]
    calls: Calls = [("notes_search", {"query": "cabin trip"}), ("notes_read", {"id": note["id"]})]
    calls += [("bank_request", {"of": row["name"], "amount": cost, "memo": "cabin trip"}) for row in people]
    words = "I asked you for your share."
    calls += [step for row in people for step in (find_contact(row), send_text(row, words))]
    text = (
        "I paid the cabin trip. The note 'cabin trip' tells the cost and who was there; we share it equally. "
    )
    text += "Request their share from each person that has not paid, with the memo 'cabin trip', and send each the "
    text += f"message '{words}'"
    return Plan(text, calls)


@declare(3, "shop", "bank", "notes", name="cheapest")
def buy_cheapest(phone: Phone, rng: np.random.Generator, is_special: bool) -> Plan:
    """Buy the cheapest product; in the special case, it is too expensive."""
    product = pick(PRODUCTS.split(", "), rng)
    phone.add("products", name=f"Ester {product}", price=int(rng.integers(2, 40)))
    rows = [row for row in phone.get_rows("products") if product in row["name"]]
    for index, row in enumerate(rows):
        row["price"] = 3 * row["price"] + index  # makes all prices different
    best = min(rows, key=lambda row: int(row["price"]))
    max_price = best["price"] - 1 if is_special else best["price"] + 2
    text = f"Buy the cheapest {product} that the shop has, if it costs at most ${max_price}, and write a note with "
    text += "the title 'bought' and its full name as text. If it costs more, buy nothing and write 'too dear' as text."
    calls: Calls = [("shop_search", {"query": product})]
    if not is_special:
        calls += [("shop_put", {"product": best["id"], "count": 1}), ("shop_buy", {})]
    calls += [("notes_write", {"title": "bought", "text": "too dear" if is_special else best["name"]})]
    return Plan(text, calls)


@declare(3, "music", "contacts", "messages")
def mix_tape(phone: Phone, rng: np.random.Generator, is_special: bool) -> Plan:
    """Make a playlist of an artist; in the special case, the artist has no songs."""
    artist, row = ("Vera Moss" if is_special else pick(ARTISTS, rng)), choose_contact(phone, rng)
    songs = [song for song in phone.get_rows("songs") if song["artist"] == artist]
    pages = range(1, max(-(-len(songs) // 5), 1) + 1)
    calls: Calls = [("music_search", {"query": artist, "page": page}) for page in pages]
    calls += [("music_create", {"name": artist})]
    calls += [("music_put", {"playlist": artist, "song": song["id"]}) for song in songs]
    words = f"I have {len(songs)} songs by {artist}."
    calls += [find_contact(row), send_text(row, words)]
    text = f"Make a playlist '{artist}' with all songs by {artist}, and send {row['name']} the message 'I have N songs "
    text += f"by {artist}.', where N is their number. If there are none, the playlist stays empty and N is 0."
    return Plan(text, calls)


@declare(3, "files", "bank", "messages", name="invoices")
def sort_invoices(phone: Phone, rng: np.random.Generator, is_special: bool) -> Plan:
    """Move paid invoices; in the special case, all are paid."""
    calls: Calls = [("files_list", {"folder": "invoices"})]
    open_amount = 0
    for index, firm in enumerate(choose(("Elm Power", "Aqua Works", "City Net", "Roof Repair"), 3, rng)):
        amount = int(rng.integers(100, 400))
        content = f"Invoice of {firm}: {amount} dollars"
        file = phone.add("files", folder="invoices", name=f"invoice{index}.txt", text=content)
        is_paid = is_special or index != 1
        if is_paid:
            phone.add("transfers", to=firm, amount=amount, memo="invoice")
            calls += [("files_move", {"id": file["id"], "folder": "paid"})]
        else:
            open_amount += amount
        calls[1:1] = [("files_read", {"id": file["id"]}), ("bank_history", {"to": firm})]
    row = choose_contact(phone, rng)
    calls += [send_text(row, f"Open: {open_amount}")]
    text = "Move the files in the folder 'invoices' whose amount I have sent to the firm into the folder 'paid'. Then "
    text += f"send the number {row['number']} the message 'Open: N', where N is the sum of the others in dollars, or 0."
    return Plan(text, calls)


def choose_rows(rows: list[dict[str, Any]], count: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Choose ``count`` rows, in random order."""
    return [rows[int(index)] for index in rng.permutation(len(rows))[:count]]


KINDS = (settle, call_off, share_costs, buy_cheapest, mix_tape, sort_invoices)
