"""Where units count: in a slice, together with the other units of their cluster."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fitrouter.errors import ConfigError
from fitrouter.types import Floats
from fitrouter_evaluators.ope.log import Ints

__all__ = ["Cells", "cells_of"]


class Cells(NamedTuple):
    """G cells: the units of one cluster in one slice, which stand and fall together."""

    units: Ints | None
    """Units that are in a slice; None for all."""
    cell: Ints | None
    """int64: the cell of each such unit; None where each is one of its own."""
    where: Ints
    """int64[G]: the slice."""
    size: Floats
    """float64[G]: units."""
    clusters: Ints
    """int64[S]: cells of each slice."""
    n: Ints
    """int64[S]: units of each slice."""

    def sums(self, columns: Floats) -> Floats:
        """float64[c, G] from columns of units, float64[c, n]."""
        if self.units is not None:
            columns = columns[:, self.units]
        if self.cell is None:
            return columns
        return np.array([np.bincount(self.cell, column, len(self.size)) for column in columns])

    def totals(self, column: Floats) -> Floats:
        """float64[S]: sums over the cells of each slice, from float64[G]."""
        sums: Floats = np.bincount(self.where, column, len(self.n)).astype(np.float64, copy=False)
        return sums

    def means(self, columns: Floats) -> Floats:
        """float64[S, c]: means over the units of each slice, from float64[c, G]; NaN where there are no units."""
        n = np.where(self.n > 0, self.n, np.nan)
        return np.stack([self.totals(column) for column in columns], axis=-1) / n[:, None]


def cells_of(n: int, cluster: Ints | None, slices: Ints | None, n_slices: int) -> Cells:
    """The cells of n units; codes as in `intervals.delta`.

    Raises:
        ConfigError: the codes cannot be used.
    """
    units = None
    where = np.zeros(n, dtype=np.int64) if slices is None else _codes("slices", slices, n, -1)
    if n_slices < 1 or (slices is None and n_slices > 1) or where.max(initial=0) >= n_slices:
        given = "no codes of slices" if slices is None else f"codes of slices up to {where.max(initial=0)}"
        raise ConfigError(f"interval: {given} for {n_slices} slices; allowed are codes from 0 to n_slices − 1")
    if where.min(initial=0) < 0:
        units = np.flatnonzero(where >= 0)
        where = where[units]
    counts = np.bincount(where, minlength=n_slices)
    if cluster is not None:
        cluster = _codes("cluster", cluster, n, 0)
        cluster = cluster if units is None else cluster[units]
    if cluster is None or _distinct(cluster):
        return Cells(units, None, where, np.ones(len(where)), counts, counts)
    width = int(cluster.max()) + 1
    keys, cell, size = np.unique(where * width + cluster, return_inverse=True, return_counts=True)
    where = keys // width
    return Cells(units, cell, where, size.astype(np.float64), np.bincount(where, minlength=n_slices), counts)


def _codes(name: str, codes: Ints, n: int, least: int) -> Ints:
    codes = np.asarray(codes, dtype=np.int64)
    if codes.shape != (n,) or (n and codes.min() < least):
        raise ConfigError(
            f"interval: {name} has shape {codes.shape}, codes from {codes.min(initial=0)}; allowed is one code from "
            f"{least} for each of the {n} units"
        )
    return codes


def _distinct(cluster: Ints) -> bool:
    """No two units share a cluster; said without sorting where codes are compact."""
    if not len(cluster):
        return True
    if cluster.max() < 4 * len(cluster):
        return bool(np.bincount(cluster).max() == 1)
    return len(np.unique(cluster)) == len(cluster)
