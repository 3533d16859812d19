"""OpenTelemetry spans of requests, decisions and calls, by the semantic conventions for generative AI.

Off until `use` names a provider of tracers; a span then costs a comparison. Spans have no content, no user or role, and
no text of a caller or a provider. https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol, cast

from fitrouter.errors import masked
from fitrouter.types import FINISH_REASONS, Usage

if TYPE_CHECKING:
    from opentelemetry.trace import Span as OpenSpan
    from opentelemetry.trace import Tracer, TracerProvider


_PARENT = (b"traceparent", b"tracestate")
_MOST = 2**53
"""Larger counts than this come from a faulty provider, and OTLP holds int64 only."""
_tracer: Tracer | None = None


class Span(Protocol):
    """A span of a trace; it does nothing while traces are off."""

    def note(self, **values: Any) -> None:
        """Set attributes; `__` in a name stands for a dot, and None values are left out."""
        ...

    def name(self, name: str) -> None:
        """Rename the span."""
        ...

    def used(self, usage: Usage, finish_reason: str | None) -> None:
        """Set the tokens of a call and how it ended."""
        ...

    def end(self, error: str = "") -> None:
        """End the span, with the type of an error if there was one. Later calls change nothing."""
        ...

    def current(self) -> AbstractContextManager[None]:
        """Context in which this span is the parent of spans that start."""
        ...

    def trying(self) -> AbstractContextManager[None]:
        """Context in which this span is the parent of spans that start, and ends with the error of an exception."""
        ...


class _Nothing:
    """Stand-in for a span while traces are off."""

    def note(self, **values: Any) -> None:
        pass

    def name(self, name: str) -> None:
        pass

    def used(self, usage: Usage, finish_reason: str | None) -> None:
        pass

    def end(self, error: str = "") -> None:
        pass

    def current(self) -> _Nothing:
        return self

    def trying(self) -> _Nothing:
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


NOTHING = _Nothing()


class _Recorded:
    """A span that OpenTelemetry records."""

    def __init__(self, span: OpenSpan) -> None:
        self._span = span

    def note(self, **values: Any) -> None:
        for name, value in values.items():
            if value is not None:
                self._span.set_attribute(name.replace("__", "."), _plain(value))

    def name(self, name: str) -> None:
        self._span.update_name(masked(name))

    def used(self, usage: Usage, finish_reason: str | None) -> None:
        self.note(
            gen_ai__usage__input_tokens=usage.prompt_tokens,
            gen_ai__usage__output_tokens=usage.completion_tokens,
            gen_ai__usage__cache_read__input_tokens=usage.cached_tokens or None,
            gen_ai__usage__reasoning__output_tokens=usage.reasoning_tokens or None,
        )
        if finish_reason is not None:
            reason = finish_reason if finish_reason in FINISH_REASONS else "other"
            self._span.set_attribute("gen_ai.response.finish_reasons", [reason])

    def end(self, error: str = "") -> None:
        from opentelemetry.trace import StatusCode

        if error:
            self._span.set_attribute("error.type", masked(error))
            self._span.set_status(StatusCode.ERROR)
        self._span.end()

    def current(self) -> AbstractContextManager[None]:
        from opentelemetry.trace import use_span

        # The text of an exception may quote a prompt or a key.
        found = use_span(self._span, record_exception=False, set_status_on_exception=False)
        return cast("AbstractContextManager[None]", found)

    @contextmanager
    def trying(self) -> Iterator[None]:
        try:
            with self.current():
                yield
        except BaseException as error:
            self.end(type(error).__name__)
            raise


def use(provider: TracerProvider | None) -> None:
    """Send the spans of this process to a tracer provider; None stops it.

    The global provider is left alone: other libraries set it, and may send what it gets to their vendors.
    """
    global _tracer
    _tracer = None if provider is None else provider.get_tracer("fitrouter")


def start(name: str, *, kind: str = "internal", carrier: Iterable[tuple[bytes, bytes]] = (), **values: Any) -> Span:
    """Begin a span, as a child of the current one.

    Args:
        name: such as `chat gpt-5`.
        kind: server, client or internal.
        carrier: headers of a request, of which `traceparent` and `tracestate` name the parent.
        values: attributes, as for `Span.note`.
    """
    if _tracer is None:
        return NOTHING
    from opentelemetry.trace import SpanKind
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    given = {name.decode("latin-1"): value.decode("latin-1") for name, value in carrier if name in _PARENT}
    context = TraceContextTextMapPropagator().extract(given) if given else None
    span = _Recorded(_tracer.start_span(masked(name), context, SpanKind[kind.upper()]))
    span.note(**values)
    return span


def headers() -> dict[str, str]:
    """Return headers that pass the current span to an upstream (`traceparent`, `tracestate`); none without traces."""
    found: dict[str, str] = {}
    if _tracer is not None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        TraceContextTextMapPropagator().inject(found)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return masked(value)
    return max(-_MOST, min(value, _MOST)) if isinstance(value, int) and not isinstance(value, bool) else value
