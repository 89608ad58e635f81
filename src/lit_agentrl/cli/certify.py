"""Compare the updates of algorithms with exact gradients."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from lit_agentrl.checks import require_whole
from lit_agentrl.cli._running import build_parser, run_command
from lit_agentrl.config.composition import format_search_path

EXAMPLES = """
Every batch that a policy can play in a small game is listed, with its probability.  The algorithm's own functions make
the update of each; their mean is compared with the exact gradient of the return.

  {0} algo=grpo                                    one algorithm, in more detail
  {0} algo=rloo algo=grpo algo/aggregate=token_sum   several, all with this option
  {0} --config-dir FOLDER algo/advantage=mine      a part of your own
  {0} all                                          every shipped algorithm, some minutes
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``lit-agentrl certify``."""
    with run_command(argv) as arguments:
        parser = build_parser("certify", __doc__, EXAMPLES)
        parser.add_argument("overrides", nargs="*", metavar="algo=NAME", help="options of a run; or all")
        parser.add_argument(
            "--config-dir", action="append", default=[], help="folder with algo/AXIS/NAME.yaml"
        )
        parser.add_argument("--members", type=int, default=4, help="members of each group; default: 4")
        parser.add_argument("--ship", action="store_true", help="write the lines into this project's source")
        parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1), help="default: 2")
        args = parser.parse_intermixed_args(arguments)
        require_whole("--members", args.members, 2, 16)
        require_whole("--processes", args.processes, 1)
        from lit_agentrl.certificates.lines import write_lines
        from lit_agentrl.certificates.table import format_page
        from lit_agentrl.evaluate.certifying import certify_jobs, list_jobs

        jobs, certificates = list_jobs(args.overrides), []
        made = certify_jobs(
            jobs, format_search_path(args.config_dir), members=args.members, processes=args.processes
        )
        for certificate in made:
            certificates.append(certificate)
            print(
                f"{len(certificates)} of {len(jobs)}  {certificate.name}: {certificate.line}", file=sys.stderr
            )
        if args.ship:
            write_lines(certificates)
        print("\n".join(format_page(certificates, members=args.members)))
