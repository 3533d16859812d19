"""Input of the reward model: an answer with its prompt, tool calls and tools."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from fitrouter.types import Message


class ToolCall(msgspec.Struct, frozen=True):
    """A tool call: name and raw arguments."""

    name: str
    arguments: str


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer: text, tool calls and prompt."""

    text: str
    prompt: str = ""
    calls: tuple[ToolCall, ...] = ()
    tools: dict[str, Any] | None = None
    """JSON Schema of the parameters of each tool by name; None if the tools are unknown."""
    declared: tuple[str, ...] = ()
    """What the person who asked declared about topics."""

    @classmethod
    def of(cls, prompt: str, message: Message, tools: Iterable[dict[str, Any]] | None = None) -> Answer:
        """Read an assistant message and the tools' definitions in the OpenAI format, ignoring malformed parts."""
        schemas = None
        if tools is not None:
            functions = [tool.get("function") for tool in tools if isinstance(tool, dict)]
            schemas = {str(f.get("name", "")): f.get("parameters") for f in functions if isinstance(f, dict)}
        text = "\n".join(_texts(message.get("content"))) or "\n".join(_texts(message.get("refusal")))
        return cls(text=text, prompt=prompt, calls=tuple(_calls(message)), tools=schemas)

    @property
    def has_text(self) -> bool:
        """Whether the answer has a text; False if it only calls tools, when the text is missing rather than empty."""
        return not self.calls or not (self.text == "" or self.text.isspace())


def _texts(content: object) -> Iterator[str]:
    """The texts of a message's content: a string, or the text parts of a list."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            text = part.get("text", part.get("refusal")) if isinstance(part, dict) else part
            if isinstance(text, str):
                yield text


def _calls(message: Message) -> Iterator[ToolCall]:
    calls = message.get("tool_calls")
    functions = [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    for function in [*functions, message.get("function_call")]:
        if isinstance(function, dict):
            arguments = function.get("arguments", "")
            written = arguments if isinstance(arguments, str) else json.dumps(arguments, default=repr)
            yield ToolCall(str(function.get("name", "")), written)


_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def arguments_fit(call: ToolCall, tools: dict[str, Any] | None) -> bool:
    """Whether a call's arguments are a JSON object that its tool accepts.

    Checked are type, required, properties, additionalProperties: false, items and enum; other keywords of JSON Schema
    pass. A tool that is not among `tools` does not accept anything; with `tools` None any object will do.

    >>> tools = {"add": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}
    >>> [arguments_fit(ToolCall("add", text), tools) for text in ('{"a": 1}', '{"a": "1"}', "{}", "{a: 1}")]
    [True, False, False, False]
    """
    try:
        arguments = json.loads(call.arguments or "{}")
        if not isinstance(arguments, dict):
            return False
        return tools is None or (call.name in tools and _fits(arguments, tools[call.name]))
    except (ValueError, RecursionError):
        return False


def _fits(value: object, schema: object) -> bool:
    if not isinstance(schema, dict):
        return True
    if "enum" in schema and isinstance(schema["enum"], list) and value not in schema["enum"]:
        return False
    names = schema.get("type", [])
    names = [names] if isinstance(names, str) else names
    if isinstance(names, list) and names and not any(_is(value, name) for name in names):
        return False
    if isinstance(value, dict):
        return _object_fits(value, schema)
    if isinstance(value, list):
        return all(_fits(item, schema.get("items")) for item in value)
    return True


def _is(value: object, name: object) -> bool:
    """Whether a value has a JSON type: true is no number, and 1.0 is an integer; unknown types accept everything."""
    kinds = _TYPES.get(name) if isinstance(name, str) else None
    if kinds is None:
        return True
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, kinds)


def _object_fits(value: dict[str, object], schema: dict[str, Any]) -> bool:
    required, properties = schema.get("required"), schema.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    if isinstance(required, list) and any(isinstance(key, str) and key not in value for key in required):
        return False
    if schema.get("additionalProperties") is False and not value.keys() <= properties.keys():
        return False
    return all(_fits(item, properties[key]) for key, item in value.items() if key in properties)
