"""Serve a game over HTTP to runs of other processes and machines."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING

from lit_agentrl.checks import name_errors, require, require_number, require_whole
from lit_agentrl.cli._running import build_parser, run_command
from lit_agentrl.config.composition import format_search_path
from lit_agentrl.config.errors import UserError

if TYPE_CHECKING:
    from lit_agentrl.envs.base import Task
    from lit_agentrl.envs.hosted.serving import GameServer

_MAX_SESSIONS = 65_536
EXAMPLES = """
Prints the options with which a run plays the game; an interrupt ends the server.

  {0} env=sokoban
  {0} env=sokoban env.game.size=7 --port 0
  {0} --config-dir FOLDER env=NAME --sessions 16
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``lit-agentrl serve-env``."""
    with run_command(argv) as arguments:
        parser = build_parser("serve-env", __doc__, EXAMPLES)
        parser.add_argument("overrides", nargs="*", metavar="env=NAME env.game.KEY=VALUE", help="the game")
        parser.add_argument("--config-dir", action="append", default=[], help="folder with env/NAME.yaml")
        parser.add_argument(
            "--host",
            default="127.0.0.1",
            help="address to listen on; with any but 127.0.0.1, other machines can play",
        )
        parser.add_argument("--port", type=int, default=8100, help="0: any free one")
        parser.add_argument("--sessions", type=int, default=256, help="episodes at a time")
        parser.add_argument(
            "--idle",
            type=float,
            default=600.0,
            help="seconds after which a session that nobody plays is ended",
        )
        parser.add_argument("--max-mb", type=float, default=1.0, help="largest request")
        args = parser.parse_intermixed_args(arguments)
        require_whole("--port", args.port, 0, 65_535)
        require_whole("--sessions", args.sessions, 1, _MAX_SESSIONS)
        for name, value in (("--idle", args.idle), ("--max-mb", args.max_mb)):
            require_number(name, value, "a number > 0", lambda number: number > 0)
        task = build_game(args.overrides, format_search_path(args.config_dir))
        from lit_agentrl.envs.hosted.serving import GameServer
        from lit_agentrl.envs.hosted.sessions import Sessions

        with name_errors("env"):
            sessions = Sessions(task, most=args.sessions, idle_s=args.idle)
        try:
            server = GameServer(
                (args.host, args.port), sessions, max_bytes=int(args.max_mb * 2**20), idle_s=args.idle,
                connections=2 * args.sessions + 16,
            )  # fmt: skip
        except OSError as error:
            reason = error.strerror or error
            raise UserError(
                f"--host {args.host} --port {args.port}: cannot listen there ({reason}); give another"
            ) from error
        serve_until_interrupted(server, task)


def build_game(overrides: Sequence[str], search_overrides: Sequence[str]) -> Task:
    """Build the game to serve.

    Raises:
        UserError: no game is named, or an option belongs to the run that plays the game.
    """
    require(bool(overrides), "env", None, "the name of a game: lit-agentrl serve-env env=sokoban")
    for override in overrides:
        key = override.partition("=")[0].lstrip("+~")
        if key not in ("env", "env.name") and not key.startswith("env.game"):
            raise UserError(
                f"{override} belongs to the run that plays the game, with env=remote; serve-env takes env, env.name "
                "and env.game"
            )
    from lit_agentrl.build.games import build_game

    return build_game(overrides, search_overrides)


def serve_until_interrupted(server: GameServer, task: Task) -> None:
    """Print the options of a run that plays the game, and serve until interrupted."""

    def end(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    host, port = server.server_address[:2]
    limits = [
        f"env.{key}={getattr(task, key)}" for key in ("max_turns", "max_actions_per_turn", "max_actions")
    ]
    print(f"serving {task.name} at http://{host!s}:{port}; play it with", flush=True)
    print(
        f"lit-agentrl train env=remote env.name={task.name} env.game.url=http://{host!s}:{port} {' '.join(limits)}",
        flush=True,
    )
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        sessions = server.sessions
        print(
            f"ended; {sessions.episodes} episodes were started, {sessions.expired} of them were abandoned",
            file=sys.stderr,
        )
    finally:
        server.server_close()
        server.sessions.close()
