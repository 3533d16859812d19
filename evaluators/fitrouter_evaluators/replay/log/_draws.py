"""The draws of a log as parallel arrays, for the audit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fitrouter.types import Floats
from fitrouter_evaluators.replay.log.log import Ints, Log, is_drawn

_CELLS = 2_000_000
"""Numbers in a dense block."""


class Draws(NamedTuple):
    """r draws in order of time, with m options in total."""

    rows: Ints
    """Rows of the decisions."""
    start: Ints
    """int64[r + 1]: where each draw's options begin."""
    arm: Ints
    prob: Floats
    """int64[m], float64[m]: of the options."""
    chosen: Ints
    """int64[r]: position of the drawn arm in the options."""
    p: Floats
    """float64[r]: its probability."""
    known: bool
    """All pmfs are known; else only the drawn arms' probabilities are."""
    possible: Ints
    """int64[r]: number of arms with positive probability; all arms if the pmf is unknown."""

    @property
    def n(self) -> int:
        """How many draws there are."""
        return len(self.rows)

    @property
    def owner(self) -> Ints:
        """int64[m]: the draw of each option."""
        return np.repeat(np.arange(self.n), np.diff(self.start))

    @property
    def drew(self) -> Ints:
        """int64[r]: codes of the drawn arms."""
        return self.arm[self.chosen]

    def sums(self, values: Floats) -> Floats:
        """float64[r]: sums over each draw's options."""
        return np.asarray(np.add.reduceat(values, self.start[:-1]))

    def of(self, arm: Ints) -> Floats:
        """float64[r]: each draw's probability of an arm (a code); 0 if not eligible."""
        owner = self.owner
        same = self.arm == arm[owner]
        return np.bincount(owner[same], weights=self.prob[same], minlength=self.n).astype(np.float64)

    def take(self, keep: NDArray[np.bool_]) -> Draws:
        """A subset of the draws."""
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
    """The draws of a valid log."""
    decisions, options = log.decisions, log.options
    decided = Draws(
        rows=np.arange(decisions.n),
        start=decisions.start,
        arm=options.arm,
        prob=options.prob,
        chosen=decisions.chosen,
        p=decisions.propensity,
        known=False,
        possible=np.zeros(decisions.n, dtype=np.int64),
    )
    found = decided.take(is_drawn(decisions.mode))
    known = not bool(np.isnan(found.prob).any())
    sizes = np.diff(found.start)
    return found._replace(
        known=known, possible=found.sums((found.prob > 0.0).astype(float)).astype(np.int64) if known else sizes
    )


def blocks(draws: Draws) -> Iterator[tuple[slice, Floats, NDArray[np.bool_]]]:
    """Dense blocks of draws: (which, float64[b, K] pmfs padded with 0, bool[b, K] where arms are)."""
    sizes = np.diff(draws.start)
    K = int(sizes.max())
    step = max(1, _CELLS // K)
    for begin in range(0, draws.n, step):
        some = slice(begin, min(begin + step, draws.n))
        is_arm = np.arange(K) < sizes[some, None]
        probs = np.zeros(is_arm.shape)
        probs[is_arm] = draws.prob[draws.start[begin] : draws.start[some.stop]]
        yield some, probs, is_arm
