"""Wrapper for API keys that keeps them out of logs and tracebacks."""

from __future__ import annotations

from typing import NoReturn


class Secret:
    """A key that prints as dots and cannot be pickled; only `reveal` returns it.

    >>> Secret("sk-123")
    Secret('••••')
    >>> f"{Secret('sk-123')}"
    '••••'
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The secret value."""
        return self._value

    def mask(self, text: str) -> str:
        """The text with every occurrence of the value masked.

        >>> Secret("sk-123").mask("the key sk-123 is wrong")
        'the key •••• is wrong'
        """
        return text.replace(self._value, "••••") if self._value else text

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
