"""Who asks, as far as a call of litellm says it.

The most explicit first: arguments of the call (`role=`, `task=`, `session_id=` …), its `metadata`, `user=`, the user of
the key where litellm's proxy sent it, `litellm_session_id`; and last what the provider was made with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fitrouter.errors import InvalidRequest
from fitrouter.types import Identity

__all__ = ["NAMES", "identity_of"]

FIELDS: dict[str, tuple[str, ...]] = {
    "tenant": ("tenant",),
    "user": ("user", "user_id"),
    "role": ("role",),
    "task": ("task",),
    "session": ("session", "session_id", "thread_id", "conversation_id"),
}
"""Field of `Identity` → its names, the first that is there wins."""
NAMES = frozenset(name for names in FIELDS.values() for name in names)
"""Arguments of a call that say who asks."""
_PROXY_USERS = ("user_api_key_end_user_id", "user_api_key_user_id")
"""What litellm's proxy says of who sent a request."""
_PROXY = "user_api_key_hash"
"""It stands in the metadata of every request that came through litellm's proxy with a key."""


def identity_of(
    own: Identity, litellm_params: Mapping[str, Any] | None, user: object = None, named: Mapping[str, Any] | None = None
) -> Identity:
    """The identity of one call.

    Args:
        own: what the provider was made with.
        litellm_params: as litellm hands them to providers and callbacks.
        user: what was given as `user=`.
        named: arguments of the call.

    Raises:
        InvalidRequest: a value is no text, or a client of litellm's proxy names a tenant.

    >>> identity_of(Identity(role="clerk"), {"metadata": {"thread_id": 7}}, "ann")
    Identity(tenant='default', user='ann', role='clerk', task=None, session='7')
    """
    params = litellm_params or {}
    metadata = {**_mapping(params.get("litellm_metadata")), **_mapping(params.get("metadata"))}
    named = named or {}
    if metadata.get(_PROXY) and (metadata.get("tenant") is not None or named.get("tenant") is not None):
        raise InvalidRequest("tenant: clients of litellm's proxy cannot choose it; make a provider for each tenant")
    proxied = next((name for name in _PROXY_USERS if metadata.get(name)), "")
    given = [
        ("session", "litellm_session_id", params.get("litellm_session_id")),
        ("user", proxied, metadata.get(proxied)),
        ("user", "user", user),
        *((field, name, channel.get(name)) for channel in (metadata, named) for field, name in _first(channel)),
    ]
    found = {field: value for field in FIELDS if (value := getattr(own, field)) is not None}
    return Identity(**found | {field: _text(name, value) for field, name, value in given if value is not None})


def _first(channel: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The fields that a channel says, each with the name that says it."""
    found = ((field, [name for name in names if channel.get(name) is not None]) for field, names in FIELDS.items())
    return [(field, names[0]) for field, names in found if names]


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(name: str, value: object) -> str:
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise InvalidRequest(f"{name}: {type(value).__name__} was given as identity; give text")
    return str(value)
