"""Check that the options of a run suit its precision."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from lit_agentrl.build.memory import name_precision
from lit_agentrl.checks import format_value
from lit_agentrl.update.rounding import check_lost_steps
from lit_agentrl.update.settings import OptimSettings

_MIN_HALF_GAP = 0.01  # nats; two programs in half precision differ by more
_SMALL_RATE = 1e-5  # below it, most steps of AdamW are less than half the spacing of bfloat16
_NONE = "lit_agentrl.rl.policy.correction.none"
_REMEDY = "engine.max_sync_gap=0.5 and algo/correction=truncated"


def check_sync_gap(cfg: DictConfig) -> None:
    """Refuse a bound on the probe's gap that an engine in half precision exceeds.

    Raises:
        ValueError: the message names the options and the remedy.
    """
    gap = cfg.engine.get("max_sync_gap")
    if isinstance(gap, int | float) and gap < _MIN_HALF_GAP and (precision := _name_half_precision(cfg)):
        raise ValueError(
            f"engine.max_sync_gap={format_value(gap)} under {precision}: log-probs of two programs differ by more in "
            f"half precision, and the probe would end the run; set {_REMEDY}"
        )


def describe_uncorrected(cfg: DictConfig) -> str:
    """Return a line about samples of another program in half precision without a correction."""
    correction = cfg.algo.get("correction") or {}
    if "max_sync_gap" not in cfg.engine or correction.get("_target_") != _NONE:
        return ""
    if not (precision := _name_half_precision(cfg)):
        return ""
    return (
        f"algo/correction=none under {precision}: the engine's log-probs differ from the trainer's; "
        "algo/correction=truncated weighs each token by their ratio"
    )


def describe_lost_steps(cfg: DictConfig, optim: OptimSettings) -> str:
    """Return a line about steps that are rounded away; empty if none are."""
    has_adapters = cfg.model.get("lora") is not None  # they are stored in float32
    if (
        has_adapters
        or optim.lr >= _SMALL_RATE
        or name_precision(cfg, str(cfg.trainer.get("precision"))) != "bfloat16"
    ):
        return ""
    if not check_lost_steps(optim.optimizer):
        return ""
    dtype = cfg.model.get("dtype")
    is_stored = dtype in ("bfloat16", "float16")
    option = f"model.dtype={dtype}" if is_stored else f"trainer.precision={cfg.trainer.precision}"
    return (
        f"{option} with optim.lr={optim.lr:g}: steps smaller than half the spacing of a weight are rounded away, which "
        "most are below 1e-5; use model.dtype=float32 trainer.precision=bf16-mixed, or model/lora=default"
    )


def _name_half_precision(cfg: DictConfig) -> str:
    """Return the option that sets half precision, with its value; empty in float32."""
    dtype, precision = cfg.model.get("dtype"), str(cfg.trainer.get("precision"))
    if name_precision(cfg, precision) == "float32":
        return ""
    if dtype in ("bfloat16", "float16"):
        return f"model.dtype={dtype}"
    computed = OmegaConf.select(cfg, "strategy.compute_dtype")
    return (
        f"trainer.precision={precision}" if precision != "32-true" else f"strategy.compute_dtype={computed}"
    )
