"""The demo's clock, on which a day has a fixed number of rounds."""

from __future__ import annotations

import time

from fitrouter.hooks import Happened, Notice
from fitrouter.posterior.people import DAY_S
from fitrouter.types import Decision


class RoundClock:
    """Seconds since the epoch, advanced by decisions so that the last round is now; a hook of the router that uses it.

    After `let_go` it is an ordinary clock.
    """

    def __init__(self, rounds: int, rounds_per_day: int) -> None:
        self._step = DAY_S / rounds_per_day
        self._start = time.time() - rounds * self._step
        self._rounds = 0
        self._free = False

    def __call__(self) -> float:
        """The time."""
        return time.time() if self._free else self._start + self._rounds * self._step

    def hear(self, notice: Notice) -> None:
        """Advance by a decision."""
        if isinstance(notice, Happened) and isinstance(notice.event, Decision):
            self._rounds += 1

    def let_go(self) -> None:
        """Follow the real clock from now on."""
        self._free = True
