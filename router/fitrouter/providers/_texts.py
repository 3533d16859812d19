"""Completions and streams made from a text, for recorded and simulated providers."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from fitrouter.types import Chunk, Completion, Message, Usage


def last_user_text(messages: Sequence[Message]) -> str:
    """The text of the last user message; text parts are joined by line breaks."""
    for message in reversed(messages):
        if message.get("role") == "user":
            return _text(message.get("content"))
    return ""


def usage_of(messages: Sequence[Message], answer: str) -> Usage:
    """Estimate token counts as a quarter of the characters, rounded up."""
    prompt = sum(len(_text(message.get("content"))) for message in messages)
    return Usage(prompt_tokens=math.ceil(prompt / 4), completion_tokens=math.ceil(len(answer) / 4))


def whole(text: str, usage: Usage) -> Completion:
    """Make a completion whose assistant message is the text."""
    return Completion(message={"role": "assistant", "content": text}, usage=usage)


async def stream(
    text: str, usage: Usage, pause: Callable[[int], Awaitable[None]], size: int = 24
) -> AsyncIterator[Chunk]:
    """Stream the text in pieces of `size` characters; `pause(i)` is awaited before piece i."""
    for i, start in enumerate(range(0, max(len(text), 1), size)):
        await pause(i)
        piece: Message = {"content": text[start : start + size]}
        yield Chunk(delta={"role": "assistant", **piece} if i == 0 else piece)
    yield Chunk(finish_reason="stop")
    yield Chunk(usage=usage)


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = (
            part if isinstance(part, str) else part.get("text") for part in content if isinstance(part, str | dict)
        )
        return "\n".join(text for text in texts if isinstance(text, str))
    return ""
