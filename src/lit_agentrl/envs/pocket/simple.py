"""Tasks of one app."""

from __future__ import annotations

import numpy as np

from lit_agentrl.envs.pocket.people import (
    EVENTS,
    LINES,
    NAMES,
    PRODUCTS,
    choose,
    draw_day,
    draw_hour,
    draw_number,
    pick,
)
from lit_agentrl.envs.pocket.phone import Phone, Row
from lit_agentrl.envs.pocket.plan import Calls, Plan, declare


def _choose_contact(phone: Phone, rng: np.random.Generator) -> Row:
    rows = phone.get_rows("contacts")
    return rows[int(rng.integers(len(rows)))]


@declare(1, "contacts")
def find_number(phone: Phone, rng: np.random.Generator, is_special: bool) -> Plan:
    """Ask for a phone number; the special case: there is no such person."""
    number_of = {row["name"]: row["number"] for row in phone.get_rows("contacts")}
    names = [name for name in NAMES.split(", ") if (name in number_of) == (not is_special)]
    name = pick(names, rng)
    asks = f"What is the phone number of {name}? Answer none if there is none."
    return Plan(asks, [("contacts_search", {"query": name})], number_of.get(name, "none"))


@declare(1, "contacts")
def renumber(phone: Phone, rng: np.random.Generator, is_special: bool) -> Plan:
    """Change a phone number; the special case: two people share a first name."""
    row = _choose_contact(phone, rng)
    if is_special:
        phone.add("contacts", name=f"{row['name'].split()[0]} Lund", number=draw_number(rng), relation="work")
    new = draw_number(rng)
    calls: Calls = [
        ("contacts_search", {"query": row["name"]}),
        ("contacts_renumber", {"id": row["id"], "number": new}),
    ]
    return Plan(f"{row['name']} has a new phone number, {new}. Change it in my contacts.", calls)


@declare(1, "contacts")
def forget(phone: Phone, rng: np.random.Generator, is_special: bool) -> Plan:
    """Delete a contact; the special case: the person occurs twice, with different numbers."""
    row = _choose_contact(phone, rng)
    asks = f"Delete {row['name']} from my contacts."
    if is_special:
        old = phone.add("contacts", name=row["name"], number=draw_number(rng), relation=row["relation"])
        asks = f"{row['name']} is twice in my contacts. Delete the one with the number {old['number']}."
        row = old
    calls: Calls = [("contacts_search", {"query": row["name"]}), ("contacts_delete", {"id": row["id"]})]
    return Plan(asks, calls)


@declare(1, "messages")
def count_unread(phone: Phone, rng: np.random.Generator, is_special: bool) -> Plan:
    """Count unread messages; the special case: all are read."""
    for row in phone.get_rows("messages"):
        row["read"] = row["read"] or is_special
    unread = sum(not row["read"] for row in phone.get_rows("messages"))
    calls: Calls = [("messages_list", {"unread": True})]
    return Plan("How many unread messages do I have? Answer with a number.", calls, str(unread))


@declare(1, "messages")
def reply(phone: Phone, rng: np.random.Generator, is_special: bool) -> Plan:
    """Reply to a message; the special case: mark it as read, too."""
    sender = phone.add(
        "messages", number=draw_number(rng), by="them", text="Are you coming tonight?", read=False
    )
    text = pick(("Yes, I am.", "Sorry, I cannot.", "Maybe, I will call you."), rng)
    calls: Calls = [("messages_list", {"unread": True, "number": sender["number"]})]
    calls += [("messages_send", {"number": sender["number"], "text": text})]
    asks = f"Someone asks by message whether I come tonight. Reply to that number: '{text}'"
    if is_special:
        calls += [("messages_mark_read", {"id": sender["id"]})]
        asks += " Mark the question as read as well."
    return Plan(asks, calls)


@declare(1, "calendar")
def add_event(phone: Phone, rng: np.random.Generator, is_special: bool) -> Plan:
    """Add an event; the special case: only if the day is free."""
    title, date, start = pick(EVENTS.split(", "), rng), draw_day(rng), draw_hour(rng)
    if is_special:
        phone.add("events", title="trip to the sea", date=date, start="07:00")
        asks = (
            f"Put {title} on {date} at {start} into my calendar, but only if nothing is planned on that day."
        )
        return Plan(f"{asks} Answer yes if you did it, else no.", [("calendar_day", {"date": date})], "no")
    calls: Calls = [("calendar_add", {"title": title, "date": date, "start": start})]
    return Plan(f"Put {title} on {date} at {start} into my calendar.", calls)


@declare(1, "calendar")
def move_event(phone: Phone, rng: np.random.Generator, is_special: bool) -> Plan:
    """Move an event; the special case: it is cancelled."""
    rows = phone.get_rows("events")
    row, date, start = rows[int(rng.integers(len(rows)))], draw_day(rng), draw_hour(rng)
    find = ("calendar_search", {"query": row["title"]})
    if is_special:
        asks = f"{row['title'].capitalize()} is called off. Take it out of my calendar."
        return Plan(asks, [find, ("calendar_delete", {"id": row["id"]})])
    calls: Calls = [find, ("calendar_move", {"id": row["id"], "date": date, "start": start})]
    return Plan(f"Move {row['title']} in my calendar to {date} at {start}.", calls)


