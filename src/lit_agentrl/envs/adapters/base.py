"""Common parts of games of other libraries: states restored by replay, and private random generators."""

from __future__ import annotations

import json
import random
import threading
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from lit_agentrl.checks import require, require_one_of
from lit_agentrl.envs.base import Outcome, TextEnv
from lit_agentrl.envs.splits import draw_for_split, keyed_rng, stable_hash

_GAME = 61  # purpose key of the numbers that games start from


def make_missing_error(library: str, extra: str, error: ImportError) -> ValueError:
    """Return the error for an optional library that is not installed."""
    reason = " ".join(str(error).split())
    return ValueError(f"this game needs {library} ({reason}); pip install 'lit-agentrl[{extra}]'")


def require_settings(settings: object) -> None:
    """Check that the settings of a game are a mapping.

    Raises:
        ValueError: the settings are no mapping.
    """
    require(
        isinstance(settings, Mapping), "settings", settings, "a mapping of names to values; {} for defaults"
    )


def require_list_of(option: str, values: Any, valid: tuple[str, ...]) -> None:
    """Check that an option is a list of different names, each one of ``valid``.

    Raises:
        ValueError: the option is no such list.
    """
    is_list = isinstance(values, Sequence) and not isinstance(values, str)
    require(is_list, option, values, f"a list, such as [{valid[0]}]")
    for value in values:
        require_one_of(option, value, valid)
    require(len(set(values)) == len(values), option, values, "a list of different names")


def join_lines(parts: Iterable[str]) -> str:
    """Return texts below each other, without blank lines and repeated spaces."""
    return "\n".join(" ".join(line.split()) for part in parts for line in part.splitlines() if line.strip())


class Replayed(TextEnv):
    """A game of a library, whose state is its initial number and the actions since.

    To restore, copy or branch a game, it is started again and its actions are replayed, so the library need not be able
    to save it.  The game must be a function of its number, its actions and ``_noise``.

    Attributes:
        foreign: attributes that hold objects of the library; they are not pickled.
    """

    foreign: ClassVar[tuple[str, ...]] = ("_game",)

    def __init__(self, *, split: str = "train") -> None:
        super().__init__(split=split)
        self._seeds: tuple[int, int] | None = None
        self._done: list[str | int] = []  # actions, and the noise seeds of `rekey`

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self._done = []
        seed = self.choose_seed(seed)
        result = super().reset(seed=seed, options=options)
        self._seeds = int(seed), int((options or {}).get("noise_seed", seed))
        return result

    def rekey(self, noise_seed: int) -> None:
        super().rekey(noise_seed)
        self._done.append(int(noise_seed))

    def state_key(self) -> int:
        """Return a stable 63-bit hash of the game's own content."""
        return stable_hash(f"{type(self).__name__} {self._get_content()}")

    def _open(self) -> None:
        """Create the ``foreign`` attributes, also after unpickling."""
        for name in self.foreign:
            setattr(self, name, None)

    @abstractmethod
    def _begin(self, number: int) -> None:
        """Start the game that a number addresses."""

    @abstractmethod
    def _get_content(self) -> str:
        """Return everything that the future depends on, noise excluded but hidden parts included.

        Equal content means equal games.
        """

    @abstractmethod
    def _act(self, action: str) -> Outcome:
        """Play a legal action."""

    def _draw_instance(self, seed: int) -> str:
        def start_game(number: int) -> str:
            self._begin(number)
            return self._get_content()

        def propose(attempt: int) -> Iterator[int]:
            yield int(keyed_rng(seed, attempt, _GAME).integers(2**31))

        if self.instances == 1:  # a single instance is shared by all splits
            return start_game(next(iter(propose(0))))
        draw_for_split(propose, start_game, split=self.split)
        return self._get_content()

    def _play(self, action: str) -> Outcome:
        self._done.append(action)
        return self._act(action)

    def _get_state(self) -> dict[str, Any]:
        return {"seeds": list(self._seeds or ()), "done": list(self._done)}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        seed, noise_seed = state["seeds"]
        self.reset(seed=seed, options={"noise_seed": noise_seed})
        for action in state["done"]:
            if isinstance(action, str):
                self._play(action)
            else:
                self.rekey(action)

    def __getstate__(self) -> dict[str, Any]:
        attributes = {name: value for name, value in self.__dict__.items() if name not in self.foreign}
        return {"own": attributes, "state": json.dumps(self.state_dict()) if self._seeds else None}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state["own"])
        self._open()
        if state["state"] is not None:
            self.load_state_dict(json.loads(state["state"]))


_GLOBAL_GENERATORS = threading.RLock()  # one game at a time uses the global generators


class PrivateGenerators:
    """Private copies of Python's and numpy's global generators, for a game that draws from these.

    Within ``install`` the global generators continue from where this game left them; afterwards they are as before.

    Args:
        seed: initial seed of both.
    """

    def __init__(self, seed: int) -> None:
        self._python_state = random.Random(seed).getstate()
        self._numpy_state = np.random.RandomState(seed % 2**32).get_state()

    @contextmanager
    def install(self) -> Iterator[None]:
        with _GLOBAL_GENERATORS:
            outside = random.getstate(), np.random.get_state()
            random.setstate(self._python_state)
            np.random.set_state(self._numpy_state)
            try:
                yield
            finally:
                self._python_state, self._numpy_state = random.getstate(), np.random.get_state()
                random.setstate(outside[0])
                np.random.set_state(outside[1])
