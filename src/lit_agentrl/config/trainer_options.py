"""Check the options of ``trainer`` without loading Lightning, whose trainer would report them late."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from typing import Any, Literal

from omegaconf import DictConfig, ListConfig, OmegaConf

from lit_agentrl.checks import format_value, require, require_one_of, require_whole

LIGHTNING = "lightning.pytorch.Trainer"
PRECISIONS = ("auto", "32-true", "bf16-mixed", "bf16-true", "64-true")
_OLD_PRECISIONS = ("null", "32", "64", "bf16")  # older names that Lightning has for these
# precisions that need a package and a GPU of NVIDIA
_ENGINE_PRECISIONS = ("transformer-engine", "transformer-engine-float16")
_SINGLE = "lit_agentrl.strategies.single.single"
# Lightning options that shorten or skip epochs (one epoch is one iteration) -> values without such an effect
_SHORTENS = {
    "max_steps": ("-1",), "limit_train_batches": ("1", "1.0"), "limit_val_batches": ("1", "1.0"),
    "limit_test_batches": ("1", "1.0"), "overfit_batches": ("0", "0.0"), "fast_dev_run": ("False", "0"),
}  # fmt: skip
_DURATION = re.compile(r"\d+:[0-2]?\d:[0-5]?\d:[0-5]?\d")
_UNITS = ("weeks", "days", "hours", "minutes", "seconds", "milliseconds", "microseconds")


def describe_arguments(
    *,
    accelerator: str = "auto",
    strategy: Any = "auto",
    devices: list[int] | str | int = "auto",
    num_nodes: int = 1,
    precision: str | int | None = None,
    logger: Any = None,
    callbacks: Any = None,
    fast_dev_run: int | bool = False,
    max_epochs: int | None = None,
    min_epochs: int | None = None,
    max_steps: int = -1,
    min_steps: int | None = None,
    max_time: str | Mapping[str, int] | None = None,
    limit_train_batches: int | float | None = None,
    limit_val_batches: int | float | None = None,
    limit_test_batches: int | float | None = None,
    limit_predict_batches: int | float | None = None,
    overfit_batches: int | float = 0.0,
    val_check_interval: Any = None,
    check_val_every_n_epoch: int | None = 1,
    num_sanity_val_steps: int | None = None,
    log_every_n_steps: int | None = None,
    enable_checkpointing: bool | None = None,
    enable_progress_bar: bool | None = None,
    enable_model_summary: bool | None = None,
    accumulate_grad_batches: int = 1,
    gradient_clip_val: int | float | None = None,
    gradient_clip_algorithm: str | None = None,
    deterministic: bool | Literal["warn"] | None = None,
    benchmark: bool | None = None,
    inference_mode: bool = True,
    use_distributed_sampler: bool = True,
    profiler: Any = None,
    detect_anomaly: bool = False,
    barebones: bool = False,
    plugins: Any = None,
    sync_batchnorm: bool = False,
    reload_dataloaders_every_n_epochs: int = 0,
    default_root_dir: str | None = None,
    enable_autolog_hparams: bool = True,
    model_registry: str | None = None,
) -> None:
    """State the arguments of Lightning's trainer, for checks of names and types without it."""


def check_trainer(cfg: DictConfig) -> None:
    """Refuse options of ``trainer`` that would fail later, or with an unclear message of Lightning.

    Raises:
        ValueError: the message names the option and the remedy.
    """
    trainer = cfg.trainer
    _check_accelerator(trainer.get("accelerator", "auto"))
    _check_precision(trainer.get("precision"))
    for option, harmless in _SHORTENS.items():
        if trainer.get(option) is not None and str(trainer[option]) not in harmless:
            raise ValueError(
                f"trainer.{option}={format_value(trainer[option])} would skip or shorten iterations; set "
                "trainer.max_epochs, or debug=fast for a trial"
            )
    for option in ("min_epochs", "min_steps", "reload_dataloaders_every_n_epochs"):
        if trainer.get(option) is not None:
            require_whole(f"trainer.{option}", trainer[option], 0)
    if isinstance(profiler := trainer.get("profiler"), str):
        require_one_of("trainer.profiler", profiler, ("simple", "advanced", "pytorch"))
    _check_time(trainer.get("max_time"))
    _check_devices(trainer)
    _refuse_several_devices(cfg)


