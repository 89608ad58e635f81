"""A synchronous session with an MCP server, in bounded time."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from lit_agentrl.actions import ToolCall
from lit_agentrl.checks import escape_unprintable
from lit_agentrl.envs.adapters.base import make_missing_error

_log = logging.getLogger(__name__)
_MOST_TOOLS = 256
_CLOSED, _LATE, _BAD = -32000, -32001, -32602  # error codes of the protocol; the last: invalid parameters


class Gone(Exception):
    """The server has ended, or closed the connection."""


class Session:
    """Client of a server; each `open` starts a session, and a command a new process.

    Args:
        server: program and arguments, or an address.
        timeout_s: seconds for one call, and for the start.
        max_chars: characters of a server's text that are kept.

    Attributes:
        instructions: the server's description of itself.
        tools: the tools that it offers, as objects of the library.

    Raises:
        ValueError: the library is missing.
    """

    def __init__(self, server: str | Sequence[str], *, timeout_s: float, max_chars: int) -> None:
        self._server = server if isinstance(server, str) else list(server)
        self._timeout_s, self._max_chars = timeout_s, max_chars
        self._stack = ExitStack()
        self._portal: Any = None
        self._client: Any = None
        self.instructions, self.tools = "", []  # type: str, list[Any]
        try:
            import mcp  # noqa: F401
        except ImportError as error:
            raise make_missing_error("mcp", "mcp", error) from error

    def open(self) -> None:
        """Start a session.

        Raises:
            TimeoutError: the server hangs.
            ValueError: it cannot be started, or its answer cannot be used.
        """
        from anyio.from_thread import start_blocking_portal
        from mcp import Client, StdioServerParameters, stdio_client

        self.close()
        for name in ("mcp", "client"):  # they log a line per invalid message
            logging.getLogger(name).setLevel(logging.CRITICAL)
        server: Any = self._server
        try:
            if not isinstance(server, str):
                quiet = self._stack.enter_context(open(os.devnull, "w"))  # noqa: SIM115
                server = stdio_client(StdioServerParameters(command=server[0], args=server[1:]), errlog=quiet)
            self._portal = self._stack.enter_context(start_blocking_portal())
            # over HTTP the newest protocol has no sessions, so that an episode would see what others left behind
            mode = "legacy" if isinstance(server, str) else "auto"
            client = Client(server, read_timeout_seconds=self._timeout_s, cache=None, mode=mode)
            self._client = self._stack.enter_context(self._portal.wrap_async_context_manager(client))
            self.tools = self._list_tools()
            self.instructions = self.cut(str(self._client.instructions or ""))
        except Exception as error:
            failed = self._convert_error(error)
            self.close()
            raise failed from error

    def close(self) -> None:
        """End the session, and the process of the server."""
        stack, self._stack, self._client = self._stack, ExitStack(), None
        try:
            stack.close()
        except (Exception, BaseExceptionGroup) as error:  # the server may already have ended
            _log.debug("the session with %s ended with %r", self._server, error)

    def call(self, call: ToolCall) -> tuple[str, bool]:
        """Make a call; return its result, and whether the server accepted it.

        Raises:
            Gone: the server has ended.
            TimeoutError: it hangs; the session is closed.
            ValueError: its answer cannot be used; the session is closed.
        """
        from mcp import MCPError
        from mcp.types import CallToolRequest, CallToolRequestParams, CallToolResult

        if self._client is None:
            raise Gone
        params = CallToolRequestParams(name=call.name, arguments=dict(call.arguments))
        # not client.call_tool, which would apply the server's own schema of results without a bound
        send = partial(self._client.session.send_request, CallToolRequest(params=params), CallToolResult)
        try:
            result = self._ask(send)
        except MCPError as error:
            return self.cut(f"error: {error}"), error.code != _BAD
        text = "\n".join(
            str(item.text) if item.type == "text" else f"[{item.type}]" for item in result.content
        )
        if not result.content and result.structured_content is not None:
            text = str(result.structured_content)
        return self.cut(f"error: {text}" if result.is_error else text), True

    def cut(self, text: str) -> str:
        """Return a text of the server, cut to ``max_chars``."""
        if len(text) <= self._max_chars:
            return text
        return f"{text[: self._max_chars]}… ({len(text) - self._max_chars} more characters)"

    def make_error(self, problem: str) -> ValueError:
        """Return an error of one line that names the server."""
        name = self._server if isinstance(self._server, str) else " ".join(self._server)
        return ValueError(escape_unprintable(f"the MCP server {name} {problem}"))

    def _list_tools(self) -> list[Any]:
        tools: list[Any] = []
        cursor: str | None = None
        while True:
            page = self._ask(partial(self._client.list_tools, cursor=cursor))
            tools, cursor = [*tools, *page.tools], page.next_cursor
            if len(tools) > _MOST_TOOLS or (cursor is not None and not page.tools):
                raise self.make_error(f"lists more than {_MOST_TOOLS} tools, or pages without end")
            if cursor is None:
                return tools

    def _ask(self, function: Any) -> Any:
        """Call a function of the client in bounded time.

        Errors of the protocol are raised unchanged.
        """
        import anyio
        from mcp import MCPError

        async def call_in_time() -> Any:
            with anyio.fail_after(self._timeout_s):  # also limits messages that the server does not read
                return await function()

        try:
            return self._portal.call(call_in_time)
        except Exception as error:
            code = error.code if isinstance(error, MCPError) else None
            if code == _CLOSED or isinstance(error, anyio.ClosedResourceError | anyio.BrokenResourceError):
                raise Gone from error
            if code is not None and code != _LATE:
                raise
            failed = self._convert_error(error)
            self.close()
            raise failed from error

    def _convert_error(self, error: BaseException) -> Exception:
        """Convert an error of the library."""
        from mcp import MCPError

        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, TimeoutError) or (isinstance(error, MCPError) and error.code == _LATE):
            return TimeoutError(f"the MCP server did not answer within timeout_s={self._timeout_s:g}")
        if isinstance(error, ValueError) and str(error).startswith("the MCP server "):
            return error
        if isinstance(error, OSError) and self._client is None:
            return self.make_error(f"cannot be started or reached ({error}); see that it runs by itself")
        message = f"{type(error).__name__}: {error}"[:300]
        return self.make_error(f"ended or said what is no MCP ({message}); see that it runs by itself")
