"""The libraries whose import takes seconds."""

from __future__ import annotations

import gc
import importlib
import sys

from lit_agentrl import screen

HEAVY = ("lightning.pytorch", "transformers")


def load() -> None:
    """Say that they are imported, and import them, unless they are already.

    They make a million objects that stay.  The garbage collector would look at each of them many times, which takes a
    third of the time: it is off meanwhile, and leaves them alone afterwards.
    """
    if "torch" in sys.modules:
        return
    screen.announce("loading torch and Lightning")
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for name in HEAVY:
            importlib.import_module(name)
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
