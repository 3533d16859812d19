"""Who asks: the names by which people say it and what counts as a name, the same in every adapter and the gateway."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from fitrouter.errors import InvalidRequest
from fitrouter.types import Identity

FIELDS: dict[str, tuple[str, ...]] = {
    "tenant": ("tenant",),
    "user": ("user", "user_id"),
    "role": ("role",),
    "task": ("task",),
    "session": ("session", "session_id", "thread_id", "conversation_id"),
}
"""Field of `Identity` → its names in every channel, the first that is there wins."""
NAMES = frozenset(name for names in FIELDS.values() for name in names)
"""Every name by which a channel says who asks."""
LONGEST = 512
"""Characters of a user, role, task or session."""
SHORT = 120
"""Characters of a name that nobody gave as one, such as the beginning of a task's description."""
_UNSAYABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters, and halves of characters."""


def name_of(value: object, where: str) -> str | None:
    """A value as a name; None where it says nothing: None and empty text.

    Args:
        value: text, or a whole number.
        where: it was given, for the error.

    Raises:
        InvalidRequest: it is something else, too long, or has control characters.

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
        raise InvalidRequest(f"{where}: has {len(value)} characters, allowed are {LONGEST}")
    if odd := _UNSAYABLE.search(value):
        raise InvalidRequest(f"{where}: has the control character {odd[0]!a}; give text that fits on a line")
    return str.__str__(value)


def first_said(channels: Iterable[tuple[str, object]]) -> dict[str, str]:
    """For each field of an identity the first channel that says it.

    Args:
        channels: the most explicit first, each with its place for errors, and a mapping or an object with attributes.

    Raises:
        InvalidRequest: what a channel says is no name. What comes after a channel that says a field is not looked at.

    >>> first_said([("call.", {"user": "ann"}), ("metadata.", {"user_id": ["bob"], "thread_id": 7})])
    {'user': 'ann', 'session': '7'}
    """
    found: dict[str, str] = {}
    for where, channel in channels:
        for field, names in FIELDS.items():
            if field not in found and (said := _said(channel, names, where)) is not None:
                found[field] = said
    return found


def _said(channel: object, names: tuple[str, ...], where: str) -> str | None:
    for name in names:
        value = channel.get(name) if isinstance(channel, Mapping) else getattr(channel, name, None)
        if (said := name_of(value, where + name)) is not None:
            return said
    return None


def made(own: Identity) -> dict[str, str | None]:
    """What an adapter was made with, as a channel; the default tenant says nothing."""
    return {field: value for field in FIELDS if (value := getattr(own, field)) != getattr(Identity(), field)}


def settled(data: Mapping[str, Any], further: str) -> dict[str, Any]:
    """An adapter's settings with who asks under the names of its fields, as text.

    Args:
        data: the settings, where any of the names may say it.
        further: the setting of further parameters, which may say it too.

    Raises:
        ValueError: what is said is no name; pydantic tells of it as of any setting.

    >>> settled({"user_id": 7, "model_kwargs": {"role": "cook", "seed": 1}}, "model_kwargs")
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


def short(text: object) -> str:
    r"""A name out of text that a framework gives by itself, such as an agent's role: one short line.

    >>> short("Senior\n  researcher\n")
    'Senior researcher'
    """
    return " ".join(_UNSAYABLE.sub(" ", str(text)).split())[:SHORT]