@declare(1, "notes")
def write_note(phone: Phone, rng: np.random.Generator, is_special: bool) -> Plan:
    """Write a note; the special case: it replaces an older one."""
    title, text = pick(("to do", "quotes", "packing"), rng), pick(LINES.split(", "), rng)
    calls: Calls = [("notes_write", {"title": title, "text": text})]
    asks = f"Write a new note with the title '{title}' and the text '{text}'"
    if is_special:
        old = phone.add("notes", title=title, text="old")
        calls = [("notes_search", {"query": title}), ("notes_delete", {"id": old["id"]}), *calls]
        asks += " Delete the old note of that title."
    return Plan(asks, calls)


@declare(1, "notes")
def append_note(phone: Phone, rng: np.random.Generator, is_special: bool) -> Plan:
    """Append to a note; the special case: two titles contain the same word."""
    rows = phone.get_rows("notes")
    row, line = rows[int(rng.integers(len(rows)))], pick(PRODUCTS.split(", "), rng)
    if is_special:
        phone.add("notes", title=f"old {row['title']}", text="nothing")
    calls: Calls = [
        ("notes_search", {"query": row["title"]}),
        ("notes_append", {"id": row["id"], "line": line}),
    ]
    return Plan(f"Add the line '{line}' at the end of my note with the title '{row['title']}'.", calls)


@declare(1, "bank")
def transfer(phone: Phone, rng: np.random.Generator, is_special: bool) -> Plan:
    """Send money; the special case: the balance is too low."""
    name, amount = pick(NAMES.split(", "), rng), int(rng.integers(20, 300))
    if is_special:
        amount = phone.get_rows("account")[0]["balance"] + int(rng.integers(1, 50))
        asks = f"Send ${amount} to {name} if the balance allows it. If not, send nothing and answer with my balance."
        return Plan(asks, [("bank_balance", {})], str(phone.get_rows("account")[0]["balance"]))
    calls: Calls = [("bank_transfer", {"to": name, "amount": amount, "memo": "rent"})]
    return Plan(f"Send ${amount} to {name} with the memo 'rent'.", calls)


@declare(1, "bank", name="spent_on")
def sum_transfers(phone: Phone, rng: np.random.Generator, is_special: bool) -> Plan:
    """Add up transfers to a person; the special case: there are none."""
    sent: dict[str, int] = {}
    for row in phone.get_rows("transfers"):
        sent[row["to"]] = sent.get(row["to"], 0) + row["amount"]
    names = [name for name in NAMES.split(", ") if (name in sent) == (not is_special)]
    name = pick(names, rng)
    asks = f"How many dollars have I sent to {name} in all? Answer with a number."
    return Plan(asks, [("bank_history", {"to": name})], str(sent.get(name, 0)))


@declare(1, "shop")
def buy(phone: Phone, rng: np.random.Generator, is_special: bool) -> Plan:
    """Buy a product; the special case: the cart holds something else."""
    rows = phone.get_rows("products")
    row, count = rows[int(rng.integers(len(rows)))], int(rng.integers(1, 4))
    calls: Calls = [
        ("shop_search", {"query": row["name"]}),
        ("shop_put", {"product": row["id"], "count": count}),
    ]
    asks = f"Buy {count} of '{row['name']}' in the shop."
    if is_special:
        other = phone.add("cart", product=next(each["name"] for each in rows if each != row), count=1)
        calls = [("shop_cart", {}), ("shop_take_out", {"id": other["id"]}), *calls]
        asks += " Buy nothing else: empty the cart before."
    return Plan(asks, [*calls, ("shop_buy", {})])


@declare(1, "music")
def like(phone: Phone, rng: np.random.Generator, is_special: bool) -> Plan:
    """Like a song; the special case: two songs have this title."""
    rows = phone.get_rows("songs")
    row = rows[int(rng.integers(len(rows)))]
    if is_special:
        phone.add("songs", title=row["title"], artist="Vera Moss", liked=False)
    calls: Calls = [("music_search", {"query": row["title"]}), ("music_like", {"song": row["id"]})]
    return Plan(f"Like the song '{row['title']}' by {row['artist']}.", calls)


@declare(1, "music")
def trim_playlist(phone: Phone, rng: np.random.Generator, is_special: bool) -> Plan:
    """Remove a song from a playlist; the special case: two songs."""
    songs = phone.get_rows("lists")[0]["songs"]
    gone = choose(songs, 1 + is_special, rng)
    calls: Calls = [("music_playlists", {})]
    for title in gone:
        id = next(row["id"] for row in phone.get_rows("songs") if row["title"] == title)
        calls += [("music_search", {"query": title}), ("music_take_out", {"playlist": "running", "song": id})]
    return Plan(f"Take {' and '.join(gone)} out of my playlist 'running'.", calls)


@declare(1, "files")
def move_file(phone: Phone, rng: np.random.Generator, is_special: bool) -> Plan:
    """Move a file; the special case: two folders have a file of that name."""
    rows = phone.get_rows("files")
    row, folder = rows[int(rng.integers(len(rows)))], pick(("archive", "shared", "old"), rng)
    if is_special:
        other = "home" if row["folder"] == "work" else "work"
        phone.add("files", folder=other, name=row["name"], text="a copy")
    calls: Calls = [
        ("files_list", {"folder": row["folder"]}),
        ("files_move", {"id": row["id"], "folder": folder}),
    ]
    return Plan(
        f"Move the file {row['name']} from the folder {row['folder']} into the folder {folder}.", calls
    )


KINDS = (
    find_number, renumber, forget, count_unread, reply, add_event, move_event, write_note, append_note, transfer,
    sum_transfers, buy, like, trim_playlist, move_file,
)  # fmt: skip
