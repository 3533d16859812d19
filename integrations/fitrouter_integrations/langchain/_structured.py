"""Structured output: by a tool call, a JSON schema response format, or free JSON."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from langchain_core.exceptions import OutputParserException
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import BaseOutputParser, JsonOutputParser, PydanticOutputParser
from langchain_core.output_parsers.openai_tools import JsonOutputKeyToolsParser, PydanticToolsParser
from langchain_core.outputs import Generation
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass

from fitrouter.errors import InvalidRequest


def structured(
    model: BaseChatModel, schema: Any, *, include_raw: bool, method: str, strict: bool | None, **kwargs: Any
) -> Runnable[LanguageModelInput, Any]:
    """Implement `ChatFitrouter.with_structured_output`.

    Raises:
        InvalidRequest: the method is unknown, or tools were given.
    """
    if "tools" in kwargs:
        raise InvalidRequest(
            "tools: with_structured_output takes none; for both use create_agent(model, tools, response_format=…)"
        )
    schema = _described(schema)
    noted = {"kwargs": {"method": method, "strict": strict}, "schema": schema}
    if method == "function_calling":
        function = convert_to_openai_tool(schema, strict=strict)
        name = function["function"]["name"]
        bound = model.bind_tools([function], tool_choice=name, ls_structured_output_format=noted, **kwargs)
        parser: Any = (
            _Objects(tools=[schema], first_tool_only=True)
            if _is_class(schema)
            else _Values(key_name=name, first_tool_only=True)
        )
    elif method in {"json_schema", "json_mode"}:
        wanted = {"type": "json_object"} if method == "json_mode" else _response_format(schema, strict)
        bound = model.bind(response_format=wanted, ls_structured_output_format=noted, **kwargs)
        parser = _json_parser(schema)
    else:
        raise InvalidRequest(f"method: got {method!r}; allowed are function_calling, json_schema and json_mode")
    if not include_raw:
        plain: Runnable[LanguageModelInput, Any] = bound | parser
        return plain
    parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
    nothing = RunnablePassthrough.assign(parsed=lambda _: None)
    whole: Runnable[LanguageModelInput, Any] = RunnableMap(raw=bound) | parsed.with_fallbacks(
        [nothing], exception_key="parsing_error"
    )
    return whole


def _described(schema: Any) -> Any:
    """Return a schema that has a name, in whichever form of OpenAI or LangChain it is given."""
    if not isinstance(schema, dict):
        return schema
    if "schema" in schema and "name" in schema:
        return {name: schema[name] for name in schema if name != "schema"} | {"parameters": schema["schema"]}
    named = schema.keys() & {"function", "input_schema", "name", "title", "toolSpec"}
    return schema if named else {"title": "answer", **schema}


class _Broken:
    """Parser that reports a tool call with invalid JSON, which LangChain's parsers treat as no tool call."""

    def parse_result(self, result: list[Generation], *, partial: bool = False) -> Any:
        """Raise if the only tool calls are invalid; see `BaseLLMOutputParser`.

        Raises:
            OutputParserException: the arguments are not a JSON object.
        """
        said = getattr(result[0], "message", None)
        if not partial and isinstance(said, AIMessage) and said.invalid_tool_calls and not said.tool_calls:
            bad = said.invalid_tool_calls[0]
            raise OutputParserException(
                f"the call of {bad['name']!r} has arguments that are not a JSON object: {bad['args']}",
                llm_output=bad["args"],
            )
        return super().parse_result(result, partial=partial)  # type: ignore[misc]


class _Objects(_Broken, PydanticToolsParser):
    """Parser of tool arguments into objects of a class."""


class _Values(_Broken, JsonOutputKeyToolsParser):
    """Parser of tool arguments into a dict."""


def _response_format(schema: Any, strict: bool | None) -> dict[str, Any]:
    function = convert_to_openai_tool(schema, strict=strict)["function"]
    described = {"name": function["name"], "schema": function["parameters"]}
    strict = function.get("strict", strict)
    return {"type": "json_schema", "json_schema": described if strict is None else {**described, "strict": strict}}


def _json_parser(schema: Any) -> BaseOutputParser[Any]:
    return PydanticOutputParser(pydantic_object=schema) if _is_class(schema) else JsonOutputParser()


def _is_class(schema: Any) -> bool:
    return isinstance(schema, type) and is_basemodel_subclass(schema)
