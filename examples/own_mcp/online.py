"""The phone book behind an address: python online.py 8000.  Each session has a book of its own."""

import sys
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context

MOST = 4096  # books; that of the session which began first goes first
server = MCPServer("phone book")
books: dict[str, dict[str, str]] = {}


def book_of(context: Context[Any, Any]) -> dict[str, str]:
    """The book of the session that a call belongs to."""
    request = context.request_context.request
    while len(books) >= MOST:
        del books[next(iter(books))]
    return books.setdefault(request.headers["mcp-session-id"], {})


@server.tool()
def add(name: str, number: str, context: Context[Any, Any]) -> str:
    """Write a number into the book."""
    book_of(context)[name] = number
    return f"{name} has {number}."


@server.tool()
def look_up(name: str, context: Context[Any, Any]) -> str:
    """Read the number of a name."""
    return book_of(context).get(name, f"{name} is not in the book.")


@server.tool()
def names(context: Context[Any, Any]) -> str:
    """List all names."""
    return ", ".join(sorted(book_of(context))) or "The book is empty."


@server.tool()
def remove(name: str, context: Context[Any, Any]) -> str:
    """Take a name out of the book."""
    return f"{name} is out." if book_of(context).pop(name, None) else f"{name} is not in the book."


if __name__ == "__main__":
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
