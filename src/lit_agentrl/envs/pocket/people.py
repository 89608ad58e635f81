"""The initial content of a phone: people, messages, events, notes, money, products, songs and files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lit_agentrl.envs.pocket.phone import Phone

NAMES = (
    "Ada Brandt, Ben Okoro, Carla Mendes, Deniz Kaya, Elin Sandberg, Farid Nasser, Greta Vogel, Hugo Laurent, "
    "Ines Costa, Jonas Weber, Keiko Mori, Lior Azulay, Mara Petrov, Noor Haddad, Otis Reed, Priya Raman, "
    "Quentin Blake, Rosa Alvarez, Sven Dahl, Tala Aziz, Uma Shah, Viktor Novak, Wanda Kowalska, Xenia Popov, "
    "Yusuf Demir, Zoe Martin"
)
RELATIONS = ("family", "friend", "work")
EVENTS = "dentist, team meeting, piano lesson, car service, book club, yoga class, lunch, haircut, parent evening, walk"
PRODUCTS = (
    "oat milk, brown bread, green apples, black tea, rice, candles, paper towels, batteries, light bulbs, dish soap, "
    "notebook, blue pens, phone charger, desk lamp, umbrella, wool socks, water bottle, garden gloves"
)
MAKERS = ("Alto", "Brio", "Cira", "Dono")
TITLES = (
    "Slow River, Paper Moon, Night Train, Golden Hour, Far Away, Broken Clock, Summer Rain, Empty Road, High Tide, Old "
    "House, Silver Lining, Cold Coffee, First Snow, Long Shadow, Open Window, Quiet Storm"
)
ARTISTS = ("The Lanterns", "Mira Stone", "Blue Harbor", "Tin Orchestra")
LINES = (
    "How are you?, See you soon., Thanks for yesterday!, Can you call me back?, I am on my way., Good luck today!, "
    "The photos are great., Do not forget the keys."
)


def pick(values: Sequence[str], rng: np.random.Generator) -> str:
    """Choose one of the values."""
    return values[int(rng.integers(len(values)))]


def choose(values: Sequence[str], count: int, rng: np.random.Generator) -> list[str]:
    """Choose ``count`` of the values, in random order."""
    return [values[int(index)] for index in rng.permutation(len(values))[:count]]


def draw_day(rng: np.random.Generator) -> str:
    """Draw a date in the spring of 2026."""
    return f"2026-{int(rng.integers(3, 6)):02d}-{int(rng.integers(1, 29)):02d}"


def draw_hour(rng: np.random.Generator) -> str:
    """Draw a time of the day."""
    return f"{int(rng.integers(8, 20)):02d}:{('00', '30')[int(rng.integers(2))]}"


def draw_number(rng: np.random.Generator) -> str:
    """Draw a phone number that no contact has."""
    return f"555-{int(rng.integers(1000, 10000))}"


def create_phone(rng: np.random.Generator) -> Phone:
    """Create a phone in use."""
    phone = Phone()
    people = choose(NAMES.split(", "), int(rng.integers(9, 13)), rng)
    for index, name in enumerate(people):
        number = f"555-{int(rng.integers(10, 100))}{index:02d}"
        phone.add("contacts", name=name, number=number, relation=RELATIONS[index % 3])
    numbers = [row["number"] for row in phone.get_rows("contacts")]
    for _ in range(int(rng.integers(8, 14))):
        text = pick(LINES.split(", "), rng)
        phone.add("messages", number=pick(numbers, rng), by="them", text=text, read=bool(rng.random() < 0.6))
    for title in choose(EVENTS.split(", "), int(rng.integers(5, 9)), rng):
        phone.add("events", title=title, date=draw_day(rng), start=draw_hour(rng))
    for title in choose(("ideas", "wifi", "birthdays", "garden", "books"), 3, rng):
        phone.add("notes", title=title, text=f"{title}: {pick(LINES.split(', '), rng)}")
    phone.add("account", balance=int(rng.integers(800, 2000)))
    for _ in range(int(rng.integers(6, 12))):
        amount = int(rng.integers(5, 80))
        phone.add(
            "transfers", to=pick(people, rng), amount=amount, memo=pick(("lunch", "tickets", "gift"), rng)
        )
    for product in PRODUCTS.split(", "):
        for maker in choose(MAKERS, 2, rng):
            phone.add("products", name=f"{maker} {product}", price=int(rng.integers(2, 40)))
    for title in TITLES.split(", "):
        phone.add("songs", title=title, artist=pick(ARTISTS, rng), liked=False)
    phone.add("lists", name="running", songs=sorted(choose(TITLES.split(", "), 3, rng)))
    for folder, names in (("work", ("plan", "report", "budget")), ("home", ("rent", "garden", "recipe"))):
        for name in names:
            phone.add("files", folder=folder, name=f"{name}.txt", text=pick(LINES.split(", "), rng))
    return phone
