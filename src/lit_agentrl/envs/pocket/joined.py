"""Tasks of two apps."""

from __future__ import annotations

import numpy as np

from lit_agentrl.envs.pocket.people import (
    LINES,
    PRODUCTS,
    TITLES,
    choose,
    draw_day,
    draw_hour,
    draw_number,
    pick,
)
from lit_agentrl.envs.pocket.phone import Phone, Row
from lit_agentrl.envs.pocket.plan import Calls, Plan, declare


def choose_contact(phone: Phone, rng: np.random.Generator) -> Row:
    """Choose any contact."""
    rows = phone.get_rows("contacts")
    return rows[int(rng.integers(len(rows)))]


def find_contact(row: Row) -> tuple[str, dict[str, str]]:
    """Return the call that finds a contact."""
    return "contacts_search", {"query": row["name"]}


def send_text(row: Row, words: str) -> tuple[str, dict[str, str]]:
    """Return the call that sends a text to a contact."""
    return "messages_send", {"number": row["number"], "text": words}


@declare(2, "contacts", "messages")
def tell(phone: Phone, rng: np.random.Generator, is_special: bool) -> Plan:
    """Send a message; the special case: to two people."""
    words, first = pick(LINES.split(", "), rng), choose_contact(phone, rng)
    both = [first]
    if is_special:
        both.append(next(row for row in phone.get_rows("contacts") if row != first))
    names = " and ".join(row["name"] for row in both)
    return Plan(
        f"Send {names} the message '{words}'",
        [step for row in both for step in (find_contact(row), send_text(row, words))],
    )


@declare(2, "contacts", "messages")
def tell_group(phone: Phone, rng: np.random.Generator, is_special: bool) -> Plan:
    """Send a message to a group; the special case: one person is left out."""
    group, words = ("family", "friend", "work")[int(rng.integers(3))], "The party begins at eight."
    rows = [row for row in phone.get_rows("contacts") if row["relation"] == group]
    asks = f"Send everyone whom my contacts call '{group}' the message '{words}'"
    if is_special:
        asks += f" Leave out {rows[0]['name']}."
        rows = rows[1:]
    return Plan(asks, [("contacts_search", {"query": group}), *(send_text(row, words) for row in rows)])


@declare(2, "contacts", "messages")
def save_sender(phone: Phone, rng: np.random.Generator, is_special: bool) -> Plan:
    """Add the sender of a message; the special case: as a known person's new number."""
    new, row = draw_number(rng), choose_contact(phone, rng)
    name = row["name"] if is_special else "Lena Fisk"
    phone.add("messages", number=new, by="them", text=f"This is {name}, with my new number.", read=False)
    find = ("messages_list", {"unread": True})
    if is_special:
        asks = f"{name} wrote from a new number. Change it in my contacts."
        return Plan(asks, [find, find_contact(row), ("contacts_renumber", {"id": row["id"], "number": new})])
    asks = f"{name} wrote from a number that I do not know yet. Add her to my contacts as work."
    return Plan(asks, [find, ("contacts_add", {"name": name, "number": new, "relation": "work"})])


@declare(2, "messages", "calendar")
def accept(phone: Phone, rng: np.random.Generator, is_special: bool) -> Plan:
    """Accept an invitation; the special case: a later message changes the time."""
    sender, date, start = choose_contact(phone, rng)["number"], draw_day(rng), draw_hour(rng)
    phone.add("messages", number=sender, by="them", text=f"Dinner on {date} at {start}?", read=False)
    if is_special:
        start = "20:30"
        phone.add(
            "messages", number=sender, by="them", text=f"Better at {start}, on the same day.", read=False
        )
    calls: Calls = [
        ("messages_list", {"unread": True, "number": sender}),
        ("calendar_add", {"title": "dinner", "date": date, "start": start}),
        ("messages_send", {"number": sender, "text": "With pleasure!"}),
    ]
    asks = f"I was asked for dinner by the number {sender}. Put 'dinner' into my calendar and reply 'With pleasure!'"
    return Plan(f"{asks} If the time was changed later, the last one counts.", calls)


