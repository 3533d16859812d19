"""A loopback server that speaks the OpenAI protocol, and every kind of nonsense a real one has been seen to speak.

    async with FakeOpenAI() as server:
        OpenAICompatible(server.base_url)

Without a script it answers `answer(body)`: text, or a tool call where tools are offered, whole or as SSE. With one,
each request takes the next `Reply`: raw pieces of bytes, sleeps (numbers) and HANG.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any

__all__ = ["HANG", "FakeOpenAI", "Reply", "event", "in_a_thread", "reply", "sse"]

HANG = "hang"
_MAX_BODY = 10_000_000
_WORD = 6


class Reply:
    """Raw pieces of a response: bytes, seconds to sleep, or HANG. The connection is closed afterwards unless kept."""

    def __init__(self, *pieces: bytes | float | str, keep: bool = False) -> None:
        self.pieces = pieces
        self.keep = keep


def reply(status: int, body: Any, content_type: str = "application/json", **headers: str) -> Reply:
    """A whole answer: `body` as it is where it is bytes, else as JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    extra = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\nContent-Length: {len(content)}\r\n{extra}\r\n"
    return Reply(head.encode() + content, keep=True)


def event(data: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def sse(*pieces: bytes | float | str, end: bool = True, content_type: str = "text/event-stream") -> Reply:
    """A streamed answer in chunked coding, a chunk for each piece; without `end` the body breaks off."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    chunks = [b"%x\r\n%s\r\n" % (len(piece), piece) if isinstance(piece, bytes) else piece for piece in pieces]
    return Reply(head, *chunks, *([b"0\r\n\r\n"] if end else []), keep=end)


def default_answer(body: dict[str, Any]) -> str:
    """The last user text, and who answers."""
    content = next((m.get("content") for m in reversed(body["messages"]) if m.get("role") == "user"), "")
    return f"{body.get('model')} answers: {content if isinstance(content, str) else json.dumps(content)}"


class FakeOpenAI:
    """The server.

    What it saw: `seen` (body, headers) and `connections`; `asked` is set by a request, `left` by a client that goes
    away during its answer.
    """

    def __init__(
        self,
        script: Iterable[Reply | None] = (),
        answer: Callable[[dict[str, Any]], str] = default_answer,
        models: Sequence[str] | Reply = ("fake-a",),
        key: str = "",
    ) -> None:
        self.seen: deque[tuple[dict[str, Any], dict[str, str]]] = deque(maxlen=10_000)
        self.connections = 0
        self.asked = asyncio.Event()
        self.left = asyncio.Event()
        self.base_url = ""
        self._script = iter(script)
        self._answer = answer
        self._models, self._key = models, key
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> FakeOpenAI:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.base_url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        early = b""
        try:
            while (request := await self._request(reader, early)) is not None:
                sending = asyncio.create_task(self._send(writer, request))
                watching = asyncio.create_task(reader.read(1))
                try:
                    await asyncio.wait({sending, watching}, return_when=asyncio.FIRST_COMPLETED)
                    if not sending.done() and watching.result() == b"":
                        self.left.set()
                        return
                    keep = await sending
                    early = await watching if keep else b""
                finally:
                    for one in (sending, watching):
                        one.cancel()
                    await asyncio.gather(sending, watching, return_exceptions=True)
                if not keep or not early:
                    return
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _request(self, reader: asyncio.StreamReader, early: bytes) -> tuple[str, dict[str, Any]] | None:
        head = early + await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin1").split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines if line)}
        length = int(headers.get("content-length", "0"))
        assert length <= _MAX_BODY
        body = json.loads(await reader.readexactly(length) or b"{}")
        path = first.split(" ")[1]
        if self._key and headers.get("authorization") != f"Bearer {self._key}":
            return "401", body
        if path.endswith(("/chat/completions", "/embeddings")):
            self.seen.append((body, headers))
            self.asked.set()
        return path, body

    async def _send(self, writer: asyncio.StreamWriter, request: tuple[str, dict[str, Any]]) -> bool:
        answer = self._reply_to(*request)
        for piece in answer.pieces:
            if isinstance(piece, bytes):
                writer.write(piece)
                await writer.drain()
            elif piece == HANG:
                await asyncio.Event().wait()
            else:
                await asyncio.sleep(float(piece))
        return answer.keep

    def _reply_to(self, path: str, body: dict[str, Any]) -> Reply:
        if path == "401":
            return reply(401, {"error": {"message": "invalid key"}})
        if path == "/v1/models":
            if isinstance(self._models, Reply):
                return self._models
            data = [{"id": name, "object": "model", "owned_by": "fake"} for name in self._models]
            return reply(200, {"object": "list", "data": data})
        if not path.endswith(("/chat/completions", "/embeddings")):
            return reply(404, {"error": {"message": f"no route {path}"}})
        return next(self._script, None) or (self._streamed(body) if body.get("stream") else self._whole(body))

    def _whole(self, body: dict[str, Any]) -> Reply:
        message, reason = self._message(body)
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return reply(200, {**_envelope(body, "chat.completion"), "choices": [choice], "usage": _usage(message)})

    def _streamed(self, body: dict[str, Any]) -> Reply:
        message, reason = self._message(body)
        envelope = _envelope(body, "chat.completion.chunk")

        def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
            return event({**envelope, "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})

        events = [chunk({"role": "assistant", "content": "" if message["content"] is not None else None})]
        text = message["content"] or ""
        events += [chunk({"content": text[i : i + _WORD]}) for i in range(0, len(text), _WORD)]
        for i, call in enumerate(message.get("tool_calls", ())):
            arguments = call["function"]["arguments"]
            events.append(
                chunk({"tool_calls": [{**call, "index": i, "function": {**call["function"], "arguments": ""}}]})
            )
            events.append(chunk({"tool_calls": [{"index": i, "function": {"arguments": arguments}}]}))
        events.append(chunk({}, reason))
        if (body.get("stream_options") or {}).get("include_usage"):
            events.append(event({**envelope, "choices": [], "usage": _usage(message)}))
        return sse(*events, event(b"[DONE]"))

    def _message(self, body: dict[str, Any]) -> tuple[dict[str, Any], str]:
        tools = body.get("tools") or []
        if tools and body.get("tool_choice") != "none" and body["messages"][-1].get("role") == "user":
            function = tools[0]["function"]
            arguments = dict.fromkeys(function.get("parameters", {}).get("properties", {}), "x")
            call = {"name": function["name"], "arguments": json.dumps(arguments)}
            calls = [{"id": "call_1", "type": "function", "function": call}]
            return {"role": "assistant", "content": None, "tool_calls": calls}, "tool_calls"
        if (body.get("response_format") or {}).get("type") in {"json_object", "json_schema"}:
            return {"role": "assistant", "content": json.dumps({"answer": "x"})}, "stop"
        return {"role": "assistant", "content": self._answer(body)}, "stop"


@contextlib.contextmanager
def in_a_thread(server: FakeOpenAI) -> Iterator[FakeOpenAI]:
    """The server on an event loop of its own, for tests that block or start processes."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(60)
        try:
            yield server
        finally:
            asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


def _envelope(body: dict[str, Any], kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": body.get("model")}


def _usage(message: dict[str, Any]) -> dict[str, int]:
    completion = max(1, len(json.dumps(message)) // 4)
    return {"prompt_tokens": 7, "completion_tokens": completion, "total_tokens": 7 + completion}
