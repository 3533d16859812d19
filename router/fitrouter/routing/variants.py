"""Model variants: a system prefix or parameters that make a further arm of the same model.

Style can vary more within a model than between models, so a prefix ("Answer in three sentences") or a lower temperature
is an arm of its own, `name#variant@revision` in decisions. The caller's request takes precedence: their system text
comes after the prefix, and their parameters win. Levels of effort are variants too, `name#effort-LEVEL`, which the
posterior tells apart in cost and latency (`fitrouter.posterior.arms`); and so are further hosts, `name#host-NAME`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from fitrouter.errors import ConfigError
from fitrouter.posterior.arms import kind_of
from fitrouter.routing.parameters import effort_params, takes
from fitrouter.types import Message, ModelCard, Variant

LIMIT = 4
"""Most variants of one model, its levels of effort included; further hosts do not count."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_SYSTEM = ("system", "developer")
_CALLERS = frozenset({"functions", "function_call", "response_format", "tool_choice", "tools"}) | frozenset(
    {"messages", "metadata", "model", "n", "stream", "stream_options", "user"}
)
"""Parameters that only the caller or the router sets."""
_SAME = (("max_tokens", "max_completion_tokens"), ("reasoning_effort", "thinking"))
"""Equivalent parameters: a caller who sets one overrides a variant's other."""


def expand(cards: Iterable[ModelCard]) -> list[ModelCard]:
    """The cards of all arms: each plain model, followed by its variants.

    The arms of a model share its target, prices, context window and capabilities. Expanding again changes nothing.

    Raises:
        ConfigError: a model has too many variants, a name is invalid or used twice, or a variant sets a reserved or
            unsupported parameter.

    >>> card = ModelCard(name="m", provider="p", revision="2", variants=(Variant(name="terse", prefix="Be brief."),))
    >>> [arm.arm for arm in expand([card])]
    ['m@2', 'm#terse@2']
    """
    arms: list[ModelCard] = []
    for card in cards:
        if taken := [each.name for each in card.variants if kind_of(f"#{each.name}")[0]]:
            raise ConfigError(f"variant {taken[0]!r} of {card.name!r}: 'effort' sets levels, and 'hosts' hosts")
        if (count := len(card.effort) + len(card.variants)) > LIMIT:
            most = f"at most {LIMIT} are allowed, levels of effort included: remove some, as each has to be tried"
            raise ConfigError(f"model {card.name!r} has {count} variants; {most}")
        ways = (*_efforts(card), *card.variants)
        if (ways or card.variant) and "#" in card.name + card.revision:
            raise ConfigError(
                f"model {card.name!r}, revision {card.revision!r}: '#' separates a variant's or host's name; "
                "choose names without it, or remove the variants and hosts"
            )
        plain = msgspec.structs.replace(card, variants=(), effort=())
        arms.append(plain)
        for variant in ways:
            _check(card, variant)
            arms.append(msgspec.structs.replace(plain, target=card.target or card.name, variant=variant))
    names = [card.arm for card in arms]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"arm {name!r} is defined {names.count(name)} times; names of models and variants must be unique"
            )
    return arms


def _efforts(card: ModelCard) -> list[Variant]:
    """The variants of a model's levels of effort, each in the parameter that its family takes."""
    made = [(level, effort_params(card, level)) for level in card.effort]
    for level, params in made:
        if [other for _, other in made].count(params) > 1:
            raise ConfigError(f"model {card.name!r}: effort {level!r} is the same as another one there; leave one out")
    return [Variant(name=f"effort-{level}", params=params) for level, params in made]


def effort_level(card: ModelCard) -> str:
    """The level of effort that an arm is for; empty if it is for none."""
    kind, level = kind_of(card.arm)
    return level if kind == "effort" else ""


def called(card: ModelCard) -> str:
    """The name by which a caller requests an arm: `name` or `name#variant`, without the revision."""
    return f"{card.name}#{card.variant.name}" if card.variant else card.name


def apply(
    variant: Variant | None, messages: tuple[Message, ...], params: Mapping[str, Any]
) -> tuple[tuple[Message, ...], dict[str, Any]]:
    """Add a variant's prefix and parameters to a call. Nothing that the caller sent is changed or lost.

    The prefix goes in front of the caller's first system (or developer) text, or into a new system message. The
    variant's parameters apply where the caller sets none.

    Args:
        variant: None for the plain model.
        messages: as the caller sent them.
        params: as the caller sent them.
    """
    if variant is None:
        return messages, dict(params)
    overridden = {name for group in _SAME for name in group if any(other in params for other in group)}
    own = {name: value for name, value in variant.params.items() if name not in overridden}
    return (_prefixed(variant.prefix, messages) if variant.prefix else messages), {**own, **params}


def _prefixed(prefix: str, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Insert the prefix in front of the first system text of the messages."""
    at = next((i for i, message in enumerate(messages) if message.get("role") in _SYSTEM), None)
    if at is not None:
        content = messages[at].get("content")
        combined: object = None
        if content is None or content == "" or content == []:
            combined = prefix
        elif isinstance(content, str):
            combined = f"{prefix}\n\n{content}"
        elif isinstance(content, (list, tuple)):
            combined = [{"type": "text", "text": prefix}, *content]
        if combined is not None:
            return (*messages[:at], {**messages[at], "content": combined}, *messages[at + 1 :])
    return ({"role": "system", "content": prefix}, *messages)


def _check(card: ModelCard, variant: Variant) -> None:
    """Raise a ConfigError if a model cannot have this variant."""
    where = f"variant {variant.name!r} of {card.name!r}"
    if not _NAME.fullmatch(variant.name):
        raise ConfigError(f"{where}: use up to 40 letters, digits, '.', '_' and '-', a letter or digit first")
    if reserved := sorted(_CALLERS & set(variant.params)):
        raise ConfigError(f"{where} sets {', '.join(reserved)}, which only a caller can set: remove it")
    for name, value in sorted(variant.params.items()):
        if reason := takes(card, name, value):
            raise ConfigError(f"{where} cannot be used: {reason}. Remove it, or list it in the model's 'parameters'")
