"""Push the policy of a run to the Hugging Face hub, with a card."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lit_agentrl.checks import require_one_of
from lit_agentrl.cli._running import build_parser, read_pairs, run_command
from lit_agentrl.config.errors import UserError

EXAMPLES = """
Pushes hf/ of the run, whose README.md is the card; edit it before, if you like.  The token is read from the environment
variable HF_TOKEN alone.  The repo is private unless you write public=true.

  {0} outputs/2026-01-31/12-00-00 repo=USER/NAME
  {0} outputs/2026-01-31/12-00-00 repo=USER/NAME public=true
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``lit-agentrl push``."""
    with run_command(argv) as arguments:
        parser = build_parser("push", __doc__, EXAMPLES)
        parser.add_argument("run", metavar="RUN", help="a run folder")
        parser.add_argument("options", nargs="*", metavar="repo=USER/NAME public=true")
        args = parser.parse_intermixed_args(arguments)
        options = read_pairs("push", args.options, ("repo", "public"))
        if "repo" not in options:
            raise UserError("repo is missing; write lit-agentrl push RUN repo=USER/NAME")
        require_one_of("public", public := options.get("public", "false"), ("true", "false"))
        from lit_agentrl.runs.hub import push

        print(f"pushed to {push(Path(args.run), options['repo'], is_public=public == 'true')}")
