"""What games of other libraries share: states that are played again, and generators that nobody else draws from."""

from __future__ import annotations

import json
import random
import threading
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from lit_agentrl.envs.base import Outcome, TextEnv
from lit_agentrl.envs.splits import draw_for_split, keyed_rng, stable_hash

_GAME = 61  # purpose key of the numbers that games are begun with


def missing(library: str, extra: str, error: ImportError) -> ValueError:
    """What is told where an optional library is not installed."""
    what = " ".join(str(error).split())
    return ValueError(f"this game needs {library} ({what}); pip install 'lit-agentrl[{extra}]'")


class Replayed(TextEnv):
    """A game of a library, whose state is the number that it was begun with and what was done since.

    It is saved, copied and branched by being begun and played again, so the game needs no way of its own to be
    saved.  It must be a function of its number, its actions and ``_noise``.

    Attributes:
        foreign: attributes that hold objects of the library; they are left out where this is pickled.
    """

    foreign: ClassVar[tuple[str, ...]] = ("_game",)

    def __init__(self, *, split: str = "train") -> None:
        super().__init__(split=split)
        self._seeds: tuple[int, int] | None = None
        self._done: list[str | int] = []  # actions, and the numbers of branches

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self._done = []
        result = super().reset(seed=seed, options=options)
        assert seed is not None  # as TextEnv has checked
        self._seeds = int(seed), int((options or {}).get("noise_seed", seed))
        return result

    def rekey(self, noise_seed: int) -> None:
        super().rekey(noise_seed)
        self._done.append(int(noise_seed))

    def state_key(self) -> int:
        """Stable 63-bit hash of the game's own content."""
        return stable_hash(f"{type(self).__name__} {self._get_content()}")

    def _open(self) -> None:
        """Make the ``foreign`` attributes; what is pickled makes them anew."""
        for name in self.foreign:
            setattr(self, name, None)

    @abstractmethod
    def _begin(self, number: int) -> None:
        """Begin the game that a number addresses."""

    @abstractmethod
    def _get_content(self) -> str:
        """All that the future depends on, noise excluded, also what is hidden: equal content, equal game."""

    @abstractmethod
    def _act(self, action: str) -> Outcome:
        """Play a legal action."""

    def _draw_instance(self, seed: int) -> str:
        def begun(number: int) -> str:
            self._begin(number)
            return self._get_content()

        def propose(attempt: int) -> Iterator[int]:
            yield int(keyed_rng(seed, attempt, _GAME).integers(2**31))

        if self.instances == 1:  # which no split can have for itself
            return begun(next(iter(propose(0))))
        draw_for_split(propose, begun, split=self.split)
        return self._get_content()

    def _play(self, action: str) -> Outcome:
        self._done.append(action)
        return self._act(action)

    def _get_state(self) -> dict[str, Any]:
        return {"seeds": list(self._seeds or ()), "done": list(self._done)}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        seed, noise_seed = state["seeds"]
        self.reset(seed=seed, options={"noise_seed": noise_seed})
        for each in state["done"]:
            if isinstance(each, str):
                self._play(each)
            else:
                self.rekey(each)

    def __getstate__(self) -> dict[str, Any]:
        own = {name: value for name, value in self.__dict__.items() if name not in self.foreign}
        return {"own": own, "state": json.dumps(self.state_dict()) if self._seeds else None}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state["own"])
        self._open()
        if state["state"] is not None:
            self.load_state_dict(json.loads(state["state"]))


_LENT = threading.RLock()  # the global generators are lent to one game at a time


class OwnGenerators:
    """Python's and numpy's global generators, as a game that draws from them has them for itself.

    Within ``lent`` they go on from where this game left them; outside they are as if it had never been.

    Args:
        seed: what they begin with.
    """

    def __init__(self, seed: int) -> None:
        self._python = random.Random(seed).getstate()
        self._numpy = np.random.RandomState(seed % 2**32).get_state()

    @contextmanager
    def lent(self) -> Iterator[None]:
        with _LENT:
            outside = random.getstate(), np.random.get_state()
            random.setstate(self._python)
            np.random.set_state(self._numpy)
            try:
                yield
            finally:
                self._python, self._numpy = random.getstate(), np.random.get_state()
                random.setstate(outside[0])
                np.random.set_state(outside[1])
