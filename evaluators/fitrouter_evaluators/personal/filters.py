"""Filters of leaderboards: which models are ranked, by price and context window, and for which prompts, by domain.

A ranking is computed among what fits; it is no part of a larger table. The price of a model is that of a million tokens
of which three in four are the prompt's, as Artificial Analysis mixes them. The domain of a prompt is the one, of those
in the suites' pool, whose examples it is nearest to by its text features, which the log has where it has no text.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from fitrouter.context.encoders import Encoder, get_encoder
from fitrouter.context.features import TEXT_DIM, context_features, read_prompt
from fitrouter.errors import InvalidRequest
from fitrouter.types import Floats, ModelCard, Prices, Request

MARGIN = 0.05
"""Difference of the cosines with the two nearest domains from which a prompt is of the first; `docs/suite.md`."""
LEAST = 1.0 / 3.0
"""Share of examples that must be told right, so that an encoder tells domains."""
_MOST = 1e9


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """What a leaderboard is restricted to.

    Raises:
        InvalidRequest: names the filter and what is allowed.
    """

    domain: str | None = None
    """Domain of the prompts that models are ranked for."""
    max_price: float | None = None
    """Most USD per million tokens, three in four of them the prompt's."""
    min_context: int | None = None
    """Fewest tokens of prompt and answer together."""

    def __post_init__(self) -> None:
        if self.domain is not None and self.domain not in (allowed := tuple(examples())):
            raise InvalidRequest(f"domain: got {self.domain[:60]!r}; give one of {', '.join(allowed)}")
        if self.max_price is not None and not 0.0 <= self.max_price <= _MOST:
            raise InvalidRequest(f"max_price: got {self.max_price!r}; give USD per million tokens, 0 or more")
        if self.min_context is not None and not 1 <= self.min_context <= _MOST:
            raise InvalidRequest(f"min_context: got {self.min_context!r}; give tokens, a whole number from 1")

    def said(self) -> str:
        """Describe them in a few words; empty without any."""
        found = [
            "" if self.domain is None else f"prompts about {self.domain}",
            "" if self.max_price is None else f"at most USD {self.max_price:g} per million tokens",
            "" if self.min_context is None else f"a context of {self.min_context:,} tokens or more",
        ]
        return ", ".join(each for each in found if each)

    def models(self, cards: Mapping[str, ModelCard], unknown: Iterable[str] = ()) -> tuple[list[str], dict[str, str]]:
        """Return the models that fit, and why the others are left out.

        Args:
            cards: of the models, by name.
            unknown: models whose context window nobody has configured.

        Raises:
            InvalidRequest: none fits.
        """
        windows, left = set(unknown), dict[str, str]()
        for name, card in cards.items():
            if self.max_price is not None and not card.prices.known:
                left[name] = "no price is configured for it"
            elif self.max_price is not None and (usd := price(card.prices)) > self.max_price:
                left[name] = f"it costs USD {usd:g} per million tokens"
            elif self.min_context is not None and name in windows:
                left[name] = "no context window is configured for it"
            elif self.min_context is not None and card.context_window < self.min_context:
                left[name] = f"its context has {card.context_window:,} tokens"
        if len(left) == len(cards):
            reasons = "; ".join(f"{name}: {why}" for name, why in left.items())
            raise InvalidRequest(f"no model is left: {reasons[:1000]}; change max_price or min_context")
        return [name for name in cards if name not in left], left


def parsed(query: Mapping[str, str]) -> Filters:
    """Filters from texts, as of a query; other names are left alone.

    Raises:
        InvalidRequest: names the filter and what is allowed.
    """
    found: dict[str, float | int | str] = {}
    for name, kind, allowed in (("max_price", float, "a number"), ("min_context", int, "a whole number")):
        if text := query.get(name):
            try:
                found[name] = kind(text[:30])
            except ValueError:
                raise InvalidRequest(f"{name}: got {text[:60]!r}; give {allowed}") from None
    if text := query.get("domain"):
        found["domain"] = text
    return Filters(**found)  # type: ignore[arg-type]


def price(prices: Prices) -> float:
    """USD of a million tokens, three in four of them the prompt's; fees of a call are not in it.

    >>> price(Prices(input=1.0, output=5.0))
    2.0
    """
    return (3.0 * prices.input + prices.output) / 4.0


@functools.cache
def examples() -> dict[str, tuple[str, ...]]:
    """The pool's prompts by domain."""
    from fitrouter_evaluators.personal.suite.suite import POOL  # suites import leaderboards

    return POOL.prompts


class Found(NamedTuple):
    """How well an encoder tells the domains of the pool's prompts, each by the others."""

    told: float
    """Share of prompts that are told."""
    right: float
    """Share of these that are told right."""


class Domains:
    """Tells domains by the nearest examples.

    Args:
        encoder: that requests are encoded with.
    """

    def __init__(self, encoder: Encoder) -> None:
        self.names = tuple(examples())
        texts = [text for each in examples().values() for text in each]
        self._known = dict(zip(texts, (name for name, each in examples().items() for _ in each), strict=True))
        self._encoder = encoder
        owner = np.repeat(np.arange(len(self.names)), [len(each) for each in examples().values()])
        x = _text(self._contexts(texts))
        sums = np.eye(len(self.names))[owner].T @ x
        self._centres = _unit(sums)
        near = x @ self._centres.T
        near[np.arange(len(x)), owner] = np.vecdot(x, _unit(sums[owner] - x))  # each by the other examples
        first, told = near.argmax(axis=1), _apart(near) >= MARGIN
        right = float((first == owner)[told].mean()) if told.any() else 0.0
        self.measured = Found(float(told.mean()), right)

    def of(self, x: Floats) -> list[str]:
        """Domains of contexts, float64[n, d]; empty where none is nearer than all others.

        Raises:
            InvalidRequest: the encoder does not tell domains.
        """
        if self.measured.right < LEAST:
            raise InvalidRequest(
                f"domain: the encoder {self._encoder.id!r} does not tell what a prompt is about: of the pool's prompts "
                f"{self.measured.right:.0%} are told right; set 'encoder: static', or leave 'domain' out"
            )
        near = _text(x) @ self._centres.T
        return [
            self.names[k] if apart >= MARGIN else ""
            for k, apart in zip(near.argmax(axis=1).tolist(), _apart(near), strict=True)
        ]

    def of_texts(self, texts: Iterable[str]) -> list[str]:
        """Domains of prompts: those of the pool are known, others are told if the encoder tells domains."""
        asked = list(texts)
        told = self.of(self._contexts(asked)) if asked and self.measured.right >= LEAST else [""] * len(asked)
        return [self._known.get(text, name) for text, name in zip(asked, told, strict=True)]

    def _contexts(self, texts: Iterable[str]) -> Floats:
        read = [read_prompt(Request(messages=({"role": "user", "content": text},))) for text in texts]
        return np.array([context_features(each, self._encoder) for each in read])


@functools.lru_cache(maxsize=4)
def domains(encoder: str) -> Domains:
    """Domains by a named encoder; the first call takes seconds."""
    return Domains(get_encoder(encoder))


def _text(x: Floats) -> Floats:
    """The text blocks of contexts, scaled to unit length."""
    return _unit(x[:, 1 : 1 + TEXT_DIM])


def _unit(x: Floats) -> Floats:
    found: Floats = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    return found


def _apart(near: Floats) -> Floats:
    """Difference of the two largest of each row."""
    two = np.partition(near, -2, axis=1)
    return two[:, -1] - two[:, -2]
