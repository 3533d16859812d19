"""Reservations against hard limits: of a tenant's period and of an API key's day, across all processes of the journal.

A reservation is made from money that this process has claimed (`Journal.claim`), which needs no transaction; where that
does not suffice, more is claimed. Where the limit does not cover it, the request waits until reservations are returned.
A process whose store is lost spends what it has claimed, and then refuses.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fitrouter.draw import uuid7
from fitrouter.errors import FitrouterError, in_words
from fitrouter.stores.journal import Claim, Grant, Journal

POLL_S = 0.25
"""Pause between attempts to claim money that other processes have."""
IDLE_S = 1.0
"""What was claimed in advance and is not used for so long is given back."""
RENEW_S = 10.0
"""Pause between signs of life to other processes."""
KEPT_S = 3600.0
"""How long an account is known after its end: a clock may be set back."""
CLAIM_S = 5.0
"""Patience with the store, beyond a request's own."""
ROUNDING = 1e-9
"""Share of a limit by which a reservation may miss it."""


class Account(NamedTuple):
    """A hard limit in one of its periods."""

    name: str
    """Of the limit and its period; the same in every process."""
    what: str
    """In words."""
    limit: float
    ends: float
    known: float
    """USD spent, according to the journal."""


class Reserved(NamedTuple):
    """A reservation, or why there is none."""

    usd: float = 0.0
    refusal: str = ""


