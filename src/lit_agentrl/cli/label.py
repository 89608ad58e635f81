"""Have a judge rate or criticise recorded episodes."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from lit_agentrl.cli._running import read_options, run_command
from lit_agentrl.config.composition import initialize_hydra
from lit_agentrl.config.overrides import parse, split_arguments


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``lit-agentrl label``."""
    with run_command(argv) as arguments:
        flags, overrides = split_arguments(arguments)
        judge_options = [
            text
            for text, override in zip(overrides, parse(overrides), strict=True)
            if override.key_or_group.startswith("reward")
        ]
        own_options = [text for text in overrides if text not in judge_options]
        cfg = read_options(
            "label", [*flags, *own_options], hint="write options, such as data=FOLDER out=FOLDER"
        )
        if cfg is None:
            return
        from lit_agentrl.offline.labelling import label

        with initialize_hydra():
            for line in label(cfg, judge_options):
                Console(highlight=False).print(line, soft_wrap=True)
