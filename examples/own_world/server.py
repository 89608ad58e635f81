"""The same game without lit_agentrl: what any Python, or any other language, can serve.  python server.py 8200."""

import itertools
import json
import sys
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LENGTH, NAMES = 12, ["Left", "Right"]
STARTS = list(itertools.permutations(range(LENGTH), 2))  # places of the player and the door
episodes: dict[str, dict[str, Any]] = {}


def see(player: int, door: int) -> str:
    """What the policy reads."""
    return " ".join("P" if i == player else "D" if i == door else "_" for i in range(LENGTH))


def answer(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request."""
    if path == "/health":
        return {"protocol": 1, "game": {"max_solution": LENGTH - 1, "identity": "corridor of 12"}}
    if path == "/reset":  # every third start is for val, every third for test: no start is in two splits
        number = 3 * (body["seed"] % (len(STARTS) // 3)) + ["train", "val", "test"].index(body["split"])
        (player, door), session = STARTS[number], uuid.uuid4().hex
        episodes[session] = {"player": player, "door": door, "number": 0}
        now = {"names": NAMES, "rules": "Go to the door D. You are P.\nRewards: 1 at the door."}
        info = {"instance_id": str(number)}
        return {"session": session, "observation": see(player, door), "info": info, "now": now}
    if path == "/close":
        episodes.pop(body["session"], None)
        return {}
    if path != "/step" or body["session"] not in episodes:
        return {"error": "this episode is not known", "session": "unknown"}
    episode, is_known = episodes[body["session"]], body["action"].capitalize() in NAMES
    if body["number"] != episode["number"]:  # else the answer was lost, and is given again
        step = {"Left": -1, "Right": 1}.get(body["action"].capitalize(), 0)
        episode |= {"number": body["number"], "player": min(max(episode["player"] + step, 0), LENGTH - 1)}
    found = episode["player"] == episode["door"]
    info = {"success": found, "action_is_valid": is_known}
    shown = see(episode["player"], episode["door"])
    return {"observation": shown, "reward": float(found), "terminated": found, "info": info}


class Handler(BaseHTTPRequestHandler):
    """JSON in, JSON out."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}"
        found = answer(self.path, json.loads(body))
        text = json.dumps(found).encode()
        self.send_response(404 if "error" in found else 200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST

    def log_message(self, format: str, *args: Any) -> None: ...  # a line for every request


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()
