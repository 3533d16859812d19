"""Circuit breakers: models and providers that fail are excluded from decisions until a probe of them is answered.

A breaker is closed, open for a cooldown, or half-open: one call at a time probes, and its answer closes the breaker.
Its state belongs to a process and a tenant, whose own calls it is learnt from; each decision logs which models it
excluded, and why. How long a breaker stays open depends on the failure (`_Cooldown`), and doubles with each probe that
fails. Failures that a caller can provoke, such as a content filter's 403, count less: answers to others keep the
breaker closed. What tells an outage from a model that fails now and then is failures in a row.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from fitrouter.errors import (
    CheckFailed,
    ContextOverflow,
    KeyRefused,
    NotCalled,
    ProviderRejected,
    ProviderTimeout,
    ProviderUnavailable,
    QuotaExhausted,
    RateLimited,
)
from fitrouter.providers.failures import kind_of
from fitrouter.types import ModelCard

_log = logging.getLogger("fitrouter.models")

TRIP = 8.0
"""Weight of failures that opens a breaker. Each answer takes three quarters of what there is, so that in effect they
are failures in a row: of a model that fails half of its calls at random eight in a row are rare, and it still answers
the other half, which matters where all models do so (`make bench-faults`, row 9); one that fails nine in ten soon gets
there."""
_SOON = 2.0
"""Weight of failures that cost a client's time."""
_BROKEN = 6.2
"""Weight of a stream that broke off, whose beginning counted as an answer: three in a row open a breaker."""
LONGEST_S = 900.0
"""Longest cooldown that a provider's Retry-After sets."""
TENANTS = 10_000
"""Tenants with breakers."""
SUSPECT_S = 120.0
"""Time within which a second model must be refused for the account's sake before the whole provider is stopped."""
RETRIES = 20.0
"""Size of a provider's retry budget."""


class _Cooldown(NamedTuple):
    reason: str
    first_s: float
    longest_s: float
    weight: float = 1.0
    """Of a failure; see `TRIP`."""
    provider: bool = False
    """Whether it concerns all models of the provider."""


_KEY = _Cooldown("its key is refused", 60.0, 600.0, TRIP, provider=True)
_QUOTA = _Cooldown("its quota is exhausted", 60.0, 900.0, TRIP, provider=True)
_RATE = _Cooldown("rate limited", 2.0, 60.0, TRIP / 3.0)
_OF_ACCOUNT: dict[type[BaseException], _Cooldown] = {KeyRefused: _KEY, QuotaExhausted: _QUOTA, RateLimited: _RATE}
_REFUSAL = _Cooldown("refuses requests", 5.0, 120.0, TRIP / 15.0)
_TIMEOUT = _Cooldown("does not answer in time", 5.0, 120.0, _SOON)
_FAULT = _Cooldown("fails", 5.0, 120.0)


def _cooldown(error: Exception) -> _Cooldown:
    """Return the cooldown for a failure; empty and malformed answers are faults, as are 5xx and lost connections."""
    if isinstance(error, (ProviderTimeout, TimeoutError)):
        return _TIMEOUT
    status = error.status if isinstance(error, ProviderUnavailable) else None
    # The message of another status may repeat a prompt, which must not open the breaker of a provider.
    if (kind := kind_of(error)) in _OF_ACCOUNT and status in {None, 401, 402, 429}:
        return _OF_ACCOUNT[kind]
    return _REFUSAL if status is not None and 400 <= status < 500 and status != 408 else _FAULT


class _Breaker:
    """Circuit breaker of one model or one provider."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.reason = ""
        self.until: float | None = None
        """End of the cooldown; None while closed."""
        self.probing = False
        self.suspects: dict[str, float] = {}
        """Of a provider: model that was refused for the account's sake → when."""
        self._score = 0.0
        self._failed_probes = 0

    def left_s(self, now: float) -> float | None:
        """Seconds until a call is allowed, at least 1 while a probe is under way; None if one is allowed now."""
        if self.until is None or (self.until <= now and not self.probing):
            return None
        return max(self.until - now, 1.0)

    def answered(self, probe: bool, now: float) -> None:
        """Count an answer; an open breaker is closed by a probe's answer only, as other calls began before it opened.

        A Retry-After that another call got during the probe stands.
        """
        self.suspects.clear()
        if probe and (self.until or 0.0) <= now:
            self.until, self._score, self._failed_probes = None, 0.0, 0
        elif self.until is None:
            self._score *= 0.25

    def failed(self, cooldown: _Cooldown, retry_after_s: float | None, now: float, probe: bool) -> None:
        """Count a failure."""
        if self.until is not None and not probe:
            if retry_after_s:  # of a call that was made before it opened
                self.until = max(self.until, now + min(retry_after_s, LONGEST_S))
            return
        self._score += cooldown.weight
        if probe or retry_after_s or self._score >= TRIP - 1e-9:
            self._failed_probes += probe
            wait_s = min(cooldown.first_s * 2.0 ** min(self._failed_probes, 30), cooldown.longest_s)
            wait_s = min(retry_after_s, LONGEST_S) if retry_after_s else wait_s
            self.until = max(self.until or 0.0, now + wait_s)
            self.reason = cooldown.reason


