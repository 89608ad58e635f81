"""What ``strategy`` and ``trainer`` ask for: how the processes of a run go together, and how many there are."""

from __future__ import annotations

from hydra.utils import instantiate
from lightning.pytorch.strategies import ParallelStrategy, Strategy
from omegaconf import DictConfig

from lit_agentrl.checks import named
from lit_agentrl.strategies.fsdp import FSDP
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


def check_strategy(cfg: DictConfig) -> None:
    """Refuse, before its processes are started, a strategy that makes no sense or cannot do what the run asks for.

    Raises:
        ValueError: naming the option.
    """
    if isinstance(strategy_of(cfg), FSDP) and cfg.model.get("lora") is not None:
        raise ValueError(
            "strategy=fsdp does not shard adapters (model/lora) yet; use strategy=ddp, or model/lora=none"
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
    with named("trainer"):
        return count_devices(accelerator, cfg.trainer.devices), int(cfg.trainer.num_nodes)
