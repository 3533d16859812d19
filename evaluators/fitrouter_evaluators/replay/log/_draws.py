"""The draws of a log as parallel arrays for the audit, and vectorised seeded draws."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

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
    """Float64[m], int64[m]: of the options."""
    chosen: Ints
    """Position of the drawn arm in the options, int64[r]."""
    p: Floats
    """Its probability, float64[r]."""
    known: bool
    """All pmfs are known; else only the drawn arms' probabilities are."""
    possible: Ints
    """Number of arms with positive probability, int64[r]; all arms if the pmf is unknown."""

    @property
    def n(self) -> int:
        return len(self.rows)

    @property
    def owner(self) -> Ints:
        """The draw of each option, int64[m]."""
        return np.repeat(np.arange(self.n), np.diff(self.start))

    @property
    def drew(self) -> Ints:
        return self.arm[self.chosen]

    def sums(self, values: Floats) -> Floats:
        """Sums over each draw's options, float64[r]."""
        return np.asarray(np.add.reduceat(values, self.start[:-1]))

    def of(self, arm: Ints) -> Floats:
        """Probability of one given arm (a code) at each draw, float64[r]; 0 if it is not eligible."""
        owner = self.owner
        same = self.arm == arm[owner]
        return np.bincount(owner[same], weights=self.prob[same], minlength=self.n).astype(np.float64)

    def take(self, keep: NDArray[np.bool_]) -> Draws:
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
    """Collect the draws of a valid log."""
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
    """Iterate over dense blocks of draws: slice of draws, pmfs float64[b, K] padded with 0, mask of arms bool[b, K]."""
    sizes = np.diff(draws.start)
    K = int(sizes.max())
    step = max(1, _CELLS // K)
    for begin in range(0, draws.n, step):
        some = slice(begin, min(begin + step, draws.n))
        is_arm = np.arange(K) < sizes[some, None]
        probs = np.zeros(is_arm.shape)
        probs[is_arm] = draws.prob[draws.start[begin] : draws.start[some.stop]]
        yield some, probs, is_arm


_Words: TypeAlias = NDArray[np.uint64]

_MULTIPLIERS = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
_STEPS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B)
_ROUNDS = 10
_LOW, _HALF = np.uint64(2**32 - 1), np.uint64(32)
_DASHES = (8, 13, 18, 23)


def uuid_words(ids: NDArray[np.object_]) -> _Words | None:
    """Upper and lower half of each UUID, uint64[n, 2]; None if one of them is not in canonical form."""
    n = len(ids)
    try:
        letters = np.array(ids, dtype="S").reshape(n)
    except UnicodeEncodeError:
        return None
    if letters.dtype.itemsize != 36:
        return None
    table = letters.view("S1").reshape(n, 36)
    if not (table[:, _DASHES] == b"-").all():
        return None
    try:
        packed = bytes.fromhex(np.delete(table, _DASHES, axis=1).tobytes().decode())
    except ValueError:
        return None
    return np.frombuffer(packed, dtype=">u8").astype(np.uint64).reshape(n, 2) if len(packed) == 16 * n else None


def uniforms_of(seeds: _Words, ids: _Words, words: int = 1) -> Floats:
    """Up to four uniforms on [0, 1) per decision, from seeds uint64[n] and ids of `uuid_words`, float64[n, words].

    Bit-identical to `fitrouter.draw.draws`: Philox 4×64 with ten rounds (Salmon, Moraes, Dror and Shaw 2011, "Parallel
    random numbers: as easy as 1, 2, 3").
    """
    # The counter starts at (0, 0, 0, lower half), and its first word is raised before the first block is made.
    state = [np.ones_like(seeds), np.zeros_like(seeds), np.zeros_like(seeds), ids[:, 1]]
    keys = [seeds, ids[:, 0]]
    with np.errstate(over="ignore"):
        for turn in range(_ROUNDS):
            if turn:
                keys = [key + step for key, step in zip(keys, _STEPS, strict=True)]
            high, low = zip(_product(_MULTIPLIERS[0], state[0]), _product(_MULTIPLIERS[1], state[2]), strict=True)
            state = [high[1] ^ state[1] ^ keys[0], low[1], high[0] ^ state[3] ^ keys[1], low[0]]
    raw: Any = np.stack(state[:words], axis=1) >> np.uint64(11)
    return np.asarray(np.multiply(raw, 2.0**-53, dtype=np.float64))


def _product(constant: np.uint64, values: _Words) -> tuple[_Words, _Words]:
    """Upper and lower 64 bits of 128-bit products."""
    c_high, c_low = constant >> _HALF, constant & _LOW
    v_high, v_low = values >> _HALF, values & _LOW
    cross = c_low * v_high + (c_low * v_low >> _HALF)
    other = c_high * v_low + (cross & _LOW)
    return c_high * v_high + (cross >> _HALF) + (other >> _HALF), constant * values
