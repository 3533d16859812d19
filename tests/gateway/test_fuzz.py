"""Short forms of the fuzzers in `benchmarks.fuzz`."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.fuzz import Report, fuzz_raw, fuzz_schema, mismatch
from tests.kits.gateway import make_router, serving

from fitrouter.types import ModelCard
from fitrouter_integrations.gateway.asgi import _bodies, _limits


@pytest.mark.parametrize("seed", [0, 1])
def test_answers_are_as_the_schema_says(tmp_path: Path, seed: int) -> None:
    """Requests made from the schema, most of them damaged: no 5xx, and every answer fits the published schema."""
    report = Report()
    with serving(make_router(tmp_path, embeddings=[ModelCard(name="x", provider="echo")])) as url:
        host, port = url.removeprefix("http://").split(":")
        fuzz_schema(host, int(port), 400, seed, report)
    assert not report.violations
    assert {"200", "400", "404"} <= report.statuses.keys()


def test_damaged_http_is_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Malformed, chunked and pipelined requests on raw sockets: no 5xx, and the gateway answers afterwards."""
    monkeypatch.setattr(_bodies, "LINGER_S", 0.1)
    monkeypatch.setattr(_limits, "LINGER_S", 0.1)
    report = Report()
    with serving(make_router(tmp_path)) as url:
        host, port = url.removeprefix("http://").split(":")
        fuzz_raw(host, int(port), 501, 0, report)
    assert not report.violations
    assert {"raw 200", "raw 400", "raw 431"} <= report.statuses.keys()


@pytest.mark.parametrize(
    ("value", "schema", "words"),
    [
        ({"a": 1}, {"type": "object", "required": ["b"]}, "lacks"),
        ({"a": 1}, {"type": "object", "properties": {}, "additionalProperties": False}, "which the schema lacks"),
        ({"a": True}, {"properties": {"a": {"type": "integer"}}}, "answer.a is True"),
        ([1, "x"], {"type": "array", "items": {"type": "number"}}, "answer[1]"),
        ("x", {"enum": ["y"]}, "the schema has"),
        (-1, {"type": "integer", "minimum": 0}, "out of bounds"),
        (None, {"anyOf": [{"type": "string"}, {"type": "number"}]}, "the schema has string"),
    ],
)
def test_violations_are_found(value: object, schema: dict[str, object], words: str) -> None:
    """The check of answers against the schema sees what is missing, surplus, of another type, or out of bounds."""
    found = mismatch(value, schema)
    assert found is not None
    assert words in found
    assert mismatch({"a": 1, "b": None}, {"type": "object", "properties": {"b": {"type": ["null", "string"]}}}) is None
