"""What callbacks wait for: metrics by their names."""

from __future__ import annotations

from omegaconf import DictConfig

from lit_agentrl.entry.errors import did_you_mean, nearest
from lit_agentrl.entry.games import Games
from lit_agentrl.report.episodes import EVALUATED

_OF_ITERATIONS = ("rollout/", "train/", "critic/", "reward/", "time/", "speed/")
_LOGGED = ("val/success",)  # what Lightning's own callbacks can see
_KNOWN = ("lit_agentrl.", "lightning.")


def check_monitors(callbacks: DictConfig | None, games: Games) -> None:
    """Refuse a callback whose ``monitor`` nothing measures.

    Under a callback of one's own, which may add any metric, nothing is refused.

    Raises:
        ValueError: naming the option and the metrics that are like it.
    """
    entries = {
        str(name): entry
        for name, entry in (callbacks or {}).items()
        if isinstance(entry, DictConfig) and "_target_" in entry
    }
    if any(not str(entry._target_).startswith(_KNOWN) for entry in entries.values()):
        return
    for name, entry in entries.items():
        monitor, names = entry.get("monitor"), _validated(games)
        if str(entry._target_).startswith("lightning."):
            names = [*_LOGGED]
        elif monitor is not None and str(monitor).startswith(_OF_ITERATIONS):
            continue
        if monitor is not None and monitor not in names:
            hint = did_you_mean(nearest(str(monitor), names)) or f"valid: {', '.join(names)}"
            raise ValueError(f"callbacks.{name}.monitor={monitor} is measured by nothing; {hint}")


def _validated(games: Games) -> list[str]:
    """The metrics of a validation."""
    levels = games.levels("val")
    known = {
        name: EVALUATED if None not in (of.chance_success, of.oracle_success) else _without_levels()
        for name, of in levels.items()
    }
    names = dict.fromkeys(f"val/{key}" for keys in known.values() for key in keys)
    if len(known) > 1:
        names |= dict.fromkeys(f"val/{name}/{key}" for name, keys in known.items() for key in keys)
    return list(names)


def _without_levels() -> tuple[str, ...]:
    return tuple(key for key in EVALUATED if key != "normalised")
