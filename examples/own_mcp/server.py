"""A phone book as an MCP server: python server.py speaks over standard input and output."""

from mcp.server import MCPServer

server = MCPServer("phone book")
book: dict[str, str] = {}  # of this session: a new process is started for every episode


@server.tool()
def add(name: str, number: str) -> str:
    """Write a number into the book."""
    book[name] = number
    return f"{name} has {number}."


@server.tool()
def look_up(name: str) -> str:
    """Read the number of a name."""
    return book.get(name, f"{name} is not in the book.")


@server.tool()
def names() -> str:
    """List all names."""
    return ", ".join(sorted(book)) or "The book is empty."


@server.tool()
def remove(name: str) -> str:
    """Take a name out of the book."""
    return f"{name} is out." if book.pop(name, None) else f"{name} is not in the book."


if __name__ == "__main__":
    server.run()
