"""The chat endpoint of programs; the only file that imports starlette and uvicorn."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Mapping
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from lit_agentrl.experimental.gateway.exchange import Exchange, Over, Pending
from lit_agentrl.experimental.gateway.messages import BadRequest, read_request
from lit_agentrl.experimental.gateway.rewards import read_posted

_log = logging.getLogger(__name__)
_MODEL = "policy"
_MOST_REASON = 300  # characters
_UNKNOWN = "the key belongs to no running episode: use OPENAI_API_KEY, and only until the episode ends"
_PATHS = "POST /v1/chat/completions, POST /v1/rewards and GET /v1/models are"
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
_REWARD_BYTES = 4096  # largest size of a request with a reward
_RETRIES = "x-stainless-retry-count"  # header of the openai SDK, which sends no idempotency key by itself
_DISCARDED = 16  # how many times its limit a request may have before its connection is closed unread


class Gateway:
    """An HTTP server in its own thread, shared by all episodes.

    Each episode has a token, which is the key that its program sends.

    Args:
        host: Address of this machine at which the server listens, and at which programs call it.

    Raises:
        ValueError: The address is not one of this machine, or stands for all of its addresses.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._exchanges: dict[str, tuple[Exchange, int]] = {}  # by token, with the largest request in bytes
        self._warned: set[str] = set()
        listener = _listen(host)
        self.url = f"http://{host}:{listener.getsockname()[1]}/v1"
        app = Starlette(
            routes=[
                Route("/v1/chat/completions", self.complete, methods=["POST"]),
                Route("/v1/rewards", self.reward, methods=["POST"]),
                Route("/v1/models", self.list_models, methods=["GET"]),
                Route("/{path:path}", self.refuse_path, methods=_METHODS),
            ]
        )
        # h11 bounds the size of a header
        config = uvicorn.Config(
            app, http="h11", ws="none", log_config=None, log_level="error", access_log=False, lifespan="off"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listener]}, daemon=True, name="gateway"
        )
        self._thread.start()

    def open(self, exchange: Exchange, *, max_bytes: int) -> str:
        """Register a new episode, and return its token."""
        token = secrets.token_hex(16)  # random, but no result depends on it
        self._exchanges[token] = (exchange, max_bytes)
        return token

    def close(self, token: str) -> None:
        """Forget an episode; its token is refused from now on."""
        exchange, _ = self._exchanges.pop(token)
        exchange.close()

    async def list_models(self, request: Request) -> Response:
        if self._find_exchange(request)[0] is None:
            return self._refuse(401, _UNKNOWN)
        return JSONResponse(
            {"object": "list", "data": [{"id": _MODEL, "object": "model", "owned_by": "run"}]}
        )

    async def complete(self, request: Request) -> Response:
        exchange, max_bytes = self._find_exchange(request)
        if exchange is None:
            return self._refuse(401, _UNKNOWN)
        try:
            body = await _read_body(request, max_bytes)
            wanted = read_request(body)
            loop, future = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

            def set_answer(status: int, answer: Mapping[str, Any]) -> None:
                if not future.done():
                    future.set_result((status, answer))

            def settle(status: int, answer: Mapping[str, Any]) -> None:
                loop.call_soon_threadsafe(set_answer, status, answer)

            pending = Pending(wanted, settle)
            exchange.post(pending)
        except (_TooLarge, BadRequest, Over) as error:
            return self._refuse_error(error, max_bytes)
        gone = asyncio.ensure_future(_wait_until_gone(request))
        await asyncio.wait({future, gone}, return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            exchange.drop(pending)
            return Response(status_code=499)
        gone.cancel()
        exchange.record_delivery()
        status, answer = future.result()
        if status != 200:
            return JSONResponse(dict(answer), status)
        if body.get("stream"):
            usage = bool((body.get("stream_options") or {}).get("include_usage"))
            return StreamingResponse(_stream(answer, with_usage=usage), media_type="text/event-stream")
        return JSONResponse(_write_completion(answer, body))

    async def reward(self, request: Request) -> Response:
        exchange, _ = self._find_exchange(request)
        if exchange is None:
            return self._refuse(401, _UNKNOWN)
        try:
            key, is_retry = request.headers.get("idempotency-key"), request.headers.get(_RETRIES, "0") != "0"
            posted = read_posted(await _read_body(request, _REWARD_BYTES), key, is_retry=is_retry)
            completion, total = exchange.add_reward(posted)
        except _TooLarge:
            return self._refuse(413, f"a reward may have at most {_REWARD_BYTES} bytes")
        except (BadRequest, Over) as error:
            return self._refuse_error(error, _REWARD_BYTES)
        return JSONResponse({"completion_id": completion, "reward": total})

    async def refuse_path(self, request: Request) -> Response:
        """Refuse a path that is not served, and name those that are."""
        if self._find_exchange(request)[0] is None:
            return self._refuse(401, _UNKNOWN)
        return self._refuse(404, f"{request.method} {request.url.path} is not served here, but {_PATHS}")

    def _find_exchange(self, request: Request) -> tuple[Exchange | None, int]:
        """Return the exchange of a request and its size limit in bytes.

        The exchange is None if the token belongs to no running episode.
        """
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        return self._exchanges.get(token, (None, 0))

    def _refuse_error(self, error: Exception, max_bytes: int) -> Response:
        if isinstance(error, _TooLarge):
            return self._refuse(413, f"a request may have at most {max_bytes} bytes (env.game.max_mb)")
        if isinstance(error, Over):
            return self._refuse(410, "the episode has ended")
        return self._refuse(400, str(error))

    def _refuse(self, status: int, reason: str) -> Response:
        # the reason may repeat the request, so shorten and escape it
        reason = " ".join(reason.split())[:_MOST_REASON].encode(errors="backslashreplace").decode()
        if reason not in self._warned and len(self._warned) < 20:
            self._warned.add(reason)
            _log.warning("a request of a program is refused with status %d: %s", status, reason)
        return JSONResponse(
            {"error": {"message": reason, "type": "invalid_request_error", "code": status}}, status
        )


def _listen(host: str) -> socket.socket:
    """Open a listening socket, since a program may call before the server's thread runs.

    Raises:
        ValueError: See `Gateway`.
    """
    # asyncio sets TCP_NODELAY only where the protocol is named; else each call of a reused connection waits 40 ms
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if host in ("", "0.0.0.0"):
            raise OSError("a program needs one address to call")
        listener.bind((host, 0))
    except OSError as error:
        listener.close()
        raise ValueError(
            f"env.game.host={host} must be an address of this machine under which the agent reaches it ({error})"
        ) from None
    listener.listen(2048)
    return listener


class _TooLarge(Exception):
    pass


async def _read_body(request: Request, max_bytes: int) -> Any:
    """Return the JSON body of a request.

    A body that is too large is read and discarded, so that the program receives the refusal.
    """
    data, size = bytearray(), 0
    try:
        async for part in request.stream():
            size += len(part)
            if size <= max_bytes:
                data += part
            elif size > _DISCARDED * max_bytes:
                break
        if size > max_bytes:
            raise _TooLarge
        return json.loads(data)
    except ClientDisconnect:
        raise BadRequest("the request broke off") from None
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON ({error})") from None


async def _wait_until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _write_completion(answer: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": 0, "message": answer["message"], "finish_reason": answer["finish_reason"], "logprobs": None,
    }  # fmt: skip
    written: dict[str, Any] = {
        "id": answer["id"], "object": "chat.completion", "created": 0, "model": _MODEL, "choices": [choice],
        "usage": _write_usage(answer),
    }  # fmt: skip
    if body.get("logprobs"):
        tokens = zip(answer["token_ids"], answer["logprobs"], strict=True)
        choice["logprobs"] = {
            "content": [
                {"token": f"token_id:{token}", "logprob": logp, "bytes": None, "top_logprobs": []}
                for token, logp in tokens
            ]
        }
    if body.get("return_token_ids"):
        written["prompt_token_ids"], choice["token_ids"] = answer["prompt_token_ids"], answer["token_ids"]
    return written


def _write_usage(answer: Mapping[str, Any]) -> dict[str, int]:
    usage = dict(answer["usage"])
    return {**usage, "total_tokens": usage["prompt_tokens"] + usage["completion_tokens"]}


async def _stream(answer: Mapping[str, Any], *, with_usage: bool) -> AsyncIterator[str]:
    """Yield the events of a reply, which is complete before the first of them."""
    message = dict(answer["message"])
    calls = [{"index": number, **call} for number, call in enumerate(message.pop("tool_calls", []))]
    deltas = [message, *({"tool_calls": [call]} for call in calls)]
    choices: list[list[dict[str, Any]]] = [[dict(index=0, delta=each, finish_reason=None)] for each in deltas]
    choices.append([dict(index=0, delta={}, finish_reason=answer["finish_reason"])])
    if with_usage:
        choices.append([])
    for each in choices:
        chunk = {
            "id": answer["id"], "object": "chat.completion.chunk", "created": 0, "model": _MODEL, "choices": each,
            **({"usage": _write_usage(answer)} if not each else {}),
        }  # fmt: skip
        yield f"data: {json.dumps(chunk)}\n\n"
    yield "data: [DONE]\n\n"


_lock = threading.Lock()
_shared: dict[str, Gateway] = {}  # by address


def open_gateway(host: str = "127.0.0.1") -> Gateway:
    """Return the server of this process at an address; start it if there is none."""
    with _lock:
        if host not in _shared:
            _shared[host] = Gateway(host)
        return _shared[host]
