"""The demo's time: a round is as long as a day has rounds for."""

from __future__ import annotations

import time

from fitrouter.hooks import Happened, Notice
from fitrouter.posterior.people import DAY_S
from fitrouter.types import Decision


class RoundClock:
    """Seconds since the epoch, moved on by decisions: the rounds end now. A hook of the router that it is the clock of.

    Once `let_go` is called it is an ordinary clock.
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
        """Move on with a decision."""
        if isinstance(notice, Happened) and isinstance(notice.event, Decision):
            self._rounds += 1

    def let_go(self) -> None:
        """From now on time passes by itself."""
        self._free = True
