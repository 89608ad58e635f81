"""Text games and tasks.

Importing the package imports all modules of ``games`` and ``tasks``, so that each registers with gymnasium.
"""

from __future__ import annotations

import importlib
import pkgutil

for _room in ("games", "tasks"):
    _package = importlib.import_module(f"{__name__}.{_room}")
    for _module in pkgutil.iter_modules(_package.__path__):
        importlib.import_module(f"{_package.__name__}.{_module.name}")
