"""Identity fields: their names in requests and what counts as a name, for all adapters and the gateway."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from fitrouter.errors import InvalidRequest
from fitrouter.types import Identity

FIELDS: dict[str, tuple[str, ...]] = {
    "tenant": ("tenant",),
    "user": ("user", "user_id"),
    "role": ("role",),
    "task": ("task",),
    "session": ("session", "session_id", "thread_id", "conversation_id"),
    "run": ("run", "run_id"),
}
"""Field of `Identity` → its names in every channel; the first one present is used."""
NAMES = frozenset(name for names in FIELDS.values() for name in names)
"""All names of identity fields."""
TIER = {"tier": ("tier",)}
"""The cost tier of a request, read from the same channels."""
SETTINGS = NAMES | {"tier"}
"""Names of all that an adapter takes besides parameters of models."""
LONGEST = 512
"""Maximum length of a user, role, task or session."""
SHORT = 120
"""Maximum length of a derived name, such as the beginning of a task's description."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters and lone surrogates."""


def name_of(value: object, where: str) -> str | None:
    """Return a value as a valid name, None for None and empty text.

    Args:
        value: text or an integer.
        where: its place, for the error.

    Raises:
        InvalidRequest: it has another type, is too long, or has control characters.

    >>> name_of(7, "user"), name_of("", "user")
    ('7', None)
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise InvalidRequest(f"{where}: {type(value).__name__} was given; give text or a whole number")
    if len(value) > LONGEST:
        raise InvalidRequest(f"{where}: has {len(value)} characters; at most {LONGEST} are allowed")
    if odd := _CONTROL.search(value):
        raise InvalidRequest(f"{where}: has the control character {odd[0]!a}; give one line of text")
    return str.__str__(value)


def first_said(
    channels: Iterable[tuple[str, object]], fields: Mapping[str, tuple[str, ...]] = FIELDS
) -> dict[str, str]:
    """Merge identity fields from several channels, taking each from the first channel that has it.

    Args:
        channels: the most explicit first; each a place for errors, and a mapping or an object with attributes.
        fields: to look for, each with its names.

    Raises:
        InvalidRequest: a value is not a valid name; values that are not used are not checked.

    >>> first_said([("call.", {"user": "ann"}), ("metadata.", {"user_id": ["bob"], "thread_id": 7})])
    {'user': 'ann', 'session': '7'}
    """
    found: dict[str, str] = {}
    for where, channel in channels:
        if channel is None:
            continue
        mapping = channel if isinstance(channel, Mapping) else None
        for field, names in fields.items():
            for name in names if field not in found else ():
                value = getattr(channel, name, None) if mapping is None else mapping.get(name)
                if field == "run" and callable(value):  # a method of an object that is a channel
                    continue
                value = str(value) if isinstance(value, UUID) else value  # as frameworks name their runs
                if value is not None and (said := name_of(value, where + name)) is not None:
                    found[field] = said
                    break
    return found


def channel_of(own: Identity) -> dict[str, str | None]:
    """Return the identity that an adapter was constructed with as a channel, without the default tenant."""
    return {field: value for field in FIELDS if (value := getattr(own, field)) != getattr(Identity(), field)}


def canonical_settings(data: Mapping[str, Any], further: str) -> dict[str, Any]:
    """Return an adapter's settings with all identity fields as text under their canonical names.

    Args:
        data: the settings, with identity fields under any of their names.
        further: the setting of further parameters, which may hold identity fields too.

    Raises:
        ValueError: a value is not a valid name; pydantic reports it like any invalid setting.

    >>> canonical_settings({"user_id": 7, "model_kwargs": {"role": "cook", "seed": 1}}, "model_kwargs")
    {'model_kwargs': {'seed': 1}, 'user': '7', 'role': 'cook'}
    """
    more = data.get(further)
    try:
        found = first_said([("", data), (f"{further}.", more)])
    except InvalidRequest as error:
        raise ValueError(str(error)) from None
    rest = {name: value for name, value in data.items() if name not in NAMES}
    if isinstance(more, Mapping):
        rest[further] = {name: value for name, value in more.items() if name not in NAMES}
    return rest | found


def one_line(text: object) -> str:
    r"""Shorten free text of a framework, such as an agent's role, to a name on one line.

    >>> one_line("Senior\n  researcher\n")
    'Senior researcher'
    """
    return " ".join(_CONTROL.sub(" ", str(text)).split())[:SHORT]
