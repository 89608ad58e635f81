"""Convert a GGUF file to a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lit_agentrl.checks import name_errors
from lit_agentrl.cli._running import build_parser, read_pairs, run_command
from lit_agentrl.config.errors import UserError

EXAMPLES = """
Weights are written in float32; rounding in the file stays.

  {0} FILE.gguf out=FOLDER           FOLDER must not exist; then train with model=hf model.name=FOLDER
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``lit-agentrl convert``."""
    with run_command(argv) as arguments:
        parser = build_parser("convert", __doc__, EXAMPLES)
        parser.add_argument("file", metavar="FILE.gguf")
        parser.add_argument("options", nargs="*", metavar="out=FOLDER", help="a new folder")
        args = parser.parse_intermixed_args(arguments)
        options = read_pairs("convert", args.options, ("out",))
        if "out" not in options:
            raise UserError("out is missing; write lit-agentrl convert FILE.gguf out=FOLDER")
        from lit_agentrl.models.gguf import convert

        folder = Path(options["out"]).expanduser()
        with name_errors("convert"):
            convert(Path(args.file).expanduser(), folder, {})
        print(folder)
