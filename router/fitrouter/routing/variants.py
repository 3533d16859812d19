"""Variants: further ways of asking a model, each an arm of its own.

Style varies more within a model than between models, so a prefix ("Answer in three sentences") or a lower temperature
is worth a choice. A variant is `name#variant@revision` in decisions; what is asked for stays the caller's: their system
text comes after the prefix, and their parameters win.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from fitrouter.errors import ConfigError
from fitrouter.routing.parameters import takes
from fitrouter.types import Message, ModelCard, Variant

LIMIT = 4
"""Variants of one model."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_SYSTEM = ("system", "developer")
_CALLERS = frozenset({"functions", "function_call", "response_format", "tool_choice", "tools"}) | frozenset(
    {"messages", "metadata", "model", "n", "stream", "stream_options", "user"}
)
"""What a variant must not set: it is the caller's business, or the router's."""
_SAME = (("max_tokens", "max_completion_tokens"), ("reasoning_effort", "thinking"))
"""Parameters that say the same: a caller who gives one has given the other."""


def expand(cards: Iterable[ModelCard]) -> list[ModelCard]:
    """The cards of all arms: each model as it is, then its variants, in the given order of models.

    The arms of a model share its target, prices, window and capabilities. To expand again changes nothing.

    Raises:
        ConfigError: a model has too many variants, a name cannot be used or is taken, or a variant sets what is not
            its own or what the model does not take.

    >>> card = ModelCard(name="m", provider="p", revision="2", variants=(Variant(name="terse", prefix="Be brief."),))
    >>> [arm.arm for arm in expand([card])]
    ['m@2', 'm#terse@2']
    """
    arms: list[ModelCard] = []
    for card in cards:
        if len(card.variants) > LIMIT:
            raise ConfigError(
                f"model {card.name!r} has {len(card.variants)} variants; allowed are {LIMIT}: leave some out"
            )
        if card.variants and "#" in card.name + card.revision:
            raise ConfigError(
                f"model {card.name!r}, revision {card.revision!r}: '#' is what separates a variant's name; "
                "choose names without it, or give no variants"
            )
        plain = msgspec.structs.replace(card, variants=())
        arms.append(plain)
        for variant in card.variants:
            _check(card, variant)
            arms.append(msgspec.structs.replace(plain, target=card.target or card.name, variant=variant))
    names = [card.arm for card in arms]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"arm {name!r} is there {names.count(name)} times; names of models and variants must differ"
            )
    return arms


def called(card: ModelCard) -> str:
    """What a caller writes to pin an arm: the model's name, with its variant but without its revision."""
    return f"{card.name}#{card.variant.name}" if card.variant else card.name


def apply(
    variant: Variant | None, messages: tuple[Message, ...], params: Mapping[str, Any]
) -> tuple[tuple[Message, ...], dict[str, Any]]:
    """The messages and parameters of a call in a variant's way. Nothing that the caller gave is changed or lost.

    The prefix goes in front of the caller's first system (or developer) text, whatever its form; it is a message of its
    own where there is none. Parameters are the caller's, and the variant's where the caller gives none.

    Args:
        variant: None for the plain model, which is asked as the caller does.
        messages: as the caller sent them.
        params: as the caller sent them.
    """
    if variant is None:
        return messages, dict(params)
    given = {twin for group in _SAME for twin in group if any(name in params for name in group)}
    own = {name: value for name, value in variant.params.items() if name not in given}
    return (_led(variant.prefix, messages) if variant.prefix else messages), {**own, **params}


def _led(prefix: str, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The messages with the prefix in front of the first system text."""
    at = next((i for i, message in enumerate(messages) if message.get("role") in _SYSTEM), None)
    if at is not None:
        content = messages[at].get("content")
        led: object = None
        if content is None or content == "" or content == []:
            led = prefix
        elif isinstance(content, str):
            led = f"{prefix}\n\n{content}"
        elif isinstance(content, (list, tuple)):
            led = [{"type": "text", "text": prefix}, *content]
        if led is not None:
            return (*messages[:at], {**messages[at], "content": led}, *messages[at + 1 :])
    return ({"role": "system", "content": prefix}, *messages)


def _check(card: ModelCard, variant: Variant) -> None:
    """Raise where a variant cannot be one of this model."""
    where = f"variant {variant.name!r} of {card.name!r}"
    if not _NAME.fullmatch(variant.name):
        raise ConfigError(f"{where}: allowed are up to 40 letters, digits, '.', '_' and '-', a letter or digit first")
    if foreign := sorted(_CALLERS & set(variant.params)):
        raise ConfigError(f"{where} sets {', '.join(foreign)}, which only a caller may: leave it out")
    for name, value in sorted(variant.params.items()):
        if reason := takes(card, name, value):
            raise ConfigError(
                f"{where} cannot be asked for: {reason}. Leave it out, or list it in the model's 'parameters'"
            )
