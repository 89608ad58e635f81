"""The config that a run continues with: its own saved one, with the little that may change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from lit_agentrl.config.composition import load_option
from lit_agentrl.config.errors import UserError
from lit_agentrl.config.overrides import check_overrides, parse
from lit_agentrl.config.saved import saved_config
from lit_agentrl.config.signatures import check_targets
from lit_agentrl.config.trust import TRUST_RUN, is_trusted

# what may be changed when a run is continued: its length, the processes it runs in, and whether its code is trusted
RESUMABLE = (
    "trainer.max_epochs", "strategy", "trainer.devices", "trainer.num_nodes", "traceback", TRUST_RUN,
)  # fmt: skip


def resumed_config(folder: Path, overrides: Sequence[str]) -> tuple[DictConfig, list[str]]:
    """The config of a run that continues, and its config folders.

    Args:
        folder: the run folder.
        overrides: what the command changes.

    Raises:
        UserError: not a run folder, one that names code of others, or an override that would make it another run.
    """
    check_overrides(overrides, is_multirun=False)
    parsed = sorted(parse(overrides), key=lambda each: each.key_or_group != "strategy")
    for override in parsed:
        key = override.key_or_group
        if key not in RESUMABLE and not key.startswith("strategy."):
            raise UserError(
                f"{override.input_line} cannot be given with resume={folder}: the run keeps its own saved "
                f"config; only {', '.join(RESUMABLE)} may change"
            )
    given = {override.key_or_group: override.value() for override in parsed}
    trusted = is_trusted(given.pop(TRUST_RUN, False))
    chosen = str(given.pop("strategy", ""))
    asked = [("strategy", chosen)] if chosen else []
    cfg, folders = saved_config(folder, "resume", trusted=trusted, asked=asked)
    if chosen:
        cfg.strategy = load_option("strategy", chosen, folders)
    for key, value in given.items():
        if OmegaConf.select(cfg, key) is None:
            raise UserError(f"unknown option {key}={value}; valid: {', '.join(map(str, cfg.strategy))}")
        OmegaConf.update(cfg, key, value)
    check_targets(cfg)
    return cfg, folders
