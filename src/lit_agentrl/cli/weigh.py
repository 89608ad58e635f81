"""Fit the weights of reward parts to recorded episodes."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from lit_agentrl.cli._running import read_options, run_command
from lit_agentrl.config.composition import import_target, initialize_hydra
from lit_agentrl.config.overrides import parse, split_arguments


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``lit-agentrl weigh``."""
    with run_command(argv) as arguments:
        flags, overrides = split_arguments(arguments)
        run_options = [
            text
            for text, override in zip(overrides, parse(overrides), strict=True)
            if override.key_or_group.partition(".")[0].partition("/")[0] in ("reward", "model")
        ]
        own_options = [text for text in overrides if text not in run_options]
        cfg = read_options(
            "weigh",
            [*flags, *own_options],
            hint="write options, such as data=FOLDER 'reward=[format,length]'",
        )
        if cfg is None:
            return
        with initialize_hydra():
            for line in import_target(cfg)(cfg, run_options):
                Console(highlight=False, markup=False).print(line, soft_wrap=True)
