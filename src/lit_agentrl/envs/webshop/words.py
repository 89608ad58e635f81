"""Words as the reward of WebShop compares them: alike up to order and repetition, colours by their name alone."""

from __future__ import annotations

import re
from functools import lru_cache

ALIKE = 85  # two texts whose ratio is above count as the same attribute or option

_COLOUR_WORDS = (
    "alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo "
    "caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream "
    "crystal dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather "
    "indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha "
    "multicolor mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal "
    "rust sand sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise "
    "violet walnut wheat white wine yellow"
)
_STOP_WORDS = (
    "a about above after all also am an and any are as at be been both but by can could do does each either etc every "
    "few for from get had has have he her his how i if in into is it its just less like made make many me more most "
    "much my new no nor not of off on one only or other our out over own per same set she should so some such than "
    "that the their them then there these they this those through to too two under up us use used very via was we "
    "were what when which while who will with within without would you your"
)
# a text with one of these in it is that colour, the first of them
_COLOURS, _STOP = tuple(_COLOUR_WORDS.split()), frozenset(_STOP_WORDS.split())
_LATIN = {code: None for code in range(128, 256)}


def plain(text: str) -> str:
    """Lower case, without the signs between words; letters of Latin-1 beyond ASCII are left out, as thefuzz does."""
    kept = (sign.lower()[0] for sign in text.translate(_LATIN))  # one sign stays one, also of İ
    return "".join(sign if sign.isalnum() else " " for sign in kept).strip()


@lru_cache(65536)
def ratio(first: str, second: str) -> int:
    """How alike two texts are as sets of words, 0 to 100: ``token_set_ratio`` of thefuzz.

    With the words of both ``S`` and those of one alone ``A`` and ``B``, each sorted and joined, it is the best of
    the likeness of ``S A`` and ``S B``, of ``S`` and ``S A``, and of ``S`` and ``S B``, where the likeness of two
    texts is ``200 lcs / (len + len)``.
    """
    one, other = set(plain(first).split()), set(plain(second).split())
    if not one or not other:
        return 0
    shared = " ".join(sorted(one & other))
    only_one, only_other = " ".join(sorted(one - other)), " ".join(sorted(other - one))
    if shared and not (only_one and only_other):
        return 100
    gap = len(shared) + bool(shared)
    sizes = [gap + len(only_one), gap + len(only_other)]
    best = 200 * (gap + _common(only_one, only_other)) / sum(sizes)
    if shared:
        best = max(best, *(200 * len(shared) / (len(shared) + size) for size in sizes))
    return round(best)


def _common(first: str, second: str) -> int:
    """Length of the longest common subsequence, 64 signs and more at a time (Hyyrö 2004)."""
    places: dict[str, int] = {}
    for place, sign in enumerate(first):
        places[sign] = places.get(sign, 0) | 1 << place
    everywhere = (1 << len(first)) - 1
    row = everywhere
    for sign in second:
        met = row & places.get(sign, 0)
        row = (row + met) | (row - met)
    return len(first) - (row & everywhere).bit_count()


def are_alike(first: str, second: str) -> bool:
    """Whether they count as the same."""
    return ratio(first, second) > ALIKE


def coloured(text: str) -> str:
    """The first colour that occurs in a text, in the order of the alphabet; without one the text itself."""
    return next((colour for colour in _COLOURS if colour in text), text)


@lru_cache(8192)
def content_words(text: str) -> frozenset[str]:
    """What names a thing: words of two letters or more, without digits, that are no function words.

    It takes the place of the nouns that the original asks a tagger for.
    """
    return frozenset(re.findall(r"(?<![\w])[^\W\d_]{2,}(?![\w])", text.lower())) - _STOP


def search_words(text: str) -> list[str]:
    """The words that a search looks for, each once, in their order."""
    found = re.findall(r"[^\W_]+", text.lower())
    return [word for word in dict.fromkeys(found) if word not in _STOP]
