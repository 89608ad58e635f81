"""Record episodes of a run's policy, or of any model, to train on."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from lit_agentrl.cli._running import read_options, run_command
from lit_agentrl.config.composition import hydra_ready
from lit_agentrl.config.overrides import split_arguments
from lit_agentrl.config.run_options import opened, options_of_model
from lit_agentrl.runs import ranks


def main(argv: Sequence[str] | None = None) -> None:
    """``lit-agentrl collect``."""
    run_command(_collect, argv)


def _collect(argv: list[str]) -> int:
    flags, overrides = split_arguments(argv)
    of_model = None if flags else options_of_model(overrides, "collect")
    if of_model is not None:
        ranks.require_one_process("collect plays on one device")
        from lit_agentrl.offline.collecting import collect_model

        with hydra_ready():
            return _told(collect_model(*of_model).lines)
    cfg = read_options("collect", argv, hint="write options, such as env=sokoban out=FOLDER")
    if cfg is None:
        return 0
    folder, saved, load_task = opened(cfg)
    from lit_agentrl.offline.collecting import collect_run

    with hydra_ready():
        return _told(collect_run(cfg, saved, load_task, folder=folder).lines)


def _told(lines: Sequence[str]) -> int:
    for line in lines:
        Console(highlight=False).print(line, soft_wrap=True)
    return 0
