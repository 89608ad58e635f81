"""Run a recipe, such as iterated DPO: record, label, train."""

from __future__ import annotations

from collections.abc import Sequence

from lit_agentrl import screen
from lit_agentrl.cli._running import run_command
from lit_agentrl.config.errors import UserError
from lit_agentrl.config.overrides import get_program, split_arguments
from lit_agentrl.runs import ranks


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``lit-agentrl pipeline``."""
    with run_command(argv) as arguments:
        flags, words = split_arguments(arguments)
        from lit_agentrl.runs.pipelines.recipes import CONFIG, list_recipes, read
        from lit_agentrl.runs.pipelines.stages import Pipeline

        if "--help" in flags or "-h" in flags:
            print(CONFIG.read_text(encoding="utf-8"))
            print("\n".join(f"{name:18}{read(name).description}" for name in list_recipes()))
            return
        if flags:
            raise UserError(
                f"pipeline takes no {flags[0]}; {get_program('pipeline')} --help shows options and recipes"
            )
        ranks.require_one_process("a pipeline starts the processes of its stages itself")
        for line in Pipeline.of(words).run():
            screen.note(line)