def _check_accelerator(accelerator: object) -> None:
    require_one_of("trainer.accelerator", accelerator, ("auto", "cpu", "cuda", "gpu", "mps"))
    if accelerator == "mps":
        raise ValueError(
            "trainer.accelerator=mps: Apple's GPUs have no float64, in which draws and statistics are computed; "
            "use trainer.accelerator=cpu"
        )


def _check_precision(value: object) -> None:
    precision = format_value(value)
    if precision in ("16-true", "16-mixed", "16"):
        raise ValueError(
            f"trainer.precision={precision}: updates in float16 overflow without scaled gradients, which are not "
            "supported; use bf16-mixed or 32-true"
        )
    if precision in _ENGINE_PRECISIONS:
        is_installed = importlib.util.find_spec("transformer_engine") is not None
        require(
            is_installed,
            "trainer.precision",
            precision,
            "used with the package transformer_engine, which is absent",
        )
    elif precision not in _OLD_PRECISIONS:
        require_one_of("trainer.precision", value, PRECISIONS)


def _check_time(duration: object) -> None:
    is_text = isinstance(duration, str) and _DURATION.fullmatch(duration) is not None
    is_table = isinstance(duration, DictConfig) and all(
        unit in _UNITS and isinstance(number, int | float) for unit, number in duration.items()
    )
    valid = "a text DAYS:HOURS:MINUTES:SECONDS in quotes, such as '00:01:30:00', or a table such as {hours:2}"
    require(duration is None or is_text or is_table, "trainer.max_time", duration, valid)


def _check_devices(trainer: DictConfig) -> None:
    devices = trainer.get("devices", 1)
    if trainer.get("accelerator") == "cpu":
        is_number = devices == "auto" or re.fullmatch(r"0*[1-9]\d*", str(devices)) is not None
        is_number = is_number and not isinstance(devices, bool | ListConfig)
        require(is_number, "trainer.devices", devices, "a whole number >= 1 on a CPU, or auto")
    elif isinstance(devices, str):
        is_listed = re.fullmatch(r"auto|-1|0*[1-9]\d*|\d+(,\d+)*,?", devices) is not None
        require(is_listed, "trainer.devices", devices, "a whole number >= 1, a list such as [0,1], or auto")
    else:
        is_number = (
            isinstance(devices, int) and not isinstance(devices, bool) and (devices >= 1 or devices == -1)
        )
        is_listed = isinstance(devices, ListConfig) and len(devices) > 0 and _are_numbers(devices)
        require(
            is_number or is_listed,
            "trainer.devices",
            devices,
            "a whole number >= 1, a list of devices, or auto",
        )
    require_whole("trainer.num_nodes", trainer.get("num_nodes", 1), 1)


def _are_numbers(devices: ListConfig) -> bool:
    numbers = list(devices)
    is_whole = all(
        isinstance(number, int) and not isinstance(number, bool) and number >= 0 for number in numbers
    )
    return is_whole and len(set(numbers)) == len(numbers)


def _refuse_several_devices(cfg: DictConfig) -> None:
    """Refuse several devices with the strategy of one process, if their number is known."""
    devices, nodes = cfg.trainer.get("devices", 1), cfg.trainer.get("num_nodes", 1)
    if isinstance(devices, ListConfig):
        number = len(devices)
    elif str(devices).isdigit():
        number = int(devices)
    else:
        # auto and -1 count as one device until their number is known
        number = len([device for device in str(devices).split(",") if device])
    if OmegaConf.select(cfg, "strategy._target_") == _SINGLE and number * nodes > 1:
        raise ValueError(
            f"trainer.devices={devices} trainer.num_nodes={nodes}: strategy=single is one process on one "
            "device; choose another strategy, such as strategy=ddp"
        )
