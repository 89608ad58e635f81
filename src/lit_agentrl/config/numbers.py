"""Check the numbers that no part of a run checks, and the options of ``trainer``."""

from __future__ import annotations

from omegaconf import DictConfig, ListConfig

from lit_agentrl.checks import MOST_EPISODES, require_whole
from lit_agentrl.config.trainer_options import check_trainer


def check_numbers(cfg: DictConfig) -> None:
    """Check the seed, the iterations, the options of ``trainer``, and the episodes of evaluations.

    Raises:
        ValueError: an invalid value; the message names the option.
    """
    require_whole("seed", cfg.seed, 0, 2**32 - 1)
    require_whole("trainer.max_epochs", cfg.trainer.get("max_epochs"), 1)
    check_trainer(cfg)
    require_whole("val.every", cfg.val.every, 1)
    require_whole("val.episodes", cfg.val.episodes, 1, MOST_EPISODES)
    require_whole("test.episodes", cfg.test.episodes, 0, MOST_EPISODES)
    for split in ("val", "test"):
        if isinstance(envs := cfg[split].envs, ListConfig) and not envs:
            raise ValueError(f"{split}.envs=[] names no game; null stands for the games trained on")