@declare(2, "notes", "shop")
def buy_list(phone: Phone, rng: np.random.Generator, is_special: bool) -> Plan:
    """Buy a shopping list; the special case: one item is in the cart already."""
    names = choose([row["name"] for row in phone.get_rows("products")], int(rng.integers(2, 4)), rng)
    note = phone.add("notes", title="shopping list", text="\n".join(names))
    calls: Calls = [("notes_search", {"query": "shopping list"})]
    calls += [("notes_read", {"id": note["id"]}), ("shop_cart", {})]
    if is_special:
        phone.add("cart", product=names[0], count=1)
    for name in names[is_special:]:
        id = next(row["id"] for row in phone.get_rows("products") if row["name"] == name)
        calls += [("shop_search", {"query": name}), ("shop_put", {"product": id, "count": 1})]
    asks = "Buy one of each thing in my note 'shopping list'. What is in the cart already need not be put there again."
    return Plan(asks, [*calls, ("shop_buy", {})])


@declare(2, "bank", "notes")
def note_total(phone: Phone, rng: np.random.Generator, is_special: bool) -> Plan:
    """Note the sum of transfers; the special case: there are none."""
    row = phone.add("contacts", name="Ole Winter", number=draw_number(rng), relation="friend")
    paid = [int(rng.integers(5, 60)) for _ in range(int(rng.integers(2, 8)))] if not is_special else []
    for amount in paid:
        phone.add("transfers", to=row["name"], amount=amount, memo="trip")
    pages = range(1, max(-(-len(paid) // 5), 1) + 1)
    calls: Calls = [("bank_history", {"to": row["name"], "page": page}) for page in pages]
    calls += [("notes_write", {"title": row["name"], "text": f"sent: {sum(paid)}"})]
    asks = f"Add up what I have sent to {row['name']}, and write a note with the title '{row['name']}' and the text"
    return Plan(f"{asks} 'sent: N', where N is the sum in dollars.", calls)


@declare(2, "bank", "messages")
def pay_asked(phone: Phone, rng: np.random.Generator, is_special: bool) -> Plan:
    """Pay a request; the special case: it is higher than the message says."""
    row, owed = choose_contact(phone, rng), int(rng.integers(10, 90))
    requested = owed + is_special * 15
    phone.add(
        "messages", number=row["number"], by="them", text=f"You owe me {owed} for the tickets.", read=False
    )
    request = phone.add("requests", by=row["name"], of="me", amount=requested, memo="tickets")
    calls: Calls = [("bank_pending", {})]
    calls += [("messages_list", {"number": row["number"], "unread": True})]
    if is_special:
        calls += [("messages_send", {"number": row["number"], "text": "The amount is wrong."})]
    else:
        calls += [("bank_pay_request", {"id": request["id"]})]
    asks = f"{row['name']} ({row['number']}) asks for money for tickets by the bank. Pay the request if it is for the "
    return Plan(
        f"{asks}amount that the message tells. If not, do not pay, but reply 'The amount is wrong.'", calls
    )


@declare(2, "notes", "music", name="party_songs")
def fill_playlist(phone: Phone, rng: np.random.Generator, is_special: bool) -> Plan:
    """Fill a playlist from a note; the special case: it has one song already."""
    titles = choose(TITLES.split(", "), int(rng.integers(2, 4)), rng)
    note = phone.add("notes", title="party songs", text="\n".join(titles))
    calls: Calls = [("notes_search", {"query": "party songs"})]
    calls += [("notes_read", {"id": note["id"]}), ("music_playlists", {})]
    if is_special:
        phone.add("lists", name="party", songs=titles[:1])
    else:
        calls += [("music_create", {"name": "party"})]
    for title in titles[is_special:]:
        id = next(row["id"] for row in phone.get_rows("songs") if row["title"] == title)
        calls += [("music_search", {"query": title}), ("music_put", {"playlist": "party", "song": id})]
    asks = "Put the songs of my note 'party songs' into the playlist 'party'. If there is no such playlist, make it."
    return Plan(asks, calls)


@declare(2, "files", "notes")
def keep_text(phone: Phone, rng: np.random.Generator, is_special: bool) -> Plan:
    """Copy a file to a note; the special case: delete the file afterwards."""
    folder, name = pick(("work", "home"), rng), "wifi-code.txt"
    file = phone.add(
        "files", folder=folder, name=name, text=f"{pick(PRODUCTS.split(', '), rng)} {rng.integers(1000)}"
    )
    calls: Calls = [
        ("files_list", {"folder": folder}),
        ("files_read", {"id": file["id"]}),
    ]
    calls += [("notes_write", {"title": "code", "text": file["text"]})]
    asks = f"Copy the text of the file {name} in the folder {folder} into a new note with the title 'code'."
    if is_special:
        calls += [("files_delete", {"id": file["id"]})]
        asks += " Delete the file then."
    return Plan(asks, calls)


KINDS = (
    tell, tell_group, save_sender, accept, buy_list, note_total, pay_asked, fill_playlist, keep_text,
)  # fmt: skip
