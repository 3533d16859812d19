"""OpenTelemetry spans: what they say, whose children they are, and what they never say."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from tests.kits.fake_openai import FakeOpenAI
from tests.kits.gateway import Echo, chat, client, make_router, serving
from tests.kits.gateway import cards as cards_of

from fitrouter.errors import ProviderUnavailable, conceal
from fitrouter.providers import OpenAICompatible, tracing
from fitrouter.providers._secret import Secret
from fitrouter.types import Call, Chunk, Completion, Usage
from fitrouter_integrations.gateway._tracing import trace_by

CANARY = "sk-canary-0123456789abcdef"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The spans of this process."""
    monkeypatch.delenv("OTEL_SDK_DISABLED", raising=False)  # set for the tests of frameworks
    found = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(found))
    tracing.use(provider)
    yield found
    tracing.use(None)
    provider.shutdown()


class Leaky(Echo):
    """Fails as the first model with its key in the error, and answers with impossible counts and a strange ending."""

    async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
        if not self.calls:
            self.calls.append(call)
            raise ProviderUnavailable(f"wrong key {CANARY}: {call.messages}")
        answer = await super().complete(call)
        if isinstance(answer, Completion):
            usage = Usage(prompt_tokens=2**70, completion_tokens=11)
            return Completion(message=answer.message, finish_reason=f"stop {CANARY}", usage=usage)
        return answer


def named(exporter: InMemorySpanExporter) -> dict[str, list[ReadableSpan]]:
    """Spans by the first word of their name, in the order of their ends."""
    found: dict[str, list[ReadableSpan]] = {}
    for span in exporter.get_finished_spans():
        found.setdefault(span.name.split()[0], []).append(span)
    return found


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    assert span.attributes is not None
    return span.attributes


def parent_of(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


@pytest.mark.parametrize("stream", [False, True])
def test_spans_of_a_request(tmp_path: Path, exporter: InMemorySpanExporter, *, stream: bool) -> None:
    """Request, decision and each call: GenAI attributes, our decision id, the caller's trace; no content, no secret."""
    conceal(CANARY)
    router = make_router(tmp_path, {"echo": Leaky()})
    with serving(router) as url, client(url) as http:
        body = chat("tell me of the albatross", user="ann", stream=stream)
        reply = http.post("/v1/chat/completions", json=body, headers={"traceparent": PARENT, "x-fitrouter-role": "doc"})
        assert reply.status_code == 200
        assert http.get("/v1/models").status_code == 200
        assert http.get("/albatross").status_code == 404
    spans = named(exporter)
    (server,), (decide,) = spans["POST"], spans["decide"]
    failed, answered, whole = spans["chat"]
    assert {f"{span.context.trace_id:032x}" for span in (server, decide, failed, answered, whole) if span.context} == {
        PARENT.split("-")[1]
    }
    assert f"{parent_of(server):016x}" == PARENT.split("-")[2]
    assert parent_of(whole) == id_of(server)
    assert {parent_of(span) for span in (decide, failed, answered)} == {id_of(whole)}
    decision = reply.headers["x-fitrouter-decision"]
    assert {attributes(span)["fitrouter.decision.id"] for span in (server, decide, whole)} == {decision}
    assert server.name == "POST /v1/chat/completions"
    assert attributes(server)["http.response.status_code"] == 200
    assert attributes(decide)["fitrouter.propensity"] > 0.0
    assert attributes(failed)["error.type"] == "ProviderUnavailable"
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.status.description is None
    told = attributes(answered)
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.provider.name"] == "echo"
    assert answered.name == f"chat {told['gen_ai.request.model']}"
    assert told["gen_ai.usage.output_tokens"] == 11
    assert told["gen_ai.usage.input_tokens"] == (7 if stream else 2**53)
    assert told["gen_ai.response.finish_reasons"] == (("stop",) if stream else ("other",))
    assert attributes(whole)["gen_ai.response.model"] == told["gen_ai.request.model"]
    assert attributes(whole)["fitrouter.attempts"] == 2
    assert whole.name == "chat fitrouter/auto"
    assert [span.name for span in spans["GET"]] == ["GET /v1/models", "GET"]
    everything = "".join(span.to_json() for span in exporter.get_finished_spans())
    for word in (CANARY, "canary", "albatross", "ann", '"doc"'):
        assert word not in everything
    assert not any(span.events for span in exporter.get_finished_spans())


def test_a_request_without_an_answer(tmp_path: Path, exporter: InMemorySpanExporter) -> None:
    """Every call and the request end with the type of the error, also where the decision is refused."""

    class Down(Echo):
        async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
            raise ProviderUnavailable(CANARY)

    with serving(make_router(tmp_path, {"echo": Down()}, models=cards_of(["alpha"]))) as url, client(url) as http:
        assert http.post("/v1/chat/completions", json=chat("Hello")).status_code == 502
        body = chat("Hello", model="alpha", tools=[{"type": "function", "function": {"name": "f"}}] * 129)
        http.post("/v1/chat/completions", json=body)
    spans = named(exporter)
    assert {attributes(span)["error.type"] for span in spans["chat"][:2]} == {"ProviderUnavailable"}
    assert attributes(spans["POST"][0])["error.type"] == "502"
    assert all(span.end_time for span in exporter.get_finished_spans())


async def test_upstreams_get_the_trace(exporter: InMemorySpanExporter) -> None:
    """`traceparent` of a call is its span's; without traces no header is sent."""
    call = Call(target="m", messages=({"role": "user", "content": "Hello"},))
    async with FakeOpenAI() as server:
        provider = OpenAICompatible(server.base_url, Secret(CANARY))
        span = tracing.start("chat m", kind="client")
        with span.current():
            await provider.complete(call)
        span.end()
        tracing.use(None)
        await provider.complete(call)
        await provider.aclose()
    (ended,) = exporter.get_finished_spans()
    (_, first), (_, second) = server.seen
    assert first["traceparent"].split("-")[2] == f"{id_of(ended):016x}"
    assert not {"traceparent", "tracestate", "baggage"} & {name.lower() for name in second}


def test_nothing_is_imported_without_the_variables() -> None:
    """By the router."""
    code = "import sys, fitrouter.router, fitrouter.assemble; print([m for m in sys.modules if 'telemetry' in m])"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert (ran.stdout, ran.returncode) == ("[]\n", 0), ran.stderr


def test_exporters_by_environment(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """None without a variable; those that are named otherwise; an unknown one is a warning, and no trace."""
    monkeypatch.delenv("OTEL_SDK_DISABLED", raising=False)
    for off in ({}, {"OTEL_TRACES_EXPORTER": "none"}, {"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "true"}):
        trace_by(off)()
        assert tracing.start("x") is tracing.NOTHING
    seen: list[ReadableSpan] = []

    def export(_self: ConsoleSpanExporter, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        seen.extend(spans)
        return SpanExportResult.SUCCESS

    monkeypatch.setattr(ConsoleSpanExporter, "export", export)
    end = trace_by({"OTEL_TRACES_EXPORTER": "console"})
    tracing.start("seen", fitrouter__model="m").end()
    end()
    (span,) = seen
    assert (span.name, dict(attributes(span))) == ("seen", {"fitrouter.model": "m"})
    assert span.resource.attributes["service.name"] == "fitrouter"
    assert tracing.start("x") is tracing.NOTHING
    trace_by({"OTEL_TRACES_EXPORTER": "unheard-of"})()
    assert "unheard-of" in caplog.text
