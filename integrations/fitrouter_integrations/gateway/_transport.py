"""Names that would choose whom we call, how, and with which key: no request may set them.

A gateway that let a client set `api_base` once sent its provider keys to whoever asked (CVE-2024-6587).
"""

from __future__ import annotations

import re
from typing import Any

from fitrouter.errors import ForbiddenField

_ANYWHERE = """
    access_token allowed_openai_params api_base api_endpoint api_key api_type api_version authorization azure_endpoint
    base_model base_url callbacks context_window_fallback_dict credentials custom_llm_provider default_headers
    default_query deployment_id drop_params extra_body extra_headers extra_query failure_callback fallbacks
    force_timeout headers http_client http_headers input_callback input_cost_per_second input_cost_per_token litellm
    logger_fn max_retries mock_delay mock_response mock_timeout mock_tool_calls model_list num_retries organization
    organization_id output_cost_per_second output_cost_per_token proxies request_timeout retry_policy shared_session
    ssl_verify success_callback user_agent verify_ssl
"""
_AT_THE_TOP = """
    auth azure cache caching client cookies endpoint host project project_id proxy region region_name timeout token
    transport url verify
"""
_NAMES = frozenset(_ANYWHERE.split())
_TOP_NAMES = _NAMES | frozenset(_AT_THE_TOP.split())
"""The second half are words that are innocent inside of `metadata`."""
_PREFIXES = ("aws_", "azure_", "bedrock_", "gcp_", "litellm_", "s3_", "sagemaker_", "vertex_", "watsonx_")
_FREE = frozenset({"messages", "tools", "functions", "tool_choice", "function_call", "response_format", "logit_bias"})
"""Parts of a body whose inner names belong to the caller: schemas may well have a field `headers`."""


def forbid_transport(body: dict[str, Any]) -> None:
    """Refuse what would set transport, at the top of a body and inside of everything but messages and schemas.

    Case, blanks, dots and dashes make no difference.

    Raises:
        ForbiddenField: naming the field.
    """
    stack: list[tuple[str, object]] = []
    for name, value in body.items():
        if _sets_transport(name, _TOP_NAMES):
            raise _forbidden(name)
        if name not in _FREE:
            stack.append((name, value))
    while stack:
        top, value = stack.pop()
        if isinstance(value, dict):
            for name, inner in value.items():
                if _sets_transport(name, _NAMES):
                    raise _forbidden(f"{name[:100]!r} in {top[:100]!r}")
                stack.append((top, inner))
        elif isinstance(value, list):
            stack.extend((top, inner) for inner in value)


def _sets_transport(name: str, names: frozenset[str]) -> bool:
    plain = re.sub(r"[\s\-.]+", "_", name[:100].strip().casefold())
    return plain in names or plain.startswith(_PREFIXES)


def _forbidden(where: str) -> ForbiddenField:
    return ForbiddenField(
        f"{where[:200]}: a request cannot set this; it names a model and sampling options, and the configuration of "
        "the gateway says how models are reached"
    )
