"""Apply what ``rollout.overlap=true`` implies.

These are a worker that plays ahead, and a correction for episodes that are one update old.
"""

from __future__ import annotations

from collections.abc import Sequence

from omegaconf import DictConfig, OmegaConf, open_dict

from lit_agentrl.config.errors import UserError
from lit_agentrl.config.overrides import parse
from lit_agentrl.paths import CONFIG_DIR

_NONE = "lit_agentrl.rl.policy.correction.none"
_HERE = "lit_agentrl.rollout.workers.inline.Here"


def add_worker(cfg: DictConfig) -> None:
    """Choose ``worker=process``, in place, for overlapped rollouts without a chosen worker.

    The other options of ``worker``, such as its shares, are kept.
    """
    if cfg.rollout.get("overlap") is not True or (cfg.worker and cfg.worker.get("_target_") != _HERE):
        return
    shares = {name: value for name, value in (cfg.worker or {}).items() if name != "_target_"}
    with open_dict(cfg):
        cfg.worker = OmegaConf.merge(OmegaConf.load(CONFIG_DIR / "worker" / "process.yaml"), shares)


def add_correction(cfg: DictConfig) -> str:
    """Choose ``algo/correction=truncated`` for overlapped rollouts without a chosen correction.

    The config is changed in place, so that the record of the run names the correction.

    Returns:
        A line for the user; empty if nothing was changed.
    """
    chosen = cfg.algo.get("correction") or {}  # some objectives have no correction
    if cfg.rollout.get("overlap") is not True or chosen.get("_target_") != _NONE:
        return ""
    truncated = OmegaConf.load(CONFIG_DIR / "algo" / "correction" / "truncated.yaml")
    with open_dict(cfg):
        cfg.algo.correction = truncated
    return (
        f"rollout.overlap=true: episodes are one update old, so algo/correction=truncated (cap {truncated.cap:g}) "
        "is applied"
    )


def refuse_contradictions(overrides: Sequence[str], cfg: DictConfig) -> None:
    """Refuse explicit ``worker=none`` or ``algo/correction=none`` with overlapped rollouts.

    Raises:
        UserError: the message names the remedy.
    """
    if cfg.rollout.get("overlap") is not True:
        return
    set_to_none = {override.key_or_group for override in parse(overrides) if override.value() == "none"}
    if "worker" in set_to_none:
        raise UserError(
            "worker=none cannot play ahead, which rollout.overlap=true requires; use worker=process, or "
            "rollout.overlap=false"
        )
    if "algo/correction" in set_to_none:
        raise UserError(
            "algo/correction=none does not correct the episodes of rollout.overlap=true, which are one update old; "
            "use algo/correction=truncated or masked, or rollout.overlap=false"
        )
