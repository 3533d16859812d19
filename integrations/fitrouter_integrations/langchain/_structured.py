"""Answers of a schema: by a tool call, by a response format, or as any JSON."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

from langchain_core.language_models import LanguageModelInput
from langchain_core.output_parsers import BaseOutputParser, JsonOutputParser, PydanticOutputParser
from langchain_core.output_parsers.openai_tools import JsonOutputKeyToolsParser, PydanticToolsParser
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass

from fitrouter.errors import InvalidRequest

if TYPE_CHECKING:
    from fitrouter_integrations.langchain._chat import ChatFitrouter

__all__ = ["structured"]


def structured(
    model: ChatFitrouter, schema: Any, *, include_raw: bool, method: str, strict: bool | None, **kwargs: Any
) -> Runnable[LanguageModelInput, Any]:
    """See `ChatFitrouter.with_structured_output`.

    Raises:
        InvalidRequest: there is no such method.
    """
    noted = {"kwargs": {"method": method, "strict": strict}, "schema": schema}
    if method == "function_calling":
        function = convert_to_openai_tool(schema, strict=strict)
        name = function["function"]["name"]
        bound = model.bind_tools([function], tool_choice=name, ls_structured_output_format=noted, **kwargs)
        parser: Any = (
            PydanticToolsParser(tools=[schema], first_tool_only=True)
            if _is_class(schema)
            else JsonOutputKeyToolsParser(key_name=name, first_tool_only=True)
        )
    elif method in {"json_schema", "json_mode"}:
        wanted = {"type": "json_object"} if method == "json_mode" else _response_format(schema, strict)
        bound = model.bind(response_format=wanted, ls_structured_output_format=noted, **kwargs)
        parser = _json_parser(schema)
    else:
        raise InvalidRequest(f"method: given {method!r}, allowed are function_calling, json_schema and json_mode")
    if not include_raw:
        plain: Runnable[LanguageModelInput, Any] = bound | parser
        return plain
    parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
    nothing = RunnablePassthrough.assign(parsed=lambda _: None)
    whole: Runnable[LanguageModelInput, Any] = RunnableMap(raw=bound) | parsed.with_fallbacks(
        [nothing], exception_key="parsing_error"
    )
    return whole


def _response_format(schema: Any, strict: bool | None) -> dict[str, Any]:
    function = convert_to_openai_tool(schema, strict=strict)["function"]
    described = {"name": function["name"], "schema": function["parameters"]}
    return {"type": "json_schema", "json_schema": described if strict is None else {**described, "strict": strict}}


def _json_parser(schema: Any) -> BaseOutputParser[Any]:
    return PydanticOutputParser(pydantic_object=schema) if _is_class(schema) else JsonOutputParser()


def _is_class(schema: Any) -> bool:
    return isinstance(schema, type) and is_basemodel_subclass(schema)
