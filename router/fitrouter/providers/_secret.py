"""Wrapper for API keys that keeps them out of logs and tracebacks."""

from __future__ import annotations

from typing import NoReturn

from fitrouter.errors import MASK, conceal


class Secret:
    """An API key that prints as dots, is masked in messages and cannot be pickled; only `reveal` returns it.

    >>> Secret("sk-123")
    Secret('••••')
    >>> f"{Secret('sk-123')}"
    '••••'
    """

    __slots__ = ("_forms", "_value")

    def __init__(self, value: str) -> None:
        self._value = value
        self._forms = tuple(form.encode() for form in conceal(value))

    def reveal(self) -> str:
        """The secret value."""
        return self._value

    def scrub(self, received: bytes) -> bytes:
        """Mask every occurrence of the value in an upstream's answer, unless it is too short for a secret.

        >>> Secret("sk-12345").scrub(b'{"echo": "sk-12345"}').decode()
        '{"echo": "••••"}'
        """
        for form in self._forms:
            received = received.replace(form, MASK.encode())
        return received

    def __repr__(self) -> str:
        return "Secret('••••')"

    def __str__(self) -> str:
        return "••••"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret cannot be serialised; pass the name of its environment variable instead")
