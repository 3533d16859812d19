"""Upstream servers that echo the key of a request, in every place that reaches a client, a log or an event."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from tests.kits.fake_openai import Reply, event, reply, sse

KEY = "canary/key+of=the-provider"
ESCAPED = base64.b64encode(KEY.encode()).decode().rstrip("=")
FORMS = (KEY, quote(KEY, safe=""), ESCAPED, KEY.replace("/", "\\/"))
"""How an upstream may write it."""
_TEXT = {"index": 0, "delta": {"role": "assistant", "content": "Hi"}, "finish_reason": None}
_FIRST = event({"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [_TEXT]})


def _raw(head: str, body: str = "") -> Reply:
    return Reply(f"HTTP/1.1 {head}\r\nContent-Length: {len(body.encode())}\r\n\r\n{body}".encode())


def _answer(**message: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hi", **message}, "finish_reason": "stop"}
    return {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}


ECHOES: dict[str, Callable[[str], Reply]] = {
    "status text": lambda key: _raw(f"500 {key}"),
    "no status at all": lambda key: Reply(f"HTTP/1.1 {key}\r\n\r\n".encode()),
    "no HTTP": lambda key: Reply(f"{key}\r\n\r\n".encode()),
    "a header without a colon": lambda key: Reply(f"HTTP/1.1 200 OK\r\n{key}\r\n\r\n".encode()),
    "a header": lambda key: reply(500, {"error": "x"}, x_echo=key),
    "retry-after": lambda key: reply(429, {"error": "x"}, retry_after=key),
    "a redirect": lambda key: reply(302, b"", location=f"http://localhost/{key}"),
    "content type": lambda key: reply(200, b"x", content_type=f"text/{key}"),
    "content encoding": lambda key: reply(200, {}, content_encoding=key),
    "error message 401": lambda key: reply(401, {"error": {"message": f"Incorrect API key provided: {key}."}}),
    "error message 400": lambda key: reply(400, {"error": {"message": f"bad: {key}", "code": key, "type": key}}),
    "error code 500": lambda key: reply(500, {"error": {"message": "x", "code": key, "param": key}}),
    "error as a string": lambda key: reply(503, {"error": key}),
    "a long error": lambda key: reply(400, {"error": {"message": "x" * 290 + key}}),
    "a very long error": lambda key: reply(400, (key * 4000).encode()),
    "no JSON": lambda key: reply(500, f"<html>{key}</html>".encode(), content_type="text/html"),
    "no JSON in a 200": lambda key: reply(200, f"Authorization: Bearer {key}".encode()),
    "an error in a 200": lambda key: reply(200, {"error": {"message": key}}),
    "an empty answer": lambda key: reply(200, {"choices": [], "note": key}),
    "content": lambda key: reply(200, _answer(content=f"your key is {key}")),
    "a tool call": lambda key: reply(
        200, _answer(tool_calls=[{"id": "1", "type": "function", "function": {"name": "f", "arguments": key}}])
    ),
    "an error chunk first": lambda key: sse(event({"error": {"message": key, "code": key}})),
    "an error chunk later": lambda key: sse(_FIRST, event({"error": {"message": key}})),
    "no JSON in a chunk": lambda key: sse(_FIRST, event(key.encode())),
    "no event": lambda key: sse(_FIRST, f"{key}\n\n".encode()),
    "content of a chunk": lambda key: sse(
        _FIRST.replace(b'"Hi"', json.dumps(f"key {key}").encode()), _FIRST.replace(b"null", b'"stop"')
    ),
    "finish reason": lambda key: sse(_FIRST, _FIRST.replace(b"null", json.dumps(key).encode())),
}
