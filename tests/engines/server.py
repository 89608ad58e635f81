"""A server with an API like OpenAI's on this machine, which fails where it is told to."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from lit_agentrl.engines.base import SamplingParams, TurnRequest
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.models.logprobs import score_tokens
from lit_agentrl.models.policy import copy_weights
from tests.engines.test_native import Never

Reply = tuple[int, dict[str, str], bytes]
SLOW_S = 1.2  # half of it is far more than a healthy answer takes on a loaded machine


class Model:
    """Answers as `vllm serve` does, by the native engine; ``/load`` reads weights from a folder."""

    def __init__(self, network: PreTrainedModel, end_of_turn_ids: tuple[int, ...] = ()) -> None:
        self.network = AutoModelForCausalLM.from_config(network.config).eval()
        copy_weights(dict(network.named_parameters()), self.network)
        self._end = end_of_turn_ids
        self._lock = threading.Lock()

    def __call__(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        with self._lock, torch.no_grad():
            if path == "/load":
                copy_weights(load_file(f"{body['folder']}/model.safetensors"), self.network)
                return {}
            prompt = body["prompt"]
            if body.get("echo"):
                row = torch.tensor([prompt])
                is_scored = torch.ones_like(row, dtype=torch.bool)
                is_scored[:, 0] = False
                logps = score_tokens(self.network, tokens_BT=row, is_action_BT=is_scored).logp_BT[0].tolist()
                return answer_of(prompt, [0], [None, *logps[1:], -1.0], "length")
            engine = NativeEngine(self.network, stop=Never(), end_of_turn_ids=self._end, num_slots=1)
            room = SamplingParams(body["temperature"], body["top_p"], max_reply_tokens=body["max_tokens"])
            engine.submit(TurnRequest(0, prompt, body["seed"], room))
            [result] = engine.poll()
            finish = "stop" if result.tokens[-1] in self._end else "length"
            return answer_of(prompt, result.tokens, result.logps, finish)


class SGLang(Model):
    """Answers as the code of SGLang 0.5.23 does: ``logprobs=0`` scores no prompt, and seeds are not taken."""

    def __call__(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path == "/update_weights_from_disk":
            super().__call__("/load", {"folder": body["model_path"]})
            return {
                "success": True,
                "message": "Succeeded to update model weights.",
                "num_paused_requests": 0,
            }
        if body.get("echo") and not body["logprobs"]:
            return {"choices": [{"logprobs": {"token_logprobs": [-1.0]}, "finish_reason": "length"}]}
        found = super().__call__(path, {**body, "seed": 42})
        if not body.get("return_token_ids"):
            del found["choices"][0]["token_ids"], found["choices"][0]["prompt_token_ids"]
        return found


def answer_of(
    prompt: list[int], tokens: list[int], logps: Sequence[float | None], finish: str = "stop"
) -> dict[str, Any]:
    choice = {
        "token_ids": tokens, "prompt_token_ids": prompt, "logprobs": {"token_logprobs": logps}, "finish_reason": finish,
    }  # fmt: skip
    return {"choices": [choice], "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(tokens)}}


def chat_of(text: str | None, *, finish_reason: str = "stop", **message: Any) -> dict[str, Any]:
    choice = {"message": {"role": "assistant", "content": text, **message}, "finish_reason": finish_reason}
    return {"choices": [choice], "usage": {"prompt_tokens": 10, "completion_tokens": 4}}


class Faults:
    """What goes wrong with each request, by its number; counted as it happens."""

    def __init__(self, plan: dict[int, str]) -> None:
        self.plan, self.happened = plan, Counter[str]()
        self._count, self._lock = 0, threading.Lock()

    def next(self) -> str:
        with self._lock:
            kind = self.plan.get(self._count, "")
            self._count += 1
            if kind:
                self.happened[kind] += 1
            return kind


@contextmanager
def serving(
    answer: Callable[[str, dict[str, Any]], dict[str, Any]], faults: Faults | None = None, said: list[Any] | None = None
) -> Iterator[str]:  # fmt: skip
    """The address of a server that answers so; what it was asked is put into ``said``."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            if said is not None:
                said.append((self.path, json.loads(raw), dict(self.headers)))
            kind = faults.next() if faults else ""
            if kind == "drop":
                self.close_connection = True
                return
            status, more, out = self._made(kind, json.loads(raw))
            try:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(out)), **more}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(out)
            except OSError:  # who asked has given up
                pass

        def _made(self, kind: str, body: dict[str, Any]) -> Reply:
            if kind == "timeout":
                time.sleep(SLOW_S)
                return 200, {}, b"{}"
            if kind.isdigit():
                return (
                    int(kind),
                    {"Retry-After": "0"} if kind == "429" else {},
                    b"no: " + self.headers.get("Authorization", "").encode(),
                )
            if kind.startswith("307"):
                return 307, {"Location": kind.removeprefix("307 ") + self.path}, b""
            found = answer(self.path, body)
            if kind == "other_prompt":
                found["choices"][0]["prompt_token_ids"] = [1]
            if kind == "unknown_ids":
                found["choices"][0]["token_ids"] = [10**9] * len(found["choices"][0]["token_ids"])
            if kind == "no_logps":
                found["choices"][0]["logprobs"]["token_logprobs"] = [None]
            out = json.dumps(found).encode()
            return 200, {}, out[: len(out) // 2] if kind == "truncated" else out

    class Quiet(ThreadingHTTPServer):
        request_queue_size = 64

        def handle_error(self, *_: Any) -> None:
            pass

    server = Quiet(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
