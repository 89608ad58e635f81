"""An MCP server of the standard library alone, which does what its argument says: python mcp_raw.py WHAT."""

import json
import os
import sys
import time
from typing import Any

WHAT = sys.argv[1] if len(sys.argv) > 1 else ""
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
REGEX = {"type": "object", "properties": {"text": {"type": "string", "pattern": "^(a+)+$"}}}
AHEAD = {"type": "object", "properties": {"text": {"type": "string", "pattern": "^(?=a)"}}}
calls = 0


def called(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    global calls
    calls += 1
    if WHAT == "hang" or name == "hang":
        time.sleep(600)
    if WHAT == "die" and calls > 1:
        os._exit(3)
    if WHAT == "lie":
        return {"content": "all", "isError": 7}
    if WHAT == "flood":
        return {"content": [{"type": "text", "text": "x" * 3_000_000}]}
    if WHAT == "dirty":
        print("no JSON at all\n{}\n[1]", flush=True)
    text = {"times": str(calls), "pid": str(os.getpid())}.get(name, f"{name} {arguments.get('text')}")
    answer = {
        "content": [
            {"type": "text", "text": text},
            {"type": "image", "data": "aGk=", "mimeType": "image/png"},
        ]
    }
    return answer | {"structuredContent": {"text": "a" * 40 + "b"}} if WHAT == "regex" else answer


def answered(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        version = params["protocolVersion"]
        info = {"name": "raw", "version": "1"}
        return {
            "protocolVersion": version,
            "capabilities": {"tools": {}},
            "serverInfo": info,
            "instructions": "Be kind.",
        }
    if method == "tools/list":
        schema = {"regex": REGEX, "ahead": AHEAD, "schema": {"type": "object", "properties": 3}}.get(
            WHAT, TEXT
        )
        if WHAT == "refs":
            doubled: dict[str, Any] = {
                f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)
            }
            schema = {**TEXT, "properties": {"text": {"$ref": "#/$defs/d0"}}, "$defs": {**doubled, "d40": {}}}
        names = ["say", "times", "pid"]
        if WHAT == "book":  # takes what the tasks of the example ask for
            schema, names = (
                {"type": "object", "additionalProperties": True},
                ["add", "look_up", "names", "remove"],
            )
        tools = [{"name": name, "description": "Says it.", "inputSchema": schema} for name in names]
        if WHAT == "regex":
            tools[0]["outputSchema"] = REGEX
        return {"tools": tools, **({"nextCursor": "more"} if WHAT == "pages" else {})}
    if method == "tools/call":
        return called(params["name"], params.get("arguments") or {})
    return None


if WHAT == "none":
    sys.exit("no such thing")
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    found = answered(message["method"], message.get("params") or {})
    reply = {"error": {"code": -32601, "message": "no"}} if found is None else {"result": found}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}), flush=True)
if WHAT == "deaf":  # does not end with its input
    time.sleep(600)
