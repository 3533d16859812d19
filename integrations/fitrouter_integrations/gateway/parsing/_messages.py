"""Validation of chat messages in request bodies."""

from __future__ import annotations

import json
from typing import Any

from fitrouter.errors import InvalidRequest
from fitrouter.types import Message
from fitrouter_integrations.gateway.parsing._values import shown

MAX_MESSAGES = 2048
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def messages_of(given: object) -> tuple[Message, ...]:
    """Validate the messages of a request body.

    Raises:
        InvalidRequest: names the field and the reason.
    """
    if not isinstance(given, list) or not given:
        raise InvalidRequest("messages: give an array with at least one message")
    if len(given) > MAX_MESSAGES:
        raise InvalidRequest(f"messages: {len(given)} were given, at most {MAX_MESSAGES} are allowed")
    return tuple(message_of(message, f"messages[{i}]") for i, message in enumerate(given))


def message_of(message: object, where: str) -> Message:
    """Validate one message of a request body; what clients leave out or encode in their own way is set right.

    Raises:
        InvalidRequest: names the field and the reason.
    """
    if not isinstance(message, dict):
        raise InvalidRequest(f"{where}: got {shown(message)}; a message is an object with 'role' and 'content'")
    role = message.get("role")
    if role not in _ROLES:
        raise InvalidRequest(f"{where}.role: got {shown(role)}; allowed are {', '.join(_ROLES)}")
    calls = message.get("tool_calls")
    content = message.get("content")
    if content is None:
        if role in ("tool", "function"):
            message = {**message, "content": ""}
        elif role != "assistant":
            raise InvalidRequest(f"{where}.content: missing; give a string or an array of parts")
    elif isinstance(content, list):
        for j, part in enumerate(content):
            _check_part(part, f"{where}.content[{j}]")
    elif not isinstance(content, str):
        raise InvalidRequest(f"{where}.content: got {shown(content)}; give a string or an array of parts")
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        raise InvalidRequest(f"{where}.tool_call_id: missing; a tool message names the call that it answers")
    return message if calls is None else {**message, "tool_calls": _calls(calls, f"{where}.tool_calls")}


def _check_part(part: object, where: str) -> None:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise InvalidRequest(f"{where}: got {shown(part)}; a part is an object with 'type'")
    if part["type"] == "text" and not isinstance(part.get("text"), str):
        raise InvalidRequest(f"{where}.text: got {shown(part.get('text'))}; give a string")


def _calls(calls: object, where: str) -> list[dict[str, Any]]:
    """Validate the calls of a message: arguments that were kept as an object become a string."""
    if not isinstance(calls, list):
        raise InvalidRequest(f"{where}: got {shown(calls)}; give an array")
    found: list[dict[str, Any]] = []
    for j, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        custom = call.get("custom") if isinstance(call, dict) else None
        if not isinstance(function, dict) and not isinstance(custom, dict):
            raise InvalidRequest(f"{where}[{j}]: got {shown(call)}; a call has an 'id' and a 'function'")
        if isinstance(function, dict):
            if not isinstance(function.get("name"), str):
                raise InvalidRequest(f"{where}[{j}].function: give its 'name' as a string")
            function = {**function, "arguments": arguments_of(function.get("arguments"), f"{where}[{j}].function")}
            call = {**call, "type": call.get("type") or "function", "function": function}
        found.append(call)
    return found


def arguments_of(given: object, where: str) -> str:
    """Return the arguments of a call in a history as a string, also where a client kept them as an object, or none.

    Raises:
        InvalidRequest: they are neither.
    """
    if isinstance(given, str):
        return given
    if given is not None and not isinstance(given, dict):
        raise InvalidRequest(f"{where}.arguments: got {shown(given)}; give a string of JSON")
    return json.dumps(given or {}, ensure_ascii=False, separators=(",", ":"))
