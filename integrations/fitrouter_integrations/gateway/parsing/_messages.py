"""Validation of chat messages in request bodies."""

from __future__ import annotations

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
    for i, message in enumerate(given):
        message_of(message, f"messages[{i}]")
    return tuple(given)


def message_of(message: object, where: str) -> Message:
    """Validate one message of a request body.

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
        if role != "assistant":
            raise InvalidRequest(f"{where}.content: missing; give a string or an array of parts")
    elif isinstance(content, list):
        for j, part in enumerate(content):
            _check_part(part, f"{where}.content[{j}]")
    elif not isinstance(content, str):
        raise InvalidRequest(f"{where}.content: got {shown(content)}; give a string or an array of parts")
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        raise InvalidRequest(f"{where}.tool_call_id: missing; a tool message names the call that it answers")
    if calls is not None:
        _check_calls(calls, f"{where}.tool_calls")
    return message


def _check_part(part: object, where: str) -> None:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise InvalidRequest(f"{where}: got {shown(part)}; a part is an object with 'type'")
    if part["type"] == "text" and not isinstance(part.get("text"), str):
        raise InvalidRequest(f"{where}.text: got {shown(part.get('text'))}; give a string")


def _check_calls(calls: object, where: str) -> None:
    if not isinstance(calls, list):
        raise InvalidRequest(f"{where}: got {shown(calls)}; give an array")
    for j, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        custom = call.get("custom") if isinstance(call, dict) else None
        if not isinstance(function, dict) and not isinstance(custom, dict):
            raise InvalidRequest(f"{where}[{j}]: got {shown(call)}; a call has an 'id' and a 'function'")
        if isinstance(function, dict) and not (
            isinstance(function.get("name"), str) and isinstance(function.get("arguments", ""), str)
        ):
            raise InvalidRequest(f"{where}[{j}].function: give 'name' and 'arguments' as strings")
