"""OpenAI's chat completions: the dialect that the others are translated into."""

from __future__ import annotations

from typing import Any

from fitrouter.types import Chunk, Usage
from fitrouter_integrations.client import About, Reply
from fitrouter_integrations.gateway.asgi._wire import (
    DONE,
    Problem,
    about_json,
    chunk_json,
    completion_json,
    event,
    usage_json,
)
from fitrouter_integrations.gateway.parsing._requests import MAX_CHOICES, wants_usage


class ChatCompletions:
    """Dialect of POST /v1/chat/completions."""

    choices = MAX_CHOICES

    def __init__(self) -> None:
        self.dropped: list[str] = []

    def chat_body(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the body unchanged."""
        return body

    def answer(self, reply: Reply, body: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Return a complete answer as a `chat.completion`."""
        return completion_json(reply)

    def events(self, body: dict[str, Any]) -> ChatEvents:
        """Return a formatter of the streamed answer: chunks, and `[DONE]`."""
        return ChatEvents(wants_usage(body))


class ChatEvents:
    """Formats a streamed answer as `chat.completion.chunk` events.

    Args:
        usage: end with a usage chunk.
    """

    def __init__(self, usage: bool) -> None:
        self._usage, self._opened = usage, set[int]()

    def chunk(self, about: About, chunk: Chunk) -> bytes:
        """Return the event of a chunk; the first of each choice has the role, the very first also the decision."""
        opening = b""
        if chunk.index not in self._opened and (chunk.delta or chunk.finish_reason or not self._opened):
            opens = "role" in chunk.delta
            first = chunk if opens else Chunk(delta={"role": "assistant", "content": ""}, index=chunk.index)
            decided = {} if self._opened else {"fitrouter": about_json(about)}
            self._opened.add(chunk.index)
            opening = event({**chunk_json(about, first, self._usage), **decided})
            if opens:
                return opening
        # Others only count tokens.
        if chunk.delta or chunk.finish_reason is not None or chunk.logprobs or chunk.further:
            return opening + event(chunk_json(about, chunk, self._usage))
        return opening

    def end(self, about: About, usage: Usage) -> bytes:
        """Return the usage chunk if it was asked for, and `[DONE]`."""
        return (event(usage_json(about, usage)) if self._usage else b"") + DONE

    def error(self, problem: Problem) -> bytes:
        """Return an error event, without `[DONE]`."""
        return event({"error": {"message": problem.message, "type": "api_error", "code": problem.code, "param": None}})
