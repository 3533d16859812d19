"""Signs in a conversation that its agent is stuck, read from the request alone, never from predictions.

Another sign, answers that people edit, is read from the log (`fitrouter.state.sessions.Session.edits`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from fitrouter.types import Message

TAIL = 64
"""Last messages that are read."""
LOOP, IDLE = 3, 3
"""How often the same tool call, and the same text, is a sign."""
_ERROR = re.compile(r"error|exception|traceback|fail|denied|not found|invalid|timed? ?out", re.IGNORECASE)
_NO = re.compile(
    r"\W*(?:no|nope|wrong|incorrect|try again|not (?:that|what|right)|(?:that|this|it)(?:'s| is) (?:not|wrong)|"
    r"(?:it )?still (?:not|wrong|broken|fails?|failing|the same))\b",
    re.IGNORECASE,
)
_SHORT, _ENDS = 300, 2000


def impasse(messages: Sequence[Message]) -> str:
    """Return the sign that an agent is stuck; empty if there is none.

    * ``loop``: it has made the same tool call, with the same arguments, a third time since the user spoke.
    * ``error``: a tool has answered with the same error twice in a row.
    * ``idle``: its last three texts are the same, and call no tool.
    * ``rejected``: the person has said no to the last two answers.

    >>> no = {"role": "user", "content": "No, still wrong."}
    >>> impasse([{"role": "user", "content": "Fix it"}, no, {"role": "assistant", "content": "Done"}, no])
    'rejected'
    """
    tail = messages[-TAIL:]
    spoken = [i for i, message in enumerate(tail) if message.get("role") == "user" and _text(message)]
    steps = tail[spoken[-1] + 1 :] if spoken else tail
    calls = list(_calls(steps))
    if calls and calls.count(calls[-1]) >= LOOP:
        return "loop"
    outputs = [_text(message) for message in steps if message.get("role") == "tool"]
    if len(outputs) > 1 and outputs[-1] == outputs[-2] and _reads_as_error(outputs[-1]):
        return "error"
    spoke = (message for message in steps if message.get("role") == "assistant" and not message.get("tool_calls"))
    said = [text for message in spoke if (text := _text(message))]
    if len(said) >= IDLE and len(set(said[-IDLE:])) == 1:
        return "idle"
    last = [_text(tail[i]) for i in spoken[-2:]]
    if len(last) == 2 and not steps and all(len(text) < _SHORT and _NO.match(text) for text in last):
        return "rejected"
    return ""


def _reads_as_error(text: str) -> bool:
    """Whether an output tells of an error, by its first and its last words: it may be megabytes long."""
    return bool(_ERROR.search(text[:_ENDS]) or _ERROR.search(text[-_ENDS:]))


def _text(message: Message) -> str:
    content: Any = message.get("content")
    if isinstance(content, list):
        content = "\n".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content.strip() if isinstance(content, str) else ""


def _calls(messages: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """The tool calls of messages, in order: names, and arguments as text, which is long and not copied."""
    for message in messages:
        made = message.get("tool_calls")
        for call in made if isinstance(made, list) else ():
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict):
                given = function.get("arguments")
                as_text = given if isinstance(given, str) else json.dumps(given, sort_keys=True, default=str)
                yield str(function.get("name")), as_text
