"""The wire of an OpenEnv server over games of one's own, without the library; it can hang, lie and end."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.sync.server import Server, ServerConnection, serve

METADATA = {"type": "object", "additionalProperties": True}
MOVE = {
    "type": "object", "description": "One step.", "required": ["move"], "additionalProperties": False,
    "properties": {"metadata": METADATA, "move": {"enum": ["Left", "Right"], "type": "string"}},
}  # fmt: skip
SAY = {
    "type": "object",
    "properties": {"message": {"type": "string"}, "metadata": METADATA},
    "required": ["message"],
}
PAY = {
    "type": "object", "description": "Pays.", "required": ["to", "amount"],
    "properties": {"to": {"type": "string"}, "amount": {"type": "integer", "minimum": 1}, "metadata": METADATA},
}  # fmt: skip
CALL = {
    "type": "object", "required": ["tool_name"],
    "properties": {
        "type": {"const": "call_tool", "default": "call_tool", "type": "string"}, "tool_name": {"type": "string"},
        "arguments": {"type": "object", "additionalProperties": True}, "metadata": METADATA,
    },
}  # fmt: skip
SCHEMAS = {"": MOVE, "say": SAY, "pay": PAY, "call": CALL}
TOOL = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@dataclass
class Raw:
    """What a server does: a corridor by default, or what ``what`` says."""

    what: str = ""
    most: int = 64
    resets: int = 0
    sessions: set[ServerConnection] = field(default_factory=set)

    def get(self, connection: ServerConnection, request: Request) -> Response | None:
        told = {
            "/metadata": {"name": "corridor", "description": "Go to the door.", "version": "1"},
            "/schema": {"action": SCHEMAS.get(self.what, MOVE), "observation": {}, "state": {}},
        }
        if request.path == "/ws":
            return None
        found = json.dumps(told.get(request.path, {})).encode()
        headers = Headers({"Content-Length": str(len(found)), "Connection": "close"})
        return Response(200 if request.path in told else 404, "", headers, found)

    def play(self, connection: ServerConnection) -> None:
        self.sessions.add(connection)
        player, door, count = 0, 0, 0
        try:
            if len(self.sessions) > self.most:
                return say(connection, "error", {"message": "all are used", "code": "CAPACITY_REACHED"})
            for text in connection:
                message = json.loads(text)
                kind, data = message["type"], message.get("data", {})
                if kind == "state":
                    hidden = {"player": player, "door": door}
                    say(connection, "state", {"episode_id": "x", "step_count": count, **hidden})
                    continue
                if kind == "reset":
                    self.resets += 1
                    chosen = random.Random(self.resets if self.what == "unseeded" else data["seed"])
                    (player, door), count = chosen.sample(range(12), 2), 0
                    if self.what == "same":
                        player, door = 3, 7
                else:
                    count += 1
                    if self.what == "hang":
                        time.sleep(8)
                    if self.what == "lie" and count == 2:
                        connection.send('{"type": "observation", "data": [1]}')
                        continue
                    if data.get("message") == "bad":
                        say(connection, "error", {"message": "no\nsuch word", "code": "EXECUTION_ERROR"})
                        continue
                    if self.what in ("", "same", "unseeded", "hang", "lie"):
                        player = min(max(player + (1 if data["move"] == "Right" else -1), 0), 11)
                self.show(connection, data, player, door, count)
        finally:
            self.sessions.discard(connection)

    def show(
        self, connection: ServerConnection, data: dict[str, Any], player: int, door: int, count: int
    ) -> None:
        done = player == door
        shown: dict[str, Any] = {"corridor": f"{player} {door}", "metadata": {}}
        if self.what in ("say", "pay"):
            shown = {"echoed": data.get("message", data.get("to", f"go {door}")), "length": count}
            done = count == 3
        if self.what == "call" and data.get("type") == "list_tools":
            shown = {"tools": [{"name": "add", "description": "Adds.", "input_schema": TOOL}]}
        elif self.what == "call" and count:
            result = {
                "content": [{"type": "text", "text": str(data["arguments"]["a"] + door)}],
                "is_error": False,
            }
            shown, done = {"tool_name": data["tool_name"], "result": result, "error": None}, count == 3
        reward = {"bool": True, "nan": float("nan")}.get(self.what, float(done))
        say(connection, "observation", {"observation": shown, "reward": reward, "done": done})


def say(connection: ServerConnection, kind: str, data: dict[str, Any]) -> None:
    connection.send(json.dumps({"type": kind, "data": data}))


@contextmanager
def serving(what: str = "", *, port: int = 0, most: int = 64) -> Iterator[str]:
    """The address of such a server; as if it were killed at the end."""
    raw = Raw(what, most)
    server: Server = serve(raw.play, "127.0.0.1", port, process_request=raw.get, close_timeout=0.1)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
    finally:
        server.shutdown()
        for session in list(raw.sessions):
            session.socket.close()
