"""Votes that update shared terms, by the key that vouches for their voters: invented people are worth few real ones.

All users that a key without `trusted` names count, for others, as `people` established people together: on each model
they may have as many votes as these would have, at the mean of the other caller whose people voted most on it. The
limit holds once so many people of other callers are established, by votes on `DAYS` days; trusted keys have none.

The learner counts votes as it learns them; `LeftOut` does it for readers of a log who conclude something for others.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from fitrouter.plain import Projection
from fitrouter.posterior.tastes import OVERALL

DAYS = 3
"""Days with votes that count, after which a person is established."""
CALLERS = 1000
"""Untrusted keys that are told apart; those that come later share one account."""


class _Account(msgspec.Struct, array_like=True):
    people: int = 0
    """That are established."""
    left_out: int = 0
    """Votes that taught their users only."""
    counted: dict[str, int] = {}
    """Model, with the kind of the dimension → votes that updated shared terms while there was a limit."""
    theirs: dict[str, int] = {}
    """The same → votes of established people, counted or left out."""


class Vouching(Projection):
    """Votes of each untrusted key that count for others; those of trusted callers are under the empty name."""

    stored_type = dict[str, _Account]

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}

    @property
    def left_out(self) -> int:
        """Votes that did not count for others, since their key's users had as many as they may."""
        return sum(account.left_out for account in self._accounts.values())

    def left(self, caller: str, on: str, *, people: int, votes_per_day: int) -> float:
        """Number of further votes of a caller's users that count for others; infinite without a limit."""
        own = self._of(caller)
        others = [each for each in self._accounts.values() if each is not own and each.people]
        if not caller or sum(each.people for each in others) < people:
            return math.inf
        mean = max(each.theirs.get(on, 0) / each.people for each in others)
        return people * max(mean, votes_per_day) - own.counted.get(on, 0)

    def observe(self, caller: str, on: str, *, days: int, before: int, left: float) -> None:
        """Count a vote of a person who has now voted on `days` days, `before` without it, and of whose key `left`."""
        own = self._of(caller)
        own.people += days >= DAYS > before
        if days >= DAYS:
            own.theirs[on] = own.theirs.get(on, 0) + 1
        if left <= 0:
            own.left_out += 1
        elif left < math.inf:
            own.counted[on] = own.counted.get(on, 0) + 1

    def _of(self, caller: str) -> _Account:
        if caller and caller not in self._accounts and len(self._accounts) >= CALLERS:
            caller = "\x1f others"
        return self._accounts.setdefault(caller, _Account())

    def _store(self) -> dict[str, _Account]:
        return self._accounts

    def _restore(self, stored: dict[str, _Account]) -> bool:
        numbers = [
            (each.people, each.left_out, *each.counted.values(), *each.theirs.values()) for each in stored.values()
        ]
        if any(n < 0 for each in numbers for n in each):
            return False
        self._accounts = stored
        return True


class LoggedVote(NamedTuple):
    """The first vote on an answer of its kind and dimension."""

    seq: int
    tenant: str
    person: str | None
    caller: str
    """`Feedback.vouched`."""
    arm: str
    """That answered."""
    dimension: str
    day: int


class _Voter:
    day, days = -1, 0

    def __init__(self) -> None:
        self.votes: Counter[str] = Counter()


class LeftOut:
    """Finds the votes of a log that do not count for others, those of keys with a limit.

    Unlike the learner, this takes votes as they came, not once their answers are scored, and believes every answer.

    Args:
        people: the limit `feedback.people_per_key`.
        votes_per_day: that of `feedback.votes_per_day`.
    """

    def __init__(self, *, people: int, votes_per_day: int) -> None:
        self._people, self._votes_per_day = people, votes_per_day
        self._tenants: defaultdict[str, Vouching] = defaultdict(Vouching)
        self._voters: defaultdict[tuple[str, str | None], _Voter] = defaultdict(_Voter)

    def read(self, votes: Iterable[LoggedVote]) -> Iterator[int]:
        """Yield `seq` of those that are left out; votes are in the log's order, and follow those read before."""
        for seq, tenant, person, caller, arm, dimension, day in votes:
            vouching, voter = self._tenants[tenant], self._voters[tenant, person]
            on, counted = (arm, arm) if dimension == OVERALL else (f"{arm} *", f"{arm} {dimension}")
            left = vouching.left(caller, on, people=self._people, votes_per_day=self._votes_per_day)
            if day != voter.day:
                voter.day, voter.votes = day, Counter()
            if within := voter.votes[counted] < self._votes_per_day:
                before = voter.days
                voter.days += not voter.votes
                voter.votes[counted] += 1
                vouching.observe(caller, on, days=voter.days, before=before, left=left)
            if left < math.inf and not (within and left > 0):
                yield seq
