"""What ``strategy`` and ``trainer`` ask for: how the processes of a run go together, and how many there are."""

from __future__ import annotations

from hydra.utils import instantiate
from lightning.pytorch.strategies import ParallelStrategy, Strategy
from omegaconf import DictConfig, ListConfig

from lit_agentrl.checks import format_value, name_errors, require, require_one_of, require_whole
from lit_agentrl.strategies.launching import count_devices
from lit_agentrl.strategies.single import single


def strategy_of(cfg: DictConfig) -> Strategy | str:
    """What ``strategy`` describes, which refuses its options where it is made.

    Raises:
        ValueError: it makes no sense, or is neither a strategy of Lightning nor ``single``.
    """
    made = instantiate(cfg.strategy)
    if isinstance(made, Strategy) or made == single():
        return made  # type: ignore[no-any-return]
    found = made if isinstance(made, str) else f"a {type(made).__name__}"
    raise ValueError(
        f"strategy._target_={cfg.strategy._target_} makes {found}; it must make an object of Lightning's class Strategy"
    )


def is_parallel(strategy: Strategy | str) -> bool:
    """Whether it is one of several processes, whoever starts them."""
    return isinstance(strategy, ParallelStrategy)


def processes_of(cfg: DictConfig) -> tuple[int, int]:
    """Processes of each machine and number of machines that ``trainer`` asks for, one process a device.

    Raises:
        ValueError: ``trainer.devices`` makes no sense.
    """
    accelerator = str(cfg.trainer.get("accelerator", "auto"))
    with name_errors("trainer"):
        return count_devices(accelerator, cfg.trainer.devices), int(cfg.trainer.num_nodes)


# of Lightning's trainer: each ends or empties epochs, of which one is an iteration
_SHORTENS = {
    "max_steps": ("-1",), "limit_train_batches": ("1", "1.0"), "limit_val_batches": ("1", "1.0"),
    "overfit_batches": ("0", "0.0"), "fast_dev_run": ("False", "0"),
}  # fmt: skip


def check_trainer(trainer: DictConfig) -> None:
    """Refuse what Lightning would refuse in words of its own, or only while the run is under way.

    Raises:
        ValueError: naming the option and the remedy.
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
                f"trainer.{option}={format_value(trainer[option])} would cut iterations out of the run; set "
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
