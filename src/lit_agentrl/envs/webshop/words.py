"""Comparison of words as in WebShop's reward: order and repetition do not count, colours do."""

from __future__ import annotations

import re
from functools import lru_cache

SIMILAR = 85  # texts with a higher ratio count as the same attribute or option

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
# a text that contains some of these words stands for the first of them
_COLOURS, _STOP = tuple(_COLOUR_WORDS.split()), frozenset(_STOP_WORDS.split())
_LATIN = {code: None for code in range(128, 256)}


def normalise(text: str) -> str:
    """Convert to lower case without punctuation.

    Letters of Latin-1 beyond ASCII are removed, as thefuzz does.
    """
    # a character stays one character, even İ
    lower = (character.lower()[0] for character in text.translate(_LATIN))
    return "".join(character if character.isalnum() else " " for character in lower).strip()


@lru_cache(65536)
def compute_similarity(first: str, second: str) -> int:
    """Compute the similarity of two texts as sets of words, 0 to 100.

    It equals ``token_set_ratio`` of thefuzz.

    With ``S`` the words of both, and ``A`` and ``B`` those of one alone, each sorted and joined, it is the greatest
    similarity of ``S A`` and ``S B``, of ``S`` and ``S A``, and of ``S`` and ``S B``, where the similarity of two
    texts is ``200 lcs / (len + len)``.
    """
    first_words, other_words = set(normalise(first).split()), set(normalise(second).split())
    if not first_words or not other_words:
        return 0
    shared = " ".join(sorted(first_words & other_words))
    only_one, only_other = (
        " ".join(sorted(first_words - other_words)),
        " ".join(sorted(other_words - first_words)),
    )
    if shared and not (only_one and only_other):
        return 100
    start_length = len(shared) + bool(shared)  # with the space after the shared words
    sizes = [start_length + len(only_one), start_length + len(only_other)]
    best = 200 * (start_length + _measure_common(only_one, only_other)) / sum(sizes)
    if shared:
        best = max(best, *(200 * len(shared) / (len(shared) + size) for size in sizes))
    return round(best)


def _measure_common(first: str, second: str) -> int:
    """Return the length of the longest common subsequence, bit-parallel (Hyyrö 2004)."""
    masks: dict[str, int] = {}
    for index, character in enumerate(first):
        masks[character] = masks.get(character, 0) | 1 << index
    everywhere = (1 << len(first)) - 1
    row = everywhere
    for character in second:
        matches = row & masks.get(character, 0)
        row = (row + matches) | (row - matches)
    return len(first) - (row & everywhere).bit_count()


def are_similar(first: str, second: str) -> bool:
    """Return whether two texts count as the same."""
    return compute_similarity(first, second) > SIMILAR


def extract_colour(text: str) -> str:
    """Return the alphabetically first colour that a text contains, else the text itself."""
    return next((colour for colour in _COLOURS if colour in text), text)


@lru_cache(8192)
def find_content_words(text: str) -> frozenset[str]:
    """Return the words that name things: two letters or more, no function words.

    This replaces the nouns that the original takes from a tagger.
    """
    return frozenset(re.findall(r"(?<![\w])[^\W\d_]{2,}(?![\w])", text.lower())) - _STOP


def find_search_words(text: str) -> list[str]:
    """Return the words to search for, each once, in order."""
    words = re.findall(r"[^\W_]+", text.lower())
    return [word for word in dict.fromkeys(words) if word not in _STOP]
