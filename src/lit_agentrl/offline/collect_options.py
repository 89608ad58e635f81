"""Checks of the options of ``conf/collect.yaml``, made before any episode is played."""

from __future__ import annotations

from collections.abc import Iterator

from omegaconf import DictConfig

from lit_agentrl.checks import MOST_EPISODES, require, require_number, require_one_of, require_whole
from lit_agentrl.config.errors import refuse_first
from lit_agentrl.envs.splits import SPLITS

BEST = "best"  # value of ``plays``: best play of the game instead of the policy


def check_options(cfg: DictConfig) -> None:
    """Refuse options of ``conf/collect.yaml`` that are out of range.

    Raises:
        ValueError: an option is out of range; the message names it.
    """
    require_one_of("split", cfg.split, SPLITS)
    require_one_of("plays", cfg.plays, ("policy", BEST))
    require_whole("seed", cfg.seed, 0, 2**32 - 1)
    require_whole("first", cfg.first, 0)
    for name in ("episodes", "members", "shard"):
        require_whole(name, cfg[name], 1, MOST_EPISODES)
    require_whole("continuations", cfg.continuations, 0, MOST_EPISODES)
    if cfg.trained_in is not None:
        require_whole("trained_in", cfg.trained_in, 0, 2**32 - 1, alternative=", or null")
    require_number("temperature", cfg.temperature, "a number >= 0", lambda value: value >= 0)
    require(isinstance(cfg.out, str) and bool(cfg.out.strip()), "out", cfg.out, "the name of a folder")
    refuse_first(_find_contradictions(cfg))


def _find_contradictions(cfg: DictConfig) -> Iterator[str]:
    """Yield a line about each option that would have no effect together with another one."""
    if cfg.plays == BEST:
        if cfg.get("run") is not None:
            yield (
                "plays=best has no policy, so run= has no effect; give the model that the prompts are for: model=nano"
            )
        if cfg.members != 1:
            yield f"members={cfg.members} with plays=best would record the same episode several times; use members=1"
        for name, default in (("temperature", 1), ("continuations", 0)):
            if cfg[name] != default:
                yield f"{name}={cfg[name]} has no effect with plays=best, which samples nothing; leave it out"
    if cfg.trained_in is not None and cfg.split != "train":
        yield f"trained_in selects training tasks, which split={cfg.split} does not have; leave one of the two out"
    if cfg.continuations and cfg.temperature == 0:
        yield f"continuations={cfg.continuations} with temperature=0 would all be the same; set temperature=1"
    if cfg.members > 1 and cfg.temperature == 0:
        yield f"members={cfg.members} with temperature=0 would record the same episode several times; use members=1"
