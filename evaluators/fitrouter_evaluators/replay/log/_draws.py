"""The decisions of a log whose arm was drawn, in arrays side by side, as the audit looks at them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fitrouter.types import Floats
from fitrouter_evaluators.replay.log.log import Ints, Log
from fitrouter_evaluators.replay.log.validation import drawn

_CELLS = 2_000_000
"""Numbers of one dense block."""


class Draws(NamedTuple):
    """r draws in order of time; their m options lie one after another."""

    rows: Ints
    """The decisions."""
    start: Ints
    """int64[r + 1]: where each draw's options begin."""
    arm: Ints
    prob: Floats
    """int64[m], float64[m]: of the options."""
    chosen: Ints
    """int64[r]: position of what was drawn, in the options."""
    p: Floats
    """float64[r]: its probability."""
    known: bool
    """Whether all pmfs are known; else only what was drawn has a probability."""
    possible: Ints
    """int64[r]: arms with a probability above 0; all where the pmf is not known."""

    @property
    def n(self) -> int:
        """How many draws there are."""
        return len(self.rows)

    @property
    def owner(self) -> Ints:
        """int64[m]: the draw that each option belongs to."""
        return np.repeat(np.arange(self.n), np.diff(self.start))

    @property
    def drew(self) -> Ints:
        """int64[r]: codes of the arms that were drawn."""
        return self.arm[self.chosen]

    def sums(self, values: Floats) -> Floats:
        """float64[r]: sums over each draw's options."""
        found: Floats = np.add.reduceat(values, self.start[:-1])
        return found

    def of(self, arm: Ints) -> Floats:
        """float64[r]: the probability that each draw gave to an arm (a code), 0 where it was not eligible."""
        owner = self.owner
        same = self.arm == arm[owner]
        return np.bincount(owner[same], weights=self.prob[same], minlength=self.n).astype(np.float64)

    def take(self, keep: NDArray[np.bool_]) -> Draws:
        """Some of the draws."""
        sizes = np.diff(self.start)
        within = np.repeat(keep, sizes)
        start = np.concatenate([[0], np.cumsum(sizes[keep])])
        place = self.chosen - self.start[:-1]
        return Draws(
            rows=self.rows[keep],
            start=start,
            arm=self.arm[within],
            prob=self.prob[within],
            chosen=start[:-1] + place[keep],
            p=self.p[keep],
            known=self.known,
            possible=self.possible[keep],
        )


def draws_of_log(log: Log) -> Draws:
    """The draws of a log that is valid."""
    decisions, options = log.decisions, log.options
    everybody = Draws(
        rows=np.arange(decisions.n),
        start=decisions.start,
        arm=options.arm,
        prob=options.prob,
        chosen=decisions.chosen,
        p=decisions.propensity,
        known=False,
        possible=np.zeros(decisions.n, dtype=np.int64),
    )
    found = everybody.take(drawn(log))
    known = not bool(np.isnan(found.prob).any())
    sizes = np.diff(found.start)
    return found._replace(
        known=known, possible=found.sums((found.prob > 0.0).astype(float)).astype(np.int64) if known else sizes
    )


def blocks(draws: Draws) -> Iterator[tuple[slice, Floats, NDArray[np.bool_]]]:
    """Some draws at a time: which, float64[b, K] their pmfs (0 behind the last arm), and bool[b, K] where arms are."""
    sizes = np.diff(draws.start)
    K = int(sizes.max())
    step = max(1, _CELLS // K)
    for begin in range(0, draws.n, step):
        some = slice(begin, min(begin + step, draws.n))
        is_arm = np.arange(K) < sizes[some, None]
        probs = np.zeros(is_arm.shape)
        probs[is_arm] = draws.prob[draws.start[begin] : draws.start[some.stop]]
        yield some, probs, is_arm
