"""Fields that would set the transport of provider calls, which no request may contain.

A gateway that let clients set `api_base` sent its provider keys to attackers (CVE-2024-6587).
"""

from __future__ import annotations

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
    auth azure cache caching client cookies endpoint fallback_models host models preset project project_id proxy region
    region_name timeout token transport url verify
"""
_NAMES = frozenset(_ANYWHERE.split())
_TOP_NAMES = _NAMES | frozenset(_AT_THE_TOP.split())
"""`_AT_THE_TOP` lists names that are harmless inside `metadata`."""
_PREFIXES = ("aws_", "azure_", "bedrock_", "gcp_", "litellm_", "s3_", "sagemaker_", "vertex_", "watsonx_")
_FREE = frozenset({"chat_template_kwargs", "documents", "format", "function_call", "functions", "guided_json"}) | {
    *("json_schema", "logit_bias", "messages", "prediction", "response_format", "response_schema"),
    *("structured_outputs", "tool_choice", "tools"),
}
"""Fields whose inner names belong to the caller: a schema may well have a property `headers`."""
_OF_SCHEMAS = frozenset({"$defs", "definitions", "properties"})
"""The same, wherever a schema stands: `grammar`, `nvext`, `guided_decoding`, …"""


def forbid_transport(body: dict[str, Any]) -> None:
    """Refuse fields that would set transport, at the top of a body and nested outside messages and schemas.

    Case, blanks, dots and dashes are ignored.

    Raises:
        ForbiddenField: names the field.
    """
    stack: list[tuple[str, object]] = []
    for name, value in [*body.items()]:
        if _sets_transport(name, _TOP_NAMES):
            if value != {}:
                raise _forbidden(name)
            del body[name]  # sets nothing
        if name not in _FREE:
            stack.append((name, value))
    while stack:
        top, value = stack.pop()
        if isinstance(value, dict):
            for name, inner in value.items():
                if _sets_transport(name, _NAMES):
                    raise _forbidden(f"{name[:100]!r} in {top[:100]!r}")
                if name not in _OF_SCHEMAS:
                    stack.append((top, inner))
        elif isinstance(value, list):
            stack.extend((top, inner) for inner in value)


def _sets_transport(name: str, names: frozenset[str]) -> bool:
    plain = "_".join(name[:100].casefold().replace("-", " ").replace(".", " ").split())
    return plain in names or plain.startswith(_PREFIXES)


def _forbidden(where: str) -> ForbiddenField:
    return ForbiddenField(
        f"{where[:200]}: requests cannot set this; they name a model and sampling options, while the gateway's "
        "configuration says how models are reached"
    )
