"""The identity of a litellm call.

Channels, the most explicit first: arguments of the call (`role=`, `task=`, `session_id=` …), its `metadata`, `user=`,
the user of the key in litellm's proxy, `litellm_session_id`, and the provider's own settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fitrouter.errors import InvalidRequest
from fitrouter.types import Identity
from fitrouter_integrations._identity import channel_of, first_said

_PROXY_USERS = ("user_api_key_end_user_id", "user_api_key_user_id")
"""Metadata keys in which litellm's proxy names the user of a request."""
_ADMIN = "default_user_id"
"""The proxy's name for holders of its master key, which identifies nobody."""
_PROXY = "user_api_key_hash"
"""Metadata key of requests that came through litellm's proxy with a key."""


def identity_of(
    own: Identity, litellm_params: Mapping[str, Any] | None, user: object = None, named: Mapping[str, Any] | None = None
) -> Identity:
    """Return the identity of one call.

    Args:
        own: the provider's own settings.
        litellm_params: as litellm passes them to providers and callbacks.
        user: the argument `user=`.
        named: arguments of the call.

    Raises:
        InvalidRequest: a channel has an invalid name, or a client of litellm's proxy names a tenant.

    >>> identity_of(Identity(role="clerk"), {"metadata": {"thread_id": 7}}, "ann")
    Identity(tenant='default', user='ann', role='clerk', task=None, session='7', run=None)
    """
    params = litellm_params or {}
    metadata = {**_mapping(params.get("litellm_metadata")), **_mapping(params.get("metadata"))}
    named = named or {}
    if metadata.get(_PROXY) and (metadata.get("tenant") is not None or named.get("tenant") is not None):
        raise InvalidRequest("tenant: clients of litellm's proxy cannot choose it; register a provider for each tenant")
    channels = [
        ("", named),
        ("metadata.", metadata),
        ("", {"user": user}),
        *(
            (f"metadata.{name}: ", {"user": metadata.get(name)})
            for name in _PROXY_USERS
            if metadata.get(name) != _ADMIN
        ),
        ("litellm_", {"session_id": params.get("litellm_session_id")}),
        ("", channel_of(own)),
    ]
    return Identity(**first_said(channels))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
