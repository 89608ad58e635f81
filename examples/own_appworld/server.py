"""Tasks of AppWorld for ``env=remote``, from AppWorld's own environment: python server.py [options] PORT.

AppWorld keeps one task per process (its clock and its databases are global), so each episode that is played at a
time has a process.  All that passes between the processes is JSON.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import shutil
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import Any

DATASETS = {"train": "train", "val": "dev"}  # of AppWorld, by split; test: an option
RULES = """You carry out a task for a person, who cannot be asked. Each reply is Python code. All of it runs in one
session, so what you have defined stays. You read what it prints.
apis.APP.NAME(...) calls an interface of an app. print(apis.api_docs.show_api_descriptions(app_name="APP")) lists
those of an app, and print(apis.api_docs.show_api_doc(app_name="APP", api_name="NAME")) explains one.
When all is done, call apis.supervisor.complete_task(), with answer=... if the task asks for something.
Rewards: 1 if all that was asked for is done, and nothing else."""
FENCED = re.compile(r"```[a-z]*\n(.*?)```", re.DOTALL)


class Failed(Exception):
    """A request that cannot be carried out; arguments: status of HTTP, reason."""


def carry_out(pipe: Connection, name: str, seconds: int, most: int, partial: bool) -> None:
    """Play one task after the other, in a process of its own."""
    from appworld import AppWorld

    world: Any = None
    while True:
        try:
            asked = json.loads(pipe.recv_bytes())
        except EOFError:  # the server has ended
            return
        try:
            if "task" in asked:
                leave(world)
                world = None
                world = AppWorld(asked["task"], experiment_name=name, timeout_seconds=seconds)
                answer = opening(world.task)
            else:
                found = FENCED.search(asked["code"])
                shown = world.execute(found.group(1) if found else asked["code"])
                answer = {"observation": cut(shown, most), "done": bool(world.task_completed())}
                if answer["done"]:
                    tests = world.evaluate()
                    share = tests.pass_count / max(tests.num_tests, 1)
                    answer |= {
                        "success": bool(tests.success),
                        "share": share if partial else float(tests.success),
                    }
        except Exception as error:  # of AppWorld itself; what the code of a policy raises is an observation
            answer = {"error": f"{type(error).__name__}: {error}"}
        pipe.send_bytes(json.dumps(answer).encode())


def opening(task: Any) -> dict[str, Any]:
    """What the policy is told at first."""
    person, apps = task.supervisor, task.app_descriptions.items()
    who = f"{person['first_name']} {person['last_name']} ({person['email']}, {person['phone_number']})"
    return {
        "observation": f"{task.instruction}\nThe person: {who}. It is {task.datetime}.",
        "rules": "\n".join([RULES, "Apps:", *(f"{name}: {about}" for name, about in apps)]),
    }


def cut(text: str, most: int) -> str:
    """Its beginning and its end, where it is longer than that."""
    left = f"\n[{len(text) - most} characters are left out]\n"
    return text if len(text) <= most else text[: most // 2] + left + text[len(text) - (most + 1) // 2 :]


def leave(world: Any) -> None:
    """Close a task, and take away what it has written."""
    if world is not None:
        world.close()
        shutil.rmtree(world.output_directory, ignore_errors=True)


class Player:
    """A process that plays one episode at a time; it is killed where it hangs, and begun anew."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.process, self.lock = options, None, threading.Lock()
        self.session, self.used = "", 0.0
        self.number, self.last = 0, dict[str, Any]()  # of the last step, and what was answered

    def ask(self, message: dict[str, Any], *, patience: float) -> dict[str, Any]:
        """The answer of the process; it fails where the process hangs, ends, or says that it failed."""
        if self.process is None or not self.process.is_alive():
            self.start()
        try:
            self.pipe.send_bytes(json.dumps(message).encode())
            is_there = self.pipe.poll(self.options.seconds + patience)
            answer = json.loads(self.pipe.recv_bytes()) if is_there else {"error": "it hangs"}
        except (EOFError, OSError):
            is_there, answer = False, {"error": "its process has ended"}
        if not is_there:
            self.stop()
        if "error" in answer:
            raise Failed(500, f"AppWorld: {answer['error']}")
        return answer

    def start(self) -> None:
        self.stop()
        own = multiprocessing.get_context("spawn")
        self.pipe, theirs = own.Pipe()
        self.name = f"lit_agentrl_{os.getpid()}_{uuid.uuid4().hex[:8]}"  # a folder of AppWorld's, for itself
        arguments = (theirs, self.name, self.options.seconds, self.options.chars, self.options.partial)
        self.process = own.Process(target=carry_out, args=arguments, daemon=True)
        self.process.start()
        theirs.close()

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.pipe.close()
            root = os.environ.get("APPWORLD_ROOT", ".")
            shutil.rmtree(os.path.join(root, "experiments", "outputs", self.name), ignore_errors=True)
            self.process = None


