"""Build the strategy of a run, count its processes, and check the options of ``trainer``."""

from __future__ import annotations

from hydra.utils import instantiate
from lightning.pytorch.strategies import ParallelStrategy, Strategy
from omegaconf import DictConfig

from lit_agentrl.checks import name_errors
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