class _Purse:
    """What this process knows and has of an account."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.spent = 0.0
        self.holds: dict[str, tuple[float, float]] = {}
        """Request → USD that are reserved, and when that ends."""
        self.grant = Grant(0.0, math.inf, 0.0)
        """Of the last claim; `usd` is what may be spent without another one."""
        self.wants: dict[str, tuple[float, float]] = {}
        """Request that waits for a claim → USD that it wants, and the least."""
        self.asking: asyncio.Task[None] | None = None
        self.again, self.used, self.written = 0.0, 0.0, 0.0
        """When to claim again after it did not suffice, of the last reservation, and of the last claim; monotonic."""
        self.fault = ""
        self.changed = False
        """Whether the limit is another one since the last claim."""

    def held(self, ts: float) -> float:
        """USD reserved for requests in progress."""
        for name in [name for name, (_, ends) in self.holds.items() if ends <= ts]:
            del self.holds[name]
        return math.fsum(usd for usd, _ in self.holds.values())

    def room(self, name: str, ts: float) -> float:
        """USD that a request can reserve without another claim, its earlier reservation included."""
        own = self.spent + self.held(ts) - self.holds.get(name, (0.0, 0.0))[0]
        return self.grant.usd - own

    def exceeds(self, usd: float) -> bool:
        """Whether an amount cannot be reserved, even if all requests in progress of all processes cost nothing."""
        granted = math.inf if self.changed else self.grant.most + self.grant.returning - self.spent
        possible = min(granted, self.account.limit - self.account.known)
        return usd > possible + ROUNDING * self.account.limit


class Ledger:
    """Reserves money within hard limits, and books what was spent.

    Args:
        journal: shares the limits among processes.
        clock: seconds since the epoch.
    """

    def __init__(self, journal: Journal, clock: Callable[[], float]) -> None:
        self._journal, self._clock = journal, clock
        self.holder = uuid7(clock())
        self._purses: dict[str, _Purse] = {}
        self._open: dict[str, list[_Purse]] = {}
        """Request → where it has reservations."""
        self._returned = asyncio.Event()

    async def reserve(
        self,
        name: str,
        accounts: Sequence[Account],
        *,
        most: float,
        least: float,
        rather: float = math.inf,
        until: float = 0.0,
        expires: float = math.inf,
    ) -> Reserved:
        """Reserve what a request may cost in every account; replaces its earlier reservation.

        Args:
            name: of the request.
            accounts: that have to cover it.
            most: USD that it may cost.
            least: USD that suffice, if the answer is limited to them.
            rather: most USD of a limited answer.
            until: when to stop waiting, on the monotonic clock.
            expires: when the reservation ends if nobody books it.
        """
        purses = [self._purse(account) for account in accounts]
        while True:
            if self._take(name, purses, most, most, math.inf, expires):
                return Reserved(most)
            await asyncio.gather(*(self._claim(each, name, most, least, until) for each in purses))
            for enough, cap in ((most, math.inf), (least, rather)):
                if usd := self._take(name, purses, most, enough, cap, expires):
                    return Reserved(usd)
            now, ts = time.monotonic(), self._clock()
            short = [each for each in purses if each.room(name, ts) < least]
            hopeless = [each for each in short if each.fault or each.exceeds(least)]
            if hopeless or now >= until:
                return Reserved(0.0, self._refusal((hopeless or short or purses)[0], least))
            returned = self._returned
            try:
                async with asyncio.timeout(min(POLL_S, until - now)):
                    await returned.wait()
            except TimeoutError:
                continue

    def uncovered(self, account: Account, usd: float) -> str:
        """Say why an amount cannot be reserved, however long one waits; empty if it may be."""
        purse = self._purse(account)
        return self._refusal(purse, usd) if purse.exceeds(usd) else ""

    def settle(self, name: str, accounts: Sequence[Account], usd: float) -> None:
        """Book what a request cost, in place of its reservations; in `accounts` if it has none."""
        for purse in self._open.pop(name, None) or [self._purse(account) for account in accounts]:
            purse.holds.pop(name, None)
            purse.spent += usd
            if not purse.wants and self._is_short(purse):
                self._ask(purse, trim=True)
        returned, self._returned = self._returned, asyncio.Event()
        returned.set()

    def reserved(self, name: str) -> float:
        """USD that are reserved for a request."""
        return max((purse.holds.get(name, (0.0, 0.0))[0] for purse in self._open.get(name, ())), default=0.0)

    def tick(self) -> None:
        """Give back what is not used, and tell other processes of this one; call it about once a second."""
        now, ts = time.monotonic(), self._clock()
        for name in [name for name, purses in self._open.items() if all(name not in each.holds for each in purses)]:
            del self._open[name]
        for name, purse in list(self._purses.items()):
            held, slack = purse.held(ts), purse.room("", ts)
            if purse.account.ends + KEPT_S <= ts and not held:
                del self._purses[name]
            elif purse.changed or (slack and now - purse.used > IDLE_S and not purse.wants):
                self._ask(purse, trim=True)
            elif slack < 0.0 or (held and now - purse.written > RENEW_S):
                self._ask(purse)

    async def aclose(self) -> None:
        """Give back what is not spent."""
        for purse in self._purses.values():
            while purse.asking is not None and not purse.asking.done():
                await asyncio.wait({purse.asking})
            if purse.room("", self._clock()):
                self._ask(purse, trim=True)
        await asyncio.gather(*(purse.asking for purse in self._purses.values() if purse.asking is not None))

    def _purse(self, account: Account) -> _Purse:
        purse = self._purses.setdefault(account.name, _Purse(account))
        purse.changed = purse.changed or purse.account.limit != account.limit
        purse.account = account
        return purse

    def _take(
        self, name: str, purses: Sequence[_Purse], most: float, enough: float, cap: float, expires: float
    ) -> float:
        """Reserve `most`, or at most `cap` where at least `enough` is there, from what is claimed; 0 without."""
        ts = self._clock()
        if any(purse.changed for purse in purses):
            return 0.0
        found = min(purse.room(name, ts) + ROUNDING * purse.account.limit for purse in purses)
        if found < enough:
            return 0.0
        usd = most if found >= most else min(found, cap)
        for purse in purses:
            purse.holds[name] = usd, expires
            purse.used = time.monotonic()
        self._open[name] = list(purses)
        return usd

    async def _claim(self, purse: _Purse, name: str, most: float, least: float, until: float) -> None:
        """Claim what a request lacks, together with what others that wait in this process lack."""
        patience = max(until - time.monotonic(), CLAIM_S)
        own = purse.holds.get(name, (0.0, 0.0))[0]
        purse.wants[name] = most - own, least - own
        try:
            for _ in range(3):  # one that is being written, one after a change of the limit, and the own one
                if purse.asking is None or purse.asking.done():
                    room = purse.room(name, self._clock())
                    free = room + purse.grant.most - purse.grant.usd
                    hopeful = time.monotonic() >= purse.again or least <= free
                    if not (purse.changed or (room < most and hopeful)):
                        return
                    self._ask(purse, trim=purse.changed)
                assert purse.asking is not None
                await asyncio.wait({purse.asking}, timeout=patience)
        finally:
            del purse.wants[name]

    def _ask(self, purse: _Purse, *, trim: bool = False) -> None:
        """Begin to write this process's claim, unless it is being written."""
        if purse.asking is None or purse.asking.done():
            purse.asking = asyncio.create_task(self._write(purse, trim), name="fitrouter-claim")

    async def _write(self, purse: _Purse, trim: bool) -> None:
        ts, account, wants = self._clock(), purse.account, list(purse.wants.values())
        claim = Claim(
            account=account.name,
            holder=self.holder,
            ts=ts,
            ends=account.ends,
            limit=account.limit,
            spent=purse.spent,
            held=purse.held(ts),
            want=0.0 if trim else math.fsum(usd for usd, _ in wants),
            least=0.0 if trim else min((usd for _, usd in wants), default=0.0),
            known=account.known,
            trim=trim,
        )
        if trim:  # it may be written although no answer comes: nothing above it is spent meanwhile
            purse.grant = purse.grant._replace(usd=min(purse.grant.usd, claim.spent + claim.held))
        purse.written = time.monotonic()
        try:
            purse.grant, purse.fault = await asyncio.to_thread(self._journal.claim, claim), ""
            purse.changed = purse.changed and not (trim and account.limit == purse.account.limit)
        except (FitrouterError, OSError) as error:
            purse.fault = in_words(error)
        short = purse.grant.usd < claim.spent + claim.held + claim.least
        purse.again = time.monotonic() + POLL_S if short or purse.fault else 0.0

    def _is_short(self, purse: _Purse) -> bool:
        """Whether others may wait for what this process does not use."""
        return purse.grant.most - purse.grant.usd < purse.account.limit / 64

    def _refusal(self, purse: _Purse, least: float) -> str:
        account, ts = purse.account, self._clock()
        if purse.fault:
            return f"what is left of {account.what} cannot be known, as its store is lost: {purse.fault}"
        held = purse.held(ts)
        left = max(min(purse.grant.most - purse.spent, account.limit - account.known) - held, 0.0)
        returning = max(min(purse.grant.returning, account.limit - account.known - held - left), 0.0)
        return (
            f"even with a short answer it may cost {least:.4g} USD at most, and of {account.what} ({account.limit:.4g} "
            f"USD) {left:.4g} USD are left, besides {held + returning:.4g} USD that are reserved for "
            "requests in progress"
        )
