"""Recorded conversations: JSON lines with OpenAI messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from fitrouter.errors import InvalidRequest

FAILURES = ("missed", "under_adapted", "over_retrieved", "invented", "inappropriate")


class Conversation(msgspec.Struct, frozen=True):
    """A conversation; those of one user are in the order in which they took place."""

    messages: tuple[dict[str, Any], ...]
    user: str = ""
    marks: tuple[str, ...] | None = None
    """What a human found wrong with the last answer, of `FAILURES`; empty for nothing, None if nobody looked."""

    def turns(self) -> list[tuple[str, str]]:
        """Turns as (user text, answer); an answer is empty if there was none."""
        found: list[tuple[str, str]] = []
        for message in self.messages:
            text, role = text_of(message), message.get("role")
            if role == "user":
                found.append((text, ""))
            elif role == "assistant" and found:
                prompt, answer = found[-1]
                found[-1] = (prompt, f"{answer}\n{text}".strip())
        return found


def text_of(message: Mapping[str, Any]) -> str:
    """Extract the text of a message, whose content is a string or a list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part.get("text") or "") for part in parts if isinstance(part, Mapping))


def parsed(payload: bytes) -> list[Conversation]:
    """Conversations from JSON lines.

    Raises:
        InvalidRequest: a line is none, or no answer is in any of them.
    """
    found = []
    for number, line in enumerate(payload.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line, type=Conversation)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidRequest(f'history: line {number}: {error}; a line is {{"messages": […]}}') from None
        if unknown := set(row.marks or ()) - set(FAILURES):
            raise InvalidRequest(
                f"history: line {number}: unknown marks {sorted(unknown)}; marks are {', '.join(FAILURES)}"
            )
        found.append(row)
    if not any(answer for row in found for _, answer in row.turns()):
        raise InvalidRequest("history: no answer of an assistant follows a message of a user")
    return found
