"""Claims on money: how the processes that share a journal keep a hard limit together.

Each process claims a part of an account before it spends it, and holds it in memory. The sum of all claims on an
account never exceeds its limit, but for what providers bill beyond what was reserved. What a killed process had claimed
counts as spent until the account ends, since nobody knows what it was billed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import msgspec

ALIVE_S = 60.0
"""A process that has not written its claim for so long is not expected to return any of it."""
LENT = 1 / 64
"""Most of a limit that is claimed in advance, so that not every request needs a transaction."""
ROUNDING = 1e-12
"""Share of a limit by which sums may be off."""
KEPT_S = 86_400.0
"""How long claims outlive their account, for answers that end after it."""
ClaimRow: TypeAlias = tuple[str, float, float, float]
"""Holder, USD claimed, those of them that are spent, and when that was written."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What a process has of an account, and wants of it. Unless it trims, it never has less afterwards."""

    account: str
    """Whose money, and of which period."""
    holder: str
    """The process."""
    ts: float
    """Seconds since the epoch."""
    ends: float
    """When the account's period ends."""
    limit: float
    spent: float
    held: float
    """Reserved for requests in progress."""
    want: float = 0.0
    """More of it, in USD."""
    least: float = 0.0
    """Less than this is of no use."""
    known: float = 0.0
    """Spent according to the journal; counts where nobody has claimed anything yet."""
    trim: bool = False
    """Whether what is neither spent nor held is given back."""


class Grant(NamedTuple):
    """What a process has claimed now."""

    usd: float
    most: float
    """What it could have claimed: the limit less what others have."""
    returning: float
    """What others hold and may give back."""


def granted(claim: Claim, rows: Sequence[ClaimRow]) -> tuple[Grant, list[tuple[str, str, float, float, float, float]]]:
    """Decide on a claim, given all rows of its account; also return the rows to write (account, holder, …, ends).

    >>> claim = Claim(account="a", holder="h", ts=0, ends=9, limit=1.0, spent=0.25, held=0, want=0.5, least=0.5)
    >>> granted(claim, [("h", 0.25, 0.25, 0), ("other", 0.25, 0, 0)])[0]
    Grant(usd=0.75, most=0.75, returning=0.25)
    """
    before = next((usd for holder, usd, *_ in rows if holder == claim.holder), 0.0)
    others = [row for row in rows if row[0] != claim.holder]
    written = []
    if not rows and claim.known > 0.0:
        others = [("", claim.known, claim.known, claim.ts)]
        written.append((claim.account, "", claim.known, claim.known, claim.ts, claim.ends))
    most = claim.limit - math.fsum(usd for _, usd, *_ in others)
    usd = own = claim.spent + claim.held
    if not claim.trim:
        room = max(most - own, 0.0)
        if claim.want > 0.0 and claim.least <= room + ROUNDING * claim.limit:
            more = min(max(claim.want, claim.least), room)
            usd = own + more + min(LENT * claim.limit, (room - more) / 8.0)
        usd = max(usd, before)
    returning = math.fsum(usd - spent for _, usd, spent, seen in others if claim.ts - seen < ALIVE_S)
    written.append((claim.account, claim.holder, usd, claim.spent, claim.ts, claim.ends))
    return Grant(usd, most, returning), written