class Tasks:
    """What is asked for, and the players that carry it out."""

    def __init__(self, options: argparse.Namespace) -> None:
        from appworld import load_task_ids

        self.options, self.guard = options, threading.Lock()
        self.ids = {split: load_task_ids(name) for split, name in {**DATASETS, "test": options.test}.items()}
        self.players = [Player(options) for _ in range(options.processes)]

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request."""
        if path == "/health":
            identity = f"AppWorld, {self.options.test}" + ", partial" * self.options.partial
            return {"protocol": 1, "game": {"identity": identity}}
        if path == "/reset":
            return self.reset(body["split"], body["seed"])
        with self.guard:
            player = next((p for p in self.players if p.session and p.session == body.get("session")), None)
        if path == "/close":
            if player is not None:
                player.session = ""
            return {}
        if path != "/step" or player is None:
            raise Failed(404, "this episode is not known")
        with player.lock:
            if player.session != body["session"]:  # another episode has the process now
                raise Failed(404, "this episode is not known any more")
            return self.step(player, body["number"], body["action"])

    def reset(self, split: str, seed: int) -> dict[str, Any]:
        task = self.ids[split][seed % len(self.ids[split])]
        with self.guard:  # the one that has been free for longest, else one that nobody has asked for long
            player = min(self.players, key=lambda each: (bool(each.session), each.used))
            is_held = player.session and time.monotonic() - player.used < self.options.idle
            if is_held or player.lock.locked():
                raise Failed(
                    503, f"all {len(self.players)} processes play; start the server with more --processes"
                )
            player.session, player.used = uuid.uuid4().hex, time.monotonic()
            session = player.session
        with player.lock:
            try:
                begun = player.ask({"task": task}, patience=180)  # the first one loads all of AppWorld
            except Failed:
                player.session = ""
                raise
            player.number = 0
        now = {"format": "text", "rules": begun["rules"]}
        info = {"instance_id": f"AppWorld {task}"}
        return {"session": session, "observation": begun["observation"], "info": info, "now": now}

    def step(self, player: Player, number: int, code: str) -> dict[str, Any]:
        player.used = time.monotonic()
        if number != player.number:  # else the answer was lost, and is given again
            try:
                done = player.ask({"code": code}, patience=self.options.grace)
            except Failed:
                player.session = ""
                raise
            is_over = done["done"]
            info = {"success": done["success"]} if is_over else {}
            reward = done["share"] if is_over else 0.0
            player.last = {
                "observation": done["observation"],
                "reward": reward,
                "terminated": is_over,
                "info": info,
            }
            player.number = number
        return player.last


class Handler(BaseHTTPRequestHandler):
    """JSON in, JSON out."""

    tasks: Tasks
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}"
        try:
            status, found = 200, self.tasks.answer(self.path, json.loads(body))
        except Failed as error:
            status, reason = error.args
            found = {"error": reason} | ({"session": "unknown"} if status == 404 else {})
        text = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST

    def log_message(self, format: str, *args: Any) -> None: ...  # a line for every request


def main() -> None:
    """Serve until it is ended."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("port", type=int)
    parser.add_argument("--processes", type=int, default=8, help="episodes at a time")
    parser.add_argument(
        "--test", default="test_normal", help="the tasks of the split test: or test_challenge"
    )
    parser.add_argument("--seconds", type=int, default=20, help="that the code of one reply may take")
    parser.add_argument("--grace", type=float, default=30, help="more, after which its process is killed")
    parser.add_argument("--chars", type=int, default=4000, help="of what a reply prints that are shown")
    parser.add_argument(
        "--idle", type=float, default=120, help="seconds after which an episode may lose its process"
    )
    parser.add_argument("--partial", action="store_true", help="pay the share of the tests that pass")
    options = parser.parse_args()
    Handler.tasks = Tasks(options)
    server = ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    try:
        server.serve_forever()
    finally:
        for player in Handler.tasks.players:
            player.stop()


if __name__ == "__main__":
    main()
