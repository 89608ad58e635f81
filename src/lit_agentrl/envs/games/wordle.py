"""Find a hidden word of five letters from marks of each guess."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from lit_agentrl.checks import require, require_one_of, require_whole
from lit_agentrl.envs.base import Outcome, TextEnv
from lit_agentrl.envs.splits import keyed_rng, split_of

GUESSES = ("any", "list")
SIZE = 5  # letters of a word
# fmt: off
WORDS = (
    "about", "above", "actor", "adapt", "admit", "adopt", "adult", "after", "again", "agent", "agree", "ahead",
    "alarm", "album", "alert", "alike", "alive", "allow", "alone", "along", "alter", "amber", "amuse", "angel",
    "anger", "angle", "angry", "ankle", "apart", "apple", "apply", "apron", "arena", "argue", "arise", "armor",
    "arrow", "aside", "asset", "atlas", "attic", "audio", "avoid", "awake", "award", "aware", "awful", "bacon",
    "badge", "badly", "baker", "basic", "basil", "basin", "beach", "beard", "beast", "began", "begin", "being",
    "belly", "below", "bench", "berry", "birth", "black", "blade", "blame", "blank", "blast", "blaze", "blend",
    "bless", "blind", "blink", "block", "blond", "blood", "bloom", "board", "boast", "bonus", "boost", "booth",
    "bound", "brain", "brake", "brand", "brass", "brave", "bread", "break", "brick", "bride", "brief", "bring",
    "broad", "broke", "brook", "broom", "brown", "brush", "build", "built", "bunch", "bunny", "buyer", "cabin",
    "cable", "camel", "canal", "candy", "canoe", "cargo", "carry", "carve", "catch", "cause", "cedar", "chain",
    "chair", "chalk", "charm", "chart", "chase", "cheap", "check", "cheek", "cheer", "chess", "chest", "chief",
    "child", "chill", "chips", "choir", "chord", "chose", "civil", "claim", "class", "clean", "clear", "clerk",
    "click", "cliff", "climb", "clock", "close", "cloth", "cloud", "clown", "coach", "coast", "cocoa", "colon",
    "color", "comet", "comic", "coral", "couch", "cough", "could", "count", "court", "cover", "crack", "craft",
    "crane", "crash", "crawl", "crazy", "cream", "creek", "crime", "crisp", "cross", "crowd", "crown", "crumb",
    "crush", "crust", "curly", "curve", "cycle", "daily", "dairy", "daisy", "dance", "delay", "dense", "depth",
    "diary", "diner", "dirty", "ditch", "diver", "dizzy", "donor", "doubt", "dough", "dozen", "draft", "drain",
    "drama", "drawn", "dream", "dress", "dried", "drift", "drill", "drink", "drive", "drove", "eager", "eagle",
    "early", "earth", "easel", "eight", "elbow", "elder", "elect", "empty", "enemy", "enjoy", "enter", "entry",
    "equal", "error", "essay", "event", "every", "exact", "exist", "extra", "fable", "fairy", "faith", "false",
    "fancy", "fault", "feast", "fence", "ferry", "fetch", "fever", "fiber", "field", "fifth", "fifty", "fight",
    "final", "first", "flame", "flash", "fleet", "flesh", "float", "flock", "flood", "floor", "flour", "fluid",
    "flute", "focus", "force", "forge", "forty", "found", "frail", "frame", "fresh", "fried", "front", "frost",
    "frown", "fruit", "fudge", "funny", "ghost", "giant", "given", "giver", "glass", "gleam", "globe", "glory",
    "glove", "going", "goose", "grace", "grade", "grain", "grand", "grape", "graph", "grasp", "grass", "grave",
    "great", "greed", "green", "greet", "grill", "grind", "group", "grove", "growl", "grown", "guard", "guess",
    "guest", "guide", "habit", "happy", "harsh", "haste", "heart", "heavy", "hedge", "hello", "hinge", "hobby",
    "honey", "honor", "horse", "hotel", "hound", "house", "human", "humor", "hurry", "ideal", "image", "index",
    "inner", "input", "issue", "ivory", "jeans", "jelly", "jewel", "joint", "joker", "judge", "juice", "juicy",
    "jumbo", "kayak", "knead", "kneel", "knife", "knock", "known", "label", "labor", "ladle", "large", "laser",
    "later", "laugh", "layer", "learn", "least", "leave", "lemon", "level", "lever", "light", "limit", "linen",
    "liver", "llama", "lobby", "local", "lodge", "logic", "loose", "lorry", "lower", "loyal", "lucky", "lunar",
    "lunch", "magic", "major", "maker", "mango", "maple", "march", "marsh", "match", "maybe", "mayor", "medal",
    "melon", "mercy", "merge", "merit", "merry", "metal", "meter", "midst", "might", "minor", "minus", "mixed",
    "model", "money", "month", "moral", "motor", "mount", "mouse", "mouth", "movie", "mower", "music", "nerve",
    "never", "newly", "night", "noble", "noise", "north", "novel", "nurse", "nylon", "oasis", "occur", "ocean",
    "offer", "often", "olive", "onion", "opera", "orbit", "order", "organ", "other", "otter", "outer", "owner",
    "oxide", "ozone", "paint", "panel", "panic", "paper", "party", "pasta", "paste", "patch", "pause", "peace",
    "peach", "pearl", "pedal", "penny", "phase", "phone", "photo", "piano", "piece", "pilot", "pinch", "pitch",
    "pizza", "place", "plain", "plane", "plant", "plate", "plaza", "point", "poppy", "porch", "pound", "power",
    "press", "price", "pride", "prime", "print", "prize", "proof", "proud", "prune", "pulse", "punch", "pupil",
    "puppy", "purse", "queen", "quest", "quick", "quiet", "quilt", "quite", "quote", "radar", "radio", "rainy",
    "raise", "ranch", "range", "rapid", "raven", "reach", "react", "ready", "realm", "refer", "relax", "relay",
    "reply", "rider", "ridge", "rifle", "right", "rigid", "rival", "river", "roast", "robin", "robot", "rocky",
    "rough", "round", "route", "royal", "rugby", "ruler", "rural", "salad", "sandy", "sauce", "scale", "scarf",
    "scary", "scene", "scent", "scoop", "scope", "score", "scout", "scrub", "seize", "sense", "serve", "seven",
    "shade", "shake", "shape", "share", "shark", "sharp", "sheep", "sheet", "shelf", "shell", "shift", "shine",
    "shiny", "shirt", "shock", "shore", "short", "shout", "shown", "sight", "silky", "silly", "since", "siren",
    "skate", "skill", "skirt", "skull", "slate", "sleep", "slice", "slide", "slope", "small", "smart", "smell",
    "smile", "smoke", "snack", "snail", "snake", "sneak", "solar", "solid", "solve", "sorry", "sound", "south",
    "space", "spare", "spark", "speak", "speed", "spell", "spend", "spice", "spicy", "spike", "spine", "split",
    "spoke", "spoon", "sport", "spray", "squad", "stack", "staff", "stage", "stain", "stair", "stamp", "stand",
    "stare", "start", "state", "steam", "steel", "steep", "stick", "stiff", "still", "sting", "stone", "stood",
    "stool", "store", "storm", "story", "stove", "straw", "strip", "study", "stuff", "style", "sugar", "sunny",
    "super", "surge", "swamp", "swarm", "sweep", "sweet", "swept", "swift", "swing", "sword", "syrup", "table",
    "taste", "teach", "tempo", "tenth", "thank", "theme", "there", "thick", "thief", "thing", "think", "third",
    "thorn", "those", "three", "threw", "throw", "thumb", "tiger", "tight", "timer", "title", "toast", "today",
    "token", "tooth", "topic", "torch", "total", "touch", "tough", "towel", "tower", "toxic", "trace", "track",
    "trade", "trail", "train", "trait", "trash", "treat", "trend", "trial", "tribe", "trick", "tried", "troop",
    "truck", "truly", "trunk", "trust", "truth", "tulip", "tunic", "twice", "twist", "uncle", "under", "union",
    "unite", "until", "upper", "upset", "urban", "usage", "usual", "valid", "value", "vapor", "vault", "verse",
    "video", "visit", "vital", "vivid", "vocal", "voice", "voter", "wagon", "waist", "waste", "watch", "water",
    "weary", "weave", "wedge", "weigh", "weird", "whale", "wheat", "wheel", "where", "which", "while", "white",
    "whole", "whose", "widen", "width", "windy", "witch", "woman", "world", "worry", "worth", "would", "wound",
    "woven", "wrist", "write", "wrong", "yacht", "yeast", "yield", "young", "youth", "zebra",
)
# fmt: on
_WORD = 101  # purpose key
_MARKS = ("_", "Y", "G")  # absent, elsewhere, right
_NUMBERS = {word: number for number, word in enumerate(WORDS)}
_LETTERS = np.array([list(word) for word in WORDS])


class Wordle(TextEnv):
    """A hidden word of five letters, to be found from marks of each guess.

    A letter of the guess is marked ``G`` where the word has it in this place, ``Y`` where the word has it in another
    place, and ``_`` else.  If the guess has a letter more often than the word, only as many are marked as the word
    has: first those in the right place, then from the left.  Spaces between letters and between marks make each a token
    of its own.

    Finding the word earns 1.  Random play guesses any word of the list.  Best play knows the list (all splits of it),
    and guesses the word whose marks split the possible words into the most groups; it needs at most ``max_solution``
    guesses.

    Args:
        guesses: ``any``: five letters; ``list``: a word of the list, which is not shown.
        partial: Whether a guess that is worth more than all earlier ones earns the difference.  A ``G`` is worth 0.2
            and a ``Y`` 0.1, so an episode earns the worth of its best guess, at most 1.
        split: ``train``, ``val`` or ``test``, by the hash of the word.

    Raises:
        ValueError: An option is unknown.
    """

    max_solution = 5

    def __init__(self, *, guesses: str = "any", partial: bool = False, split: str = "train") -> None:
        super().__init__(split=split)
        require_one_of("guesses", guesses, GUESSES)
        require(isinstance(partial, bool), "partial", partial, "true or false")
        self._must_be_listed, self._partial = guesses == "list", partial
        self._answers = _list_answers(split)
        self.instances = len(self._answers)
        self._word, self._guesses = self._answers[0], list[str]()

    @property
    def rules(self) -> str:
        what = "a common English word of five letters" if self._must_be_listed else "five letters"
        paid = (
            "0.2 for each G and 0.1 for each Y of the best guess, 1 for the word"
            if self._partial
            else "1 for the word"
        )
        return (
            "Find a hidden common English word of five letters. Each letter of your guess gets a mark below it: G, the "
            "word has this letter in this place; Y, the word has it in another place; _, the word does not have it, or "
            "not that often.\nIf the word is stone, the guess notes gets the marks Y Y Y Y Y, and the guess spoon gets "
            f"G _ G _ Y.\nActions: {what}, such as crane.\nRewards: {paid}."
        )

    def random_action(self, rng: np.random.Generator) -> str:
        """Return a word of the list."""
        return WORDS[int(rng.integers(len(WORDS)))]

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        """Return the guess that tells most about the word; None once it is found."""
        require_whole("horizon", horizon, 1)
        return None if self._is_found() else [WORDS[_choose_guess(self._find_left())]]

    def best_thought(self) -> str:
        """Return which letters are in place, which are elsewhere, and which are absent."""
        placed, present, absent = ["_"] * SIZE, set[str](), set[str]()
        for guess in self._guesses:
            marks = mark(guess, self._word)
            for place, (letter, found) in enumerate(zip(guess, marks, strict=True)):
                if found == "G":
                    placed[place] = letter
                (absent if found == "_" else present).add(letter)
        elsewhere, absent = present - set(placed), absent - present
        parts = [" ".join(placed)]
        parts += [f"with {' '.join(sorted(elsewhere))}"] * bool(elsewhere)
        parts += [f"without {' '.join(sorted(absent))}"] * bool(absent)
        return ", ".join(parts)

    def _find_left(self) -> tuple[int, ...]:
        """Return the numbers of the words that the marks allow."""
        is_left = np.ones(len(WORDS), dtype=bool)
        for guess in self._guesses:
            is_left &= _mark_all(guess) == _mark_all(guess)[_NUMBERS[self._word]]
        return tuple(np.flatnonzero(is_left).tolist())

    def _is_found(self) -> bool:
        return self._guesses[-1:] == [self._word]

    def locate(self, seed: int) -> int:
        return int(keyed_rng(seed, 0, _WORD).integers(len(self._answers)))

    def _draw_instance(self, seed: int) -> str:
        self._word = self._answers[self.locate(seed)]
        self._guesses = []
        return self._word

    def _observe(self) -> str:
        if not self._guesses:
            return "Guess the word of five letters."
        guess = self._guesses[-1]
        return f"guess: {' '.join(guess)}\nmarks: {' '.join(mark(guess, self._word))}"

    def _play(self, action: str) -> Outcome:
        guess = "".join(action.split()).lower()  # accepts c r a n e, too
        if not (len(guess) == SIZE and guess.isascii() and guess.isalpha()):
            return Outcome(action_is_valid=False)
        if self._must_be_listed and guess not in _NUMBERS:
            return Outcome(action_is_valid=False)
        before = self._count_tenths()
        self._guesses = [*self._guesses, guess]
        is_right = guess == self._word
        reward = (self._count_tenths() - before) / 10 if self._partial else float(is_right)
        return Outcome({"guess": reward}, terminated=is_right, success=is_right)

    def _count_tenths(self) -> int:
        """Return the worth of the best guess in tenths."""
        return max((_score(mark(guess, self._word)) for guess in self._guesses), default=0)

    def _get_state(self) -> dict[str, Any]:
        return {"word": self._word, "guesses": list(self._guesses)}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        self._word, self._guesses = str(state["word"]), [str(guess) for guess in state["guesses"]]


def mark(guess: str, word: str) -> str:
    """Return the marks of a guess, such as ``G__Y_``, for a word of the list."""
    number = int(_mark_all(guess)[_NUMBERS[word]])
    return "".join(_MARKS[number // 3**place % 3] for place in range(SIZE))


def _score(marks: str) -> int:
    return 2 * marks.count("G") + marks.count("Y")


@functools.cache
def _list_answers(split: str) -> list[str]:
    return [word for word in WORDS if split_of(word) == split]


@functools.lru_cache(maxsize=4096)
def _mark_all(guess: str) -> np.ndarray:
    """Return the marks of a guess for each word of the list, as numbers.

    A number has a digit of base 3 for each place, 0 absent, 1 elsewhere, 2 right.
    """
    is_used = np.array(list(guess)) == _LETTERS  # letters of a word that gave a mark
    marks = 2 * is_used.astype(np.int64)
    for place, letter in enumerate(guess):
        for other in range(SIZE):
            is_elsewhere = (marks[:, place] == 0) & ~is_used[:, other] & (_LETTERS[:, other] == letter)
            marks[is_elsewhere, place] = 1
            is_used[is_elsewhere, other] = True
    numbers: np.ndarray = marks @ 3 ** np.arange(SIZE)
    return numbers


@functools.cache
def _mark_list() -> np.ndarray:
    """Return the marks of all words for all words: ``[guesses, words]``."""
    return np.stack([_mark_all(word) for word in WORDS])


@functools.lru_cache(maxsize=4096)
def _choose_guess(left: tuple[int, ...]) -> int:
    """Return the number of the word that splits the possible words into most groups.

    Words with equal marks are in one group.  Ties go to a word that may be right, then to the one that leaves fewer
    words on average.
    """
    if len(left) <= 2:
        return left[0]
    marks = _mark_list()[:, left]
    rows = 3**SIZE * np.arange(len(WORDS))[:, None]
    counts = np.bincount((marks + rows).ravel(), minlength=3**SIZE * len(WORDS)).reshape(len(WORDS), -1)
    may_be_right = np.isin(np.arange(len(WORDS)), left)
    order = np.lexsort(((counts**2).sum(axis=1), ~may_be_right, -(counts > 0).sum(axis=1)))
    return int(order[0])
