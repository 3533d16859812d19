"""Cells: the units of one cluster in one slice."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fitrouter.errors import ConfigError
from fitrouter.types import Floats
from fitrouter_evaluators.replay.log.log import Ints

_LARGEST = (1 << 31) - 1
"""Two codes fit into one number."""


class Cells(NamedTuple):
    """G cells sorted by slice; a cell holds the units of one cluster in one slice."""

    cell: Ints | None
    """The cell of each unit, G if in no slice, int64[n]; None if each unit is its own cell, in order."""
    size: Floats
    """Number of units, float64[G]."""
    edges: Ints
    """Slice s has the cells `edges[s]` to `edges[s + 1]`, int64[S + 1]."""
    n: Ints
    """Units of each slice, int64[S]."""

    @property
    def clusters(self) -> Ints:
        """Number of cells in each slice, int64[S]."""
        return np.diff(self.edges)

    def sums(self, columns: Floats) -> Floats:
        """Sum columns of units, float64[c, n], over each cell, float64[c, G]."""
        if self.cell is None:
            return columns
        cells = len(self.size)
        return np.array([np.bincount(self.cell, column, cells + 1)[:cells] for column in columns], dtype=np.float64)

    def means(self, sums: Floats) -> Floats:
        """Means over the units of each slice, float64[S, c], from cell sums, float64[c, G]; NaN for an empty slice."""
        means = np.full((len(self.n), len(sums)), np.nan)
        some = np.flatnonzero(self.n)
        if len(some):
            means[some] = (np.add.reduceat(sums, self.edges[some], axis=1) / self.n[some]).T
        return means


def cells_of(n: int, cluster: Ints | None, slices: Ints | None, n_slices: int) -> Cells:
    """Group n units into cells; cluster and slice codes are those of `intervals.deltas`."""
    where = np.zeros(n, dtype=np.int64) if slices is None else _codes("slices", slices, n, -1)
    if n_slices < 1 or (slices is None and n_slices > 1) or where.max(initial=0) >= n_slices:
        given = "no slice codes" if slices is None else f"slice codes up to {where.max(initial=0)}"
        raise ConfigError(f"interval: {given} for {n_slices} slices; codes must be from 0 to n_slices − 1")
    if slices is None and cluster is None:
        return Cells(None, np.ones(n), np.array([0, n]), np.array([n]))
    # Units in no slice come first: their cells are cut off.
    units = np.bincount(where + 1, minlength=n_slices + 1)
    outside, counts = int(units[0]), units[1:]
    key = where + 1
    if cluster is not None:
        cluster = _codes("cluster", cluster, n, 0)
        key = key * (int(cluster.max(initial=0)) + 1) + cluster
    order = _sorted(key)
    inside = order[outside:]
    begins = np.ones(len(inside), dtype=bool)
    if cluster is not None:
        begins[1:] = np.diff(key[inside]) > 0
    first = np.flatnonzero(begins)
    cell = np.full(n, len(first))
    cell[inside] = np.cumsum(begins) - 1
    size = np.diff(first, append=len(inside)).astype(np.float64)
    return Cells(cell, size, np.searchsorted(first, np.cumsum(units) - outside), counts)


def _sorted(key: Ints) -> Ints:
    """Stable `argsort` of non-negative codes by digits of 16 bits: numpy sorts those by radix, four times as fast."""
    order = np.argsort(key.astype(np.uint16), kind="stable")
    largest, shift = int(key.max(initial=0)), 16
    while largest >> shift:
        digit = (key[order] >> shift).astype(np.uint16)
        order = order[np.argsort(digit, kind="stable")]
        shift += 16
    return order


def _codes(name: str, codes: Ints, n: int, least: int) -> Ints:
    codes = np.asarray(codes, dtype=np.int64)
    low, high = codes.min(initial=0), codes.max(initial=0)
    if codes.shape != (n,) or low < least or high > _LARGEST:
        raise ConfigError(
            f"interval: {name} has shape {codes.shape} and codes {low} to {high}; give one code from {least} to "
            f"{_LARGEST} for each of the {n} units"
        )
    return codes
