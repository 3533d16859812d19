"""Structured answers: each method, each form of a schema, both agent strategies, and invalid answers."""

from __future__ import annotations

import enum
import itertools
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import pytest

pytest.importorskip("langchain", reason="install the extra `langchain`")

from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.exceptions import OutputParserException
from pydantic import BaseModel, Field, ValidationError
from tests.kits.agents import Agent
from tests.kits.chat import HOW, Says, asked, chat

from fitrouter.errors import InvalidRequest

METHODS = ("function_calling", "json_schema")


class Colour(enum.Enum):
    """Of a thing."""

    RED = "red"


class Part(BaseModel):
    """Of a thing."""

    number: int
    tags: list[str] = Field(default_factory=list)


class Thing(BaseModel):
    """With a part, a colour, and what may be missing."""

    part: Part
    colour: Colour
    maybe: int | None = None
    either: int | str
    form: Literal["x", "y"]


class Plain(TypedDict):
    """A thing as a dictionary."""

    number: Annotated[int, ..., "how many"]


PROPERTIES = {"type": "object", "properties": {"number": {"type": "integer"}}}
SCHEMAS: dict[str, Any] = {
    "a TypedDict": Plain,
    "with a title": {"title": "thing", **PROPERTIES},
    "without a name": PROPERTIES,
    "OpenAI's of a tool": {"type": "function", "function": {"name": "thing", "parameters": PROPERTIES}},
    "OpenAI's of a function": {"name": "thing", "parameters": PROPERTIES},
    "OpenAI's of an answer": {"name": "thing", "schema": PROPERTIES, "strict": True},
}


@pytest.mark.parametrize("method", METHODS)
def test_a_class_is_parsed(tmp_path: Path, method: Any) -> None:
    """Parts, lists, enumerations and optional fields come as objects of the class; strict goes to the model."""
    provider = Agent()
    with chat(tmp_path, "near", provider) as (model, _):
        for strict, how in itertools.product((None, True, False), HOW):
            thing = asked(model.with_structured_output(Thing, method=method, strict=strict), how, "hi")
            wanted = Thing(part=Part(number=3, tags=["hello"]), colour=Colour.RED, maybe=3, either=3, form="x")
            assert thing == wanted, (strict, how)
            params = provider.calls[-1].params
            by_tool = method == "function_calling"
            place = params["tools"][0]["function"] if by_tool else params["response_format"]["json_schema"]
            assert place.get("strict") is strict, how


@pytest.mark.parametrize("method", METHODS)
def test_any_form_of_a_schema_is_parsed(tmp_path: Path, method: Any) -> None:
    """All forms of OpenAI's and LangChain's schemas give a dict, with or without a name."""
    with chat(tmp_path, "far", Agent()) as (model, _):
        for form, raw in itertools.product(SCHEMAS, (False, True)):
            found: Any = model.with_structured_output(SCHEMAS[form], method=method, include_raw=raw).invoke("hi")
            if raw:
                assert found["parsing_error"] is None, form
                assert found["raw"].response_metadata["decision_id"]
                found = found["parsed"]
            assert found == {"number": 3}, (form, raw)


BROKEN: dict[str, tuple[str, dict[str, Any], type[Exception]]] = {
    # method, what the model says, what is raised
    "a call that is no JSON": ("function_calling", {"arguments": '{"part": '}, OutputParserException),
    "a call that is no object": ("function_calling", {"arguments": "[]"}, OutputParserException),
    "a call of other fields": ("function_calling", {"arguments": '{"part": 3}'}, ValidationError),
    "words": ("json_schema", {"content": "Sure! Here it is."}, OutputParserException),
    "nothing": ("json_mode", {"content": ""}, OutputParserException),
    "other fields": ("json_mode", {"content": '{"colour": "green"}'}, OutputParserException),
}


@pytest.mark.parametrize("case", BROKEN)
def test_an_invalid_answer_is_an_error(tmp_path: Path, case: str) -> None:
    """It raises, or with `include_raw` is returned beside the answer; it is never silently nothing."""
    method, said, kind = BROKEN[case]
    if "arguments" in said:
        said = {"tool_calls": [{"id": "c1", "type": "function", "function": {"name": "Thing", **said}}]}
    with chat(tmp_path, "near", Says(said)) as (model, _):
        with pytest.raises(kind):
            model.with_structured_output(Thing, method=method).invoke("hi")  # type: ignore[arg-type]
        found: Any = model.with_structured_output(Thing, method=method, include_raw=True).invoke("hi")  # type: ignore[arg-type]
    assert isinstance(found["parsing_error"], kind)
    assert found["parsed"] is None
    assert found["raw"].response_metadata["decision_id"]


def test_json_in_a_code_fence_is_parsed(tmp_path: Path) -> None:
    """Models often wrap JSON in a code fence."""
    with chat(tmp_path, "near", Says({"content": '```json\n{"number": 1}\n```'})) as (model, _):
        assert model.with_structured_output(Plain, method="json_mode").invoke("hi") == {"number": 1}


def test_invalid_arguments_are_errors(tmp_path: Path) -> None:
    """An unknown method, and tools beside a schema."""
    with chat(tmp_path, "near", Agent()) as (model, _):
        with pytest.raises(InvalidRequest, match="json_schema"):
            model.with_structured_output(Thing, method="xml")  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="create_agent"):
            model.with_structured_output(Thing, tools=[Part])


@pytest.mark.parametrize(("where", "how"), [("near", "ainvoke"), ("far", "invoke")])
def test_agents_answer_with_an_object(tmp_path: Path, where: str, how: str) -> None:
    """By a tool, by a response format, or by what the models' common profile allows."""
    provider = Agent()
    strategies: tuple[Any, ...] = (Thing, ToolStrategy(Thing), ProviderStrategy(Thing), ToolStrategy(Thing | Part))
    with chat(tmp_path, where, provider) as (model, _):
        for strategy in strategies:
            state = asked(create_agent(model, [], response_format=strategy), how, {"messages": [("user", "hi")]})
            assert state["structured_response"].colour is Colour.RED, strategy
            by_format = "response_format" in provider.calls[-1].params
            assert by_format is not isinstance(strategy, ToolStrategy), strategy
