"""Assembly of streamed chunks into a whole answer."""

from __future__ import annotations

from typing import Any

from fitrouter.serving.attempts import Assembler
from fitrouter.types import Chunk
from fitrouter_integrations.client._base import Reply


class Whole:
    """Collects the chunks of a stream.

    Args:
        stream: its `about` describes the decision.
    """

    def __init__(self, stream: Any) -> None:
        self._stream, self._parts = stream, Assembler()

    def add(self, chunk: Chunk) -> str:
        """Add a chunk; returns its text."""
        self._parts.add(chunk)
        text: str = chunk.delta.get("content") or ""
        return text

    def reply(self) -> Reply:
        """The whole answer, after the last chunk."""
        parts = self._parts
        return Reply(
            message=parts.message(),
            finish_reason=parts.finish_reason or "stop",
            usage=parts.usage,
            about=self._stream.about,
        )
