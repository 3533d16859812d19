"""Service health: whether requests are answered, and if not, whose are not and why.

Console, `fitrouter top`, `/readyz`, the metric `fitrouter_outage` and its alert show what `ServiceHealth` finds.
Each process counts all requests: its own when they end, even if they cannot be logged, and those of other workers and
gateways as it follows the journal, so that all say the same within a fraction of a second, without another store.
"""

from __future__ import annotations

import bisect
import math
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from fitrouter.hooks import Happened, Notice
from fitrouter.stores.figures import many
from fitrouter.types import NOT_CALLED, OUTCOMES, Event, Execution, Refusal

WINDOW_S = 300.0
_SLOT_S = 10.0
ROW = 5
"""Unanswered requests in a row that begin an outage."""
SHARE = 0.05
"""Share of the requests of `WINDOW_S` that begins one, if they are at least `ROW`."""
AGAIN = 10
"""Answers in a row that end it."""
FEW = 3
"""The same at little traffic, fewer than `AGAIN` requests in `LITTLE_S`. One answer to a probe does, too."""
LITTLE_S = 60.0
QUIET_S = 5.0
"""How long nothing must have gone unanswered before an outage ends: at much traffic ten answers come by chance."""
SCOPES = 256
"""Tenants, keys, and models that are told apart; those without requests for longest are forgotten."""
_IDS = 20_000
_COUNTED = ("answered", "failed", "refused")
_WORDS = {
    "ProviderTimeout": "does not answer in time",
    "ProviderUnavailable": "fails",
    "ModelRefused": "refuses requests",
    "KeyRefused": "refuses its key",
    "QuotaExhausted": "has an exhausted quota",
    "RateLimited": "is rate limited",
    "partial": "breaks off",
    "breaker": "no model may be called, since all have failed",
    "paused": "the models are paused",
    "overloaded": "the gateway has too much to do",
}


