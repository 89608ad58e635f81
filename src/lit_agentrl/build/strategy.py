"""Build the strategy of a run, count its processes, and check the options of ``trainer``."""

from __future__ import annotations

from hydra.utils import instantiate
from lightning.pytorch.strategies import ParallelStrategy, Strategy
from omegaconf import DictConfig, ListConfig

from lit_agentrl.checks import format_value, name_errors, require, require_one_of, require_whole
from lit_agentrl.strategies.launching import count_devices
from lit_agentrl.strategies.single import single


def build_strategy(cfg: DictConfig) -> Strategy | str:
    """Instantiate ``strategy``, whose constructor checks its options.

    Raises:
        ValueError: an invalid option, or neither a strategy of Lightning nor ``single``.
    """
    strategy = instantiate(cfg.strategy)
    if isinstance(strategy, Strategy) or strategy == single():
        return strategy  # type: ignore[no-any-return]
    kind = strategy if isinstance(strategy, str) else f"a {type(strategy).__name__}"
    raise ValueError(
        f"strategy._target_={cfg.strategy._target_} makes {kind}; it must make an object of Lightning's class Strategy"
    )


def is_parallel(strategy: Strategy | str) -> bool:
    """Return whether a strategy runs several processes, whoever starts them."""
    return isinstance(strategy, ParallelStrategy)


def count_processes(cfg: DictConfig) -> tuple[int, int]:
    """Return the processes per machine (one a device) and the number of machines of ``trainer``.

    Raises:
        ValueError: ``trainer.devices`` is invalid.
    """
    accelerator = str(cfg.trainer.get("accelerator", "auto"))
    with name_errors("trainer"):
        return count_devices(accelerator, cfg.trainer.devices), int(cfg.trainer.num_nodes)


# Lightning options that shorten or skip epochs (one epoch is one iteration) -> values without such an effect
_SHORTENS = {
    "max_steps": ("-1",), "limit_train_batches": ("1", "1.0"), "limit_val_batches": ("1", "1.0"),
    "overfit_batches": ("0", "0.0"), "fast_dev_run": ("False", "0"),
}  # fmt: skip


def check_trainer(trainer: DictConfig) -> None:
    """Refuse options of ``trainer`` that would fail later, or with an unclear message of Lightning.

    Raises:
        ValueError: the message names the option and the remedy.
    """
    require_one_of(
        "trainer.accelerator", trainer.get("accelerator", "auto"), ("auto", "cpu", "cuda", "gpu", "mps")
    )
    precision = str(trainer.get("precision", "32-true"))
    if precision in ("16-true", "16-mixed", "16"):
        raise ValueError(
            f"trainer.precision={precision}: updates in float16 overflow without scaled gradients, which are not "
            "supported; use bf16-mixed or 32-true"
        )
    for option, harmless in _SHORTENS.items():
        if trainer.get(option) is not None and str(trainer[option]) not in harmless:
            raise ValueError(
                f"trainer.{option}={format_value(trainer[option])} would skip or shorten iterations; set "
                "trainer.max_epochs, or debug=fast for a trial"
            )
    _check_devices(trainer)


def _check_devices(trainer: DictConfig) -> None:
    devices = trainer.get("devices", 1)
    is_number = isinstance(devices, int) and not isinstance(devices, bool) and (devices >= 1 or devices == -1)
    is_listed = isinstance(devices, str | ListConfig) and len(devices) > 0
    require(
        is_number or is_listed, "trainer.devices", devices, "a whole number >= 1, a list of devices, or auto"
    )
    require_whole("trainer.num_nodes", trainer.get("num_nodes", 1), 1)
