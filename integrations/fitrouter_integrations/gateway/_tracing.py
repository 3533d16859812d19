"""Traces of the gateway: exporters by OpenTelemetry's environment variables."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from importlib import metadata
from importlib.util import find_spec

from fitrouter.errors import in_words
from fitrouter.providers import tracing

_log = logging.getLogger("fitrouter.gateway")
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def trace_by(environ: Mapping[str, str]) -> Callable[[], None]:
    """Start tracing if OTEL_TRACES_EXPORTER, or an endpoint of OTLP, is set; returns a function that ends it.

    Sampler, limits, batches, resource and the exporter's own settings are read by the SDK from the standard variables.
    Without the extra `otel`, or with an unusable setting, a warning is logged and the gateway runs without traces.
    """
    wanted = _exporters(environ)
    if not wanted:
        return lambda: None
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        _log.warning("no traces: OTEL_ variables name an exporter; pip install 'fitrouter[otel]'")
        return lambda: None
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    try:
        named = "OTEL_SERVICE_NAME" in environ or "service.name=" in environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        service = {"service.version": metadata.version("fitrouter")} | ({} if named else {"service.name": "fitrouter"})
        provider = TracerProvider(resource=Resource.create(service), shutdown_on_exit=False)
        for name in wanted:
            (found,) = metadata.entry_points(group="opentelemetry_traces_exporter", name=name)
            provider.add_span_processor(BatchSpanProcessor(found.load()()))
    except Exception as error:  # noqa: BLE001 - requests matter more than their traces
        _log.warning("no traces: the exporters %s cannot be used (%s)", ", ".join(wanted), in_words(error))
        return lambda: None
    tracing.use(provider)

    def end() -> None:
        tracing.use(None)
        provider.shutdown()

    return end


def _exporters(environ: Mapping[str, str]) -> list[str]:
    """Names of the wanted exporters, entry points of the group `opentelemetry_traces_exporter`."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    default = "otlp" if any(environ.get(name, "").strip() for name in _ENDPOINTS) else "none"
    listed = environ.get("OTEL_TRACES_EXPORTER", "").strip() or default
    protocol = next((environ[name] for name in _PROTOCOLS if environ.get(name, "").strip()), "http/protobuf")
    otlp = "otlp_proto_grpc" if protocol.strip() == "grpc" else "otlp_proto_http"
    names = [name.strip() for name in listed.split(",")]
    return [otlp if name == "otlp" else name for name in names if name not in {"", "none"}]
