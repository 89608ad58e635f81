"""The reward of WebShop written a second time, from its description and over rows of the original's files."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

COLOURS = """alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel
camo caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream crystal
dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather indigo ivory ivy
khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor mushroom
mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand sapphire seashell
silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet walnut wheat white
wine yellow"""


@lru_cache(None)
def token_set_ratio(first: str, second: str) -> int:
    def tokens(text: str) -> set[str]:
        text = re.sub(r"[\x80-\xff]", "", text).lower()
        return set(re.sub(r"[\W_]", " ", text).split())

    one, other = tokens(first), tokens(second)
    if not one or not other:
        return 0
    shared = sorted(one & other)
    texts = [" ".join(shared), " ".join(shared + sorted(one - other)), " ".join(shared + sorted(other - one))]
    pairs = [(1, 2), (0, 1), (0, 2)] if shared else [(1, 2)]
    return round(max(200 * lcs(texts[a], texts[b]) / (len(texts[a]) + len(texts[b])) for a, b in pairs))


def lcs(first: str, second: str) -> int:
    row = [0] * (len(second) + 1)
    for one in first:
        above, row = row, [0]
        for place, other in enumerate(second):
            row.append(above[place] + 1 if one == other else max(above[place + 1], row[-1]))
    return row[-1]


def colour(text: str) -> str:
    found = [each for each in COLOURS.split() if each in text]
    return found[0] if found else text


def reward(
    goal: dict[str, Any],
    wanted: dict[str, Any],
    bought: dict[str, Any],
    price: float,
    chosen: list[str],
    attributes: list[str],
    words: Any,
) -> float:
    """``wanted`` and ``bought`` are rows; ``attributes`` those of what is bought; ``words`` the nouns of a title."""
    texts = [bought["name"], " ".join(bought["small_description"]), bought["full_description"]]
    hits = 0
    for each in goal["attributes"]:
        near = max([token_set_ratio(own, each) for own in attributes], default=0) > 85
        hits += near or each in texts[0].lower() or each in texts[1].lower() or each in texts[2].lower()
    for each in goal["options"]:
        hits += max([token_set_ratio(colour(own), colour(each)) for own in chosen], default=0) > 85
    hits += goal["most"] is None or price <= goal["most"]

    nouns = words(wanted["name"])
    score = len(nouns & words(bought["name"])) / len(nouns) if nouns else 0.2
    shelves = [{part.strip() for part in row["product_category"].split("›")} for row in (wanted, bought)]
    kind = (
        1.0 if wanted["query"] == bought["query"] or len(shelves[0] & shelves[1]) >= 2 or score > 0.2 else 0.5
    )
    if score < 0.1:
        kind = 0.1
    if score == 0:
        kind = 0.0
    return kind * hits / (len(goal["attributes"]) + len(goal["options"]) + 1)
