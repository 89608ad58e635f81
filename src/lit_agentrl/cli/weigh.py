"""Fit the weights of reward parts to recorded episodes."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from lit_agentrl.cli._running import read_options, run_command
from lit_agentrl.config.composition import find_target, initialize_hydra
from lit_agentrl.config.overrides import parse, split_arguments


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``lit-agentrl weigh``."""
    with run_command(argv) as arguments:
        flags, overrides = split_arguments(arguments)
        of_run = [
            text
            for text, each in zip(overrides, parse(overrides), strict=True)
            if each.key_or_group.partition(".")[0].partition("/")[0] in ("reward", "model")
        ]
        own = [text for text in overrides if text not in of_run]
        cfg = read_options(
            "weigh", [*flags, *own], hint="write options, such as data=FOLDER 'reward=[format,length]'"
        )
        if cfg is None:
            return
        with initialize_hydra():
            for line in find_target(cfg)(cfg, of_run):
                Console(highlight=False, markup=False).print(line, soft_wrap=True)
