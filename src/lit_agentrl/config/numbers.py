"""Check numbers of a run that no part of it checks, and options of ``trainer``."""

from __future__ import annotations

from omegaconf import DictConfig, ListConfig

from lit_agentrl.checks import MOST_EPISODES, format_value, require, require_one_of, require_whole


def check_numbers(cfg: DictConfig) -> None:
    """Check the seed, the iterations, the options of ``trainer``, and the episodes of evaluations.

    Raises:
        ValueError: an invalid value; the message names the option.
    """
    require_whole("seed", cfg.seed, 0, 2**32 - 1)
    require_whole("trainer.max_epochs", cfg.trainer.get("max_epochs"), 1)
    check_trainer(cfg.trainer)
    require_whole("val.every", cfg.val.every, 1)
    require_whole("val.episodes", cfg.val.episodes, 1, MOST_EPISODES)
    require_whole("test.episodes", cfg.test.episodes, 0, MOST_EPISODES)
    for split in ("val", "test"):
        if isinstance(envs := cfg[split].envs, ListConfig) and not envs:
            raise ValueError(f"{split}.envs=[] names no game; null stands for the games trained on")


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