class Entry(NamedTuple):
    """A call that the breakers let through."""

    arm: str
    probes: tuple[_Breaker, ...]
    """The open breakers that it probes."""


class Breakers:
    """Circuit breakers of all models and providers, and the providers' retry budgets.

    Args:
        cards: arm → card. Variants and revisions that call the same model share its breaker.
        retry_share: calls to a provider that has already failed the same request, for each other call of it.
    """

    def __init__(self, cards: Mapping[str, ModelCard], retry_share: float = 0.5) -> None:
        self._providers: dict[str, _Breaker] = {}
        self._models: dict[tuple[str, str], _Breaker] = {}
        self._of: dict[str, tuple[_Breaker, _Breaker]] = {}
        self._shown: Mapping[str, ModelCard] = {}
        self._retry_share, self._retries = retry_share, dict[str, float]()
        self.renew(cards)

    def renew(self, cards: Mapping[str, ModelCard]) -> None:
        """Switch to other models; earlier ones keep their breakers, for calls that are under way."""
        for arm, card in cards.items():
            model = self._models.setdefault(_model(card), _Breaker(card.name))
            provider = self._providers.setdefault(card.provider, _Breaker(card.provider))
            self._of[arm] = model, provider
            self._retries.setdefault(card.provider, RETRIES)
        self._shown = cards

    def excluded(self, arms: Iterable[str]) -> list[tuple[str, str]]:
        """Return (arm, reason) for the arms that must not be called now."""
        now = time.monotonic()
        return [(arm, f"breaker: {reason}") for arm in arms if (reason := self._reason(arm, now))]

    def retry_after_s(self, arms: Iterable[str]) -> float:
        """Seconds until the first of some excluded arms may be called."""
        now = time.monotonic()
        return min((max(b.left_s(now) or 0.0 for b in self._of[arm]) for arm in arms if arm in self._of), default=1.0)

    def report(self) -> dict[str, str]:
        """Return why models, and providers as `provider NAME`, must not be called now, by name."""
        now = time.monotonic()
        found = {}
        for model, provider in [self._of[arm] for arm in self._shown]:
            for breaker, name in ((model, model.name), (provider, f"provider {provider.name}")):
                if breaker.left_s(now) is not None:
                    found[name] = breaker.reason
        return found

    def enter(self, arm: str, *, retry: bool = False) -> Entry:
        """Let a call through; give its result to `leave`. The first call after a cooldown becomes the probe.

        Args:
            arm: to be called.
            retry: whether its provider has already failed the same request.

        Raises:
            NotCalled: a breaker is open, or the provider's retry budget is spent.
        """
        breakers, now = self._of[arm], time.monotonic()
        if reason := self._reason(arm, now):
            raise NotCalled(f"{arm!r} is not called: {reason}")
        name = breakers[1].name
        if not retry:
            self._retries[name] = min(self._retries[name] + self._retry_share, RETRIES)
        elif self._retries[name] < 1.0:
            raise NotCalled(f"{arm!r} is not called: too many retries at {name!r}")
        else:
            self._retries[name] -= 1.0
        probes = tuple(breaker for breaker in breakers if breaker.until is not None)
        for breaker in probes:
            breaker.probing = True
        return Entry(arm, probes)

    def confirm(self, entry: Entry) -> None:
        """Check that no breaker has opened while a call that was let through waited for a slot.

        Raises:
            NotCalled: one has.
        """
        if any(breaker.until is not None and breaker not in entry.probes for breaker in self._of[entry.arm]):
            reason = self._reason(entry.arm, time.monotonic()) or "one call probes it"
            raise NotCalled(f"{entry.arm!r} is not called: {reason}")

    def leave(self, entry: Entry, error: BaseException | None, *, counts: bool = True) -> None:
        """Count the result of a call.

        Args:
            entry: from `enter`.
            error: that ended it; None for an answer. A request that the provider rejected is an answer, too.
            counts: False for a failure that says nothing about the model, such as a short deadline of the caller's.
        """
        for breaker in entry.probes:
            breaker.probing = False
        if error is None or isinstance(error, (CheckFailed, ProviderRejected, ContextOverflow)):
            for breaker in self._of[entry.arm]:
                breaker.answered(breaker in entry.probes, time.monotonic())
        elif counts and isinstance(error, Exception) and not isinstance(error, NotCalled):
            self._failed(entry.arm, error, entry.probes)

    def broke_off(self, arm: str, error: Exception) -> None:
        """Count the failure of a stream after its beginning, which was counted as an answer."""
        self._failed(arm, error, (), _BROKEN)

    def _failed(self, arm: str, error: Exception, probes: tuple[_Breaker, ...], least: float = 0.0) -> None:
        cooldown, now = _cooldown(error), time.monotonic()
        cooldown = cooldown._replace(weight=max(cooldown.weight, least))
        model, provider = self._of[arm]
        if cooldown.provider and provider not in probes and not self._is_the_account(model, provider, now):
            cooldown = cooldown._replace(weight=TRIP / 3.0, provider=False)
        breaker = provider if cooldown.provider else model
        breaker.failed(cooldown, getattr(error, "retry_after_s", None), now, breaker in probes)
        if breaker.until is not None and breaker.until > now:
            whose = f"provider {breaker.name}" if cooldown.provider else f"model {breaker.name}"
            wait_s = breaker.until - now
            how = kind_of(error).__name__  # not its words: they may repeat a prompt
            _log.warning("%s is not called for %.0f s: %s (%s)", whose, wait_s, cooldown.reason, how)

    def _is_the_account(self, model: _Breaker, provider: _Breaker, now: float) -> bool:
        """Whether a refusal for the account's sake stops a provider: its only model's, or the second model's in a row.

        One model may be forbidden to a key, and one large request more than what is left of a balance.
        """
        provider.suspects[model.name] = now
        provider.suspects = {name: then for name, then in provider.suspects.items() if now - then <= SUSPECT_S}
        models = {_model(card) for card in self._shown.values() if card.provider == provider.name}
        return len(models) == 1 or len(provider.suspects) > 1

    def _reason(self, arm: str, now: float) -> str:
        """Reason why an arm must not be called now; empty if it may be called."""
        for breaker, whose in zip(self._of[arm], ("", "provider "), strict=True):
            if (left_s := breaker.left_s(now)) is not None:
                waits = "one call probes it" if breaker.probing else f"tried again in {left_s:.0f} s"
                return f"{whose}{breaker.reason}; {waits}"
        return ""


