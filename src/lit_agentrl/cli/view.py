"""Show the recorded episodes of a run in a browser, token by token."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from lit_agentrl.checks import escape_unprintable, require_whole
from lit_agentrl.cli._running import build_parser, run_command
from lit_agentrl.config.errors import UserError

EXAMPLES = """
Shows the tokens of transcripts/ with their log-probs and advantages, even while the run trains.  More episodes are
recorded with callbacks.transcripts.every=1 callbacks.transcripts.episodes=32.  Only this machine can open the page.

  {0} outputs/2026-01-31/12-00-00
  {0} outputs/2026-01-31/12-00-00 --port 0      on any free port
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``lit-agentrl view``."""
    with run_command(argv) as arguments:
        parser = build_parser("view", __doc__, EXAMPLES)
        parser.add_argument("run", metavar="RUN", help="a run folder")
        parser.add_argument("--port", type=int, default=8200, help="0: any free one (default: 8200)")
        args = parser.parse_args(arguments)
        require_whole("--port", args.port, 0, 65_535)
        folder = Path(args.run)
        require_run(folder)
        from lit_agentrl.evaluate.viewer.recorded import Recorded
        from lit_agentrl.evaluate.viewer.serving import LOOPBACK, ViewerServer

        try:
            server = ViewerServer(args.port, Recorded(folder), lambda: describe_run(folder))
        except OSError as error:
            raise UserError(
                f"--port {args.port}: cannot listen on {LOOPBACK} ({error.strerror or error}); choose another, or "
                "--port 0 for a free one"
            ) from error

        def interrupt(signum: int, frame: FrameType | None) -> None:
            raise KeyboardInterrupt

        signal.signal(signal.SIGTERM, interrupt)
        print(
            f"{escape_unprintable(str(folder))} is shown at {server.url} until you interrupt this command",
            flush=True,
        )
        with server:
            server.serve_forever()


def require_run(folder: Path) -> None:
    """Refuse a folder that is not the folder of a run.

    Raises:
        UserError: the folder does not exist, or holds neither a config nor transcripts.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give the folder of a run, such as outputs/DATE/TIME")
    if not (folder / ".hydra" / "config.yaml").is_file() and not (folder / "transcripts").is_dir():
        raise UserError(
            f"{folder} holds no run: neither .hydra/config.yaml nor transcripts/; give the folder of one run, such as "
            "outputs/DATE/TIME"
        )


def describe_run(folder: Path) -> dict[str, Any]:
    """Return the name and the status of a run, and whether a process writes it.

    The status is empty if ``summary.json`` has none.
    """
    from lit_agentrl.runs.run_folder import find_owner

    try:
        status = json.loads((folder / "summary.json").read_bytes())["status"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        status = ""
    return {
        "name": escape_unprintable(str(folder)),
        "is_running": find_owner(folder) is not None,
        "status": escape_unprintable(str(status)),
    }
