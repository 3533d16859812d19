"""Vectorised seeded draws, bit-identical to `fitrouter.draw.draws`.

Philox 4×64 with ten rounds (Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3").
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fitrouter.types import Floats

_Words: TypeAlias = NDArray[np.uint64]

_MULTIPLIERS = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
_STEPS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B)
_ROUNDS = 10
_LOW, _HALF = np.uint64(2**32 - 1), np.uint64(32)
_DASHES = (8, 13, 18, 23)


def uuid_words(ids: NDArray[np.object_]) -> _Words | None:
    """uint64[n, 2]: upper and lower half of each UUID; None if one of them is not in canonical form."""
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
    """float64[n, words]: up to four uniforms on [0, 1) per decision, from seeds uint64[n] and ids of `uuid_words`."""
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
    """Upper and lower 64 bits of the products."""
    c_high, c_low = constant >> _HALF, constant & _LOW
    v_high, v_low = values >> _HALF, values & _LOW
    cross = c_low * v_high + (c_low * v_low >> _HALF)
    other = c_high * v_low + (cross & _LOW)
    return c_high * v_high + (cross >> _HALF) + (other >> _HALF), constant * values