class TenantBreakers:
    """Circuit breakers per tenant, so that a tenant whose requests fail excludes no model for another tenant.

    Args:
        cards: arm → card.
        retry_share: see `Breakers`.
    """

    def __init__(self, cards: Mapping[str, ModelCard], retry_share: float = 0.5) -> None:
        self._cards, self._retry_share = cards, retry_share
        self._tenants: OrderedDict[str, Breakers] = OrderedDict()

    def renew(self, cards: Mapping[str, ModelCard]) -> None:
        """Switch to other models."""
        self._cards = cards
        for breakers in self._tenants.values():
            breakers.renew(cards)

    def of(self, tenant: str) -> Breakers:
        """Return the breakers of a tenant; beyond `TENANTS`, those of the tenant unused for longest are dropped."""
        if tenant not in self._tenants:
            self._tenants[tenant] = Breakers(self._cards, self._retry_share)
            if len(self._tenants) > TENANTS:
                self._tenants.popitem(last=False)
        self._tenants.move_to_end(tenant)
        return self._tenants[tenant]

    def report(self) -> dict[str, str]:
        """Return why models, and providers as `provider NAME`, must not be called now for some tenant, by name."""
        return {name: reason for each in list(self._tenants.values()) for name, reason in each.report().items()}


def _model(card: ModelCard) -> tuple[str, str]:
    return card.provider, card.target or card.name
