"""Protocol of providers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Protocol

from fitrouter.providers._secret import Secret
from fitrouter.types import Call, Chunk, Completion

if TYPE_CHECKING:
    from fitrouter.config import ProviderConfig


class Provider(Protocol):
    """Answers chat completions. One instance serves many models and concurrent calls."""

    async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
        """Return a completion, or an iterator of chunks if `call.stream` is set.

        Cancelling the awaiting task, or closing the iterator, ends the upstream request.

        Raises:
            ProviderRejected: the request itself is at fault; no other model is tried.
            ProviderUnavailable: this model cannot answer now.
            ProviderTimeout: the upstream timed out; the router itself enforces `call.timeout_s`.
        """
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...


class Installed(Provider, Protocol):
    """A provider of another package: the class that its entry point of the group `fitrouter.providers` names."""

    @classmethod
    def from_settings(cls, settings: ProviderConfig, key: Secret | None, headers: Mapping[str, str]) -> Provider:
        """Build it from its section of the configuration. No connection is opened.

        Args:
            settings: the section; `options` may hold anything.
            key: value of the variable `api_key_env`, masked; None without one.
            headers: of every call, with their variables filled in.

        Raises:
            ConfigError: a setting is missing or invalid.
        """
        ...