class Outage(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that go unanswered: everybody's, or those of one tenant, key or model while others are answered."""

    scope: str
    """all, tenant, key or model."""
    name: str
    """Of all: the one model that all unanswered requests went to; empty if there are more."""
    tenant: str | None
    """Whose it is; None for all tenants."""
    level: str
    """down: nobody is answered; degraded."""
    since: float
    """Seconds since the epoch."""
    requests: int
    failed: int
    refused: int
    """Of the last five minutes."""
    errors: tuple[str, ...]
    """Classes of the errors, or reasons of refusals, the most frequent first."""
    text: str

    @property
    def title(self) -> str:
        """Whose requests, as the key of a reason."""
        return "requests" if self.scope == "all" else f"{self.scope} {self.name}"


class ServiceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Whether users are served: `ok`, `degraded` or `down`, and the reasons by part."""

    status: str
    reasons: Mapping[str, str]


def service_status(faults: Mapping[str, str], outages: Sequence[Outage]) -> ServiceStatus:
    """Sum up the faults of parts and the outages."""
    down = any(outage.level == "down" for outage in outages)
    reasons = {outage.title: outage.text for outage in outages} | dict(faults)
    return ServiceStatus(status="down" if down else "degraded" if reasons else "ok", reasons=reasons)


class _Track:
    """Latest requests of one scope, and whether they go unanswered."""

    def __init__(self) -> None:
        self.red, self.since = False, 0.0
        self.answered_at = self.unanswered_at = -math.inf
        self.errors, self.reasons = deque[tuple[str, str]](maxlen=20), deque[tuple[str, str]](maxlen=20)
        self._went: dict[int, set[str]] = {}
        """Slot → models that its unanswered requests named or went to; empty for none."""
        self._last: list[tuple[float, bool, bool]] = []
        """Time of each of the last requests, whether it was answered, and whether that was a probe."""
        self._slots: dict[int, list[int]] = {}
        self._fresh: dict[int, list[int]] = {}
        """Those since the last outage, which alone begin the next one."""

    def add(
        self, ts: float, outcome: str, n: int, probe: bool, errors: Iterable[tuple[str, str]], went: set[str]
    ) -> None:
        slot, answered = int(ts // _SLOT_S), outcome == "answered"
        for slots in (self._slots, self._fresh, self._went):
            if slot not in slots:
                for old in [each for each in slots if each <= slot - WINDOW_S / _SLOT_S - 1]:
                    del slots[old]
        for counts in (self._slots, self._fresh):
            counts.setdefault(slot, [0, 0, 0])[_COUNTED.index(outcome)] += n
        for _ in range(min(n, AGAIN)):
            bisect.insort(self._last, (ts, answered, probe))
        del self._last[:-AGAIN]
        if answered:
            self.answered_at = max(self.answered_at, ts)
        else:
            self.unanswered_at = max(self.unanswered_at, ts)
            self._went.setdefault(slot, set()).update(went)
            for model, error in errors:
                (self.errors if model else self.reasons).append((model, error))
        if self.red or not answered:  # an answer begins no outage
            self.judge(ts)

    def counts(self, now: float) -> list[int]:
        """Answered, failed and refused requests of the last five minutes."""
        return _sums(self._slots, now)

    def one_model(self) -> str:
        """The model that all unanswered requests went to; empty if there are more."""
        found = set().union(*self._went.values())
        return found.pop() if len(found) == 1 else ""

    def in_a_row(self) -> bool:
        """Whether the last `ROW` requests went unanswered."""
        return len(self._last) >= ROW and not any(answered for _, answered, _ in self._last[-ROW:])

    def judge(self, now: float) -> None:
        answered, *lost = _sums(self._fresh, now)
        if not self.red:
            if self.in_a_row() or sum(lost) >= max(ROW, SHARE * (answered + sum(lost))):
                self.red, self.since = True, now
        elif now - self.unanswered_at >= QUIET_S and self._answers_again(now):
            self.calm()

    def calm(self) -> None:
        self.red = False
        for each in (self._last, self._fresh, self._went, self.errors, self.reasons):
            each.clear()

    def _answers_again(self, now: float) -> bool:
        row = [probe for ts, _, probe in self._last if ts > self.unanswered_at]
        little = sum(ts > now - LITTLE_S for ts, _, _ in self._last) < AGAIN
        return len(row) >= AGAIN or (little and (len(row) >= FEW or any(row)))


class ServiceHealth:
    """Counts how requests end, and tells since when, whose and why they go unanswered. Thread-safe; bounded.

    As a hook it counts this process's requests, and `follow` those of others. The caller's own errors, answers that
    their caller left, plans that nobody ran, and spent budgets do not count.

    Args:
        clock: seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._mutex = clock, threading.Lock()
        self._all = _Track()
        self._scopes: dict[str, OrderedDict[tuple[str, str], _Track]] = {
            scope: OrderedDict() for scope in ("tenant", "key", "model")
        }
        self._own: dict[str, None] = {}
        """Events of this process that it has not met in the journal yet."""

    def __call__(self, notice: Notice) -> None:
        """Count an event of this process."""
        if isinstance(notice, Happened) and isinstance(notice.event, Execution | Refusal):
            with self._mutex:
                if notice.event.id not in self._own:
                    self._own[notice.event.id] = None
                    if len(self._own) > _IDS:
                        del self._own[next(iter(self._own))]
                    self._count(notice.event)

    def follow(self, event: Event) -> None:
        """Count an event of the journal, unless it is this process's own."""
        if isinstance(event, Execution | Refusal):
            with self._mutex:
                if event.id in self._own:
                    del self._own[event.id]
                else:
                    self._count(event)

    def _count(self, event: Execution | Refusal) -> None:
        now, probe, n = self._clock(), False, 1
        if isinstance(event, Refusal):
            outcome, model, n, errors, went = "refused", event.model, event.n, {("", event.reason)}, {event.model}
        else:
            outcome, model = OUTCOMES.get(event.status, ""), event.served_by or event.chosen
            probe = any(each.probe for each in event.attempts)
            went = {model, *(each.model for each in event.attempts)}
            tried = {(each.model, each.error) for each in event.attempts if each.error}
            errors = {(name, error) for name, error in tried if error not in NOT_CALLED}
            if not errors:
                unpaid = outcome == "refused" and any(error == "NotCovered" for _, error in tried)
                errors = {(model, "partial") if event.status == "partial" else ("", "budget" if unpaid else "breaker")}
        if outcome not in _COUNTED or ("", "budget") in errors or event.ts < now - WINDOW_S:
            return
        ts, tenant, began = min(event.ts, now), event.identity.tenant, self._all.since
        names = {"tenant": (tenant, tenant), "key": (tenant, event.key), "model": ("", model)}
        tracks = [self._track(scope, name) for scope, name in names.items() if name[1]]
        for track in (self._all, *tracks):
            track.add(ts, outcome, n, probe, sorted(errors), went)
        self._settle(began)

    def _track(self, scope: str, name: tuple[str, str]) -> _Track:
        tracks = self._scopes[scope]
        track = tracks.setdefault(name, _Track())
        tracks.move_to_end(name)
        if len(tracks) > SCOPES:
            tracks.popitem(last=False)
        return track

    def _settle(self, began: float) -> None:
        """End what an outage of all began in its scopes, if it has ended: they may have no requests now."""
        if began and not self._all.red and self._all.since == began:
            self._all.since = 0.0
            for tracks in self._scopes.values():
                for track in tracks.values():
                    if track.red and track.since >= began - LITTLE_S:
                        track.calm()

    def outages(self, tenant: str | None = None) -> tuple[Outage, ...]:
        """Return what goes unanswered now, that of all first.

        Args:
            tenant: who asks, and reads nothing of other tenants; None for all.
        """
        with self._mutex:
            now, began = self._clock(), self._all.since
            for track in (self._all, *(track for tracks in self._scopes.values() for track in tracks.values())):
                track.judge(now)
            self._settle(began)
            found = [outage for outage in self._found(now) if tenant in {None, outage.tenant} or outage.tenant is None]
        return tuple(found)

    def _found(self, now: float) -> list[Outage]:
        scopes, alone = self._scopes, dict[tuple[str, str, str], _Track]()
        for scope, tracks in scopes.items():
            for name, track in _alone(self._all, tracks, now).items():
                alone[scope, *name] = track
        if self._all.red and not alone:
            return [_outage([("all", "", "")], self._all, now)]
        for _, tenant, _ in [key for key in alone if key[0] == "tenant"]:
            keys = {name: track for name, track in scopes["key"].items() if name[0] == tenant}
            narrower = _alone(alone["tenant", tenant, tenant], keys, now)
            for name in keys:
                alone.pop(("key", *name), None)
            if narrower:
                del alone["tenant", tenant, tenant]
                alone |= {("key", *name): track for name, track in narrower.items()}
        alike: dict[tuple[int, ...], list[tuple[str, str, str]]] = {}
        for key, track in alone.items():  # a tenant that only names one model fails as that model
            alike.setdefault(tuple(track.counts(now)), []).append(key)
        return [_outage(keys, alone[keys[0]], now) for keys in alike.values()]


def _sums(slots: Mapping[int, Sequence[int]], now: float) -> list[int]:
    kept = [counts for slot, counts in slots.items() if slot > (now - WINDOW_S) // _SLOT_S]
    return [sum(counts[i] for counts in kept) for i in range(len(_COUNTED))]


def _alone(whole: _Track, parts: Mapping[tuple[str, str], _Track], now: float) -> dict[tuple[str, str], _Track]:
    """Return the parts that go unanswered, if they are all that does: others are answered since."""
    red = {name: track for name, track in parts.items() if track.red and any(track.counts(now))}
    if red and whole.red:
        since = min(track.since for track in red.values())
        if not any(track.answered_at > since for name, track in parts.items() if name not in red):
            return {}
        rest = [
            total - sum(some)
            for total, *some in zip(whole.counts(now), *(t.counts(now) for t in red.values()), strict=True)
        ]
        if sum(rest[1:]) >= max(ROW, SHARE * sum(rest)):
            return {}
    return red


def _outage(keys: Sequence[tuple[str, str, str]], track: _Track, now: float) -> Outage:
    answered, failed, refused = track.counts(now)
    total, lost = answered + failed + refused, failed + refused
    scope, tenant, name = keys[0]
    down = scope == "all" and track.in_a_row()
    common = [each for each, _ in Counter(track.errors or track.reasons).most_common(3)]
    why = "; ".join(f"{model} {_WORDS.get(error, error)}".strip() for model, error in common)
    spoken = {"tenant": "tenant {1}", "key": "the key {1} of {0}", "model": "the model {1}", "all": ""}
    whose = ", ".join(spoken[kind].format(*names) for kind, *names in keys)
    said = f"{failed:,} failed and {refused:,} were refused of {many(total, 'request')} in the last five minutes"
    if not lost:
        said = f"the last one was {max(0.0, now - track.unanswered_at) / 60.0:.0f} minutes ago"
    name = track.one_model() if down else name
    head = f"Requests {f'of {whose} ' if whose else ''}go unanswered"
    if down:
        head = f"No request {f'for {name} ' if name else ''}is answered"
    return Outage(
        scope=scope,
        name=name,
        tenant=tenant if scope in {"tenant", "key"} else None,
        level="down" if down else "degraded",
        since=track.since,
        requests=total,
        failed=failed,
        refused=refused,
        errors=tuple(dict.fromkeys(error for _, error in common)),
        text=f"{head}{', while others are answered' if whose else ''}: {said}{f' ({why})' if why else ''}.",
    )
