"""Exploration mass of a decision's pmf under another floor, uniform slice or traffic share.

A decision's pmf is (1 − Σ rest) · policy + rest (`routing.decider`). With s the share, u the uniform slice, f the
floor (reduced where a budget cannot pay for it) and r the traffic share of new arms N:

    rest_k = s · inside_k + (1 − s) [k is the default]
    inside_k = ((1 − u) (1 − r) f + u) / K + (1 − u) r [k ∈ N] / |N|

Where the default model is not eligible, s is 1. The log holds s, rest, and s ((1 − u) (1 − r) f + u) as `floor`.
Another s needs only the default's identity; another f or u also needs the live u, which is not logged. The share of
new arms stays as logged, and with it those of other tenants' models (`policy.pooling`) and of friction, which enter in
the same way.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fitrouter.errors import ConfigError
from fitrouter.state.budgets import BudgetParams
from fitrouter.types import Floats, Mode
from fitrouter_evaluators.replay.candidates._log_columns import (
    arm_codes,
    drawn,
    entries,
    number,
    per_entry,
    per_row,
    refuse,
    sums,
)
from fitrouter_evaluators.replay.candidates._settings import Settings
from fitrouter_evaluators.replay.log.log import MODES, Ints, Log

_FLOOR_MARGIN = 1.0 - 1e-9
"""The logged floor is scaled by this to stay below the exact one (`routing.decider`)."""
_ROUNDING = 1e-12
_NO_REST = "an earlier fitrouter or another program wrote it: set 'floor', and the mixture is made from your settings"
_UNCHANGED = "floor, uniform_slice and share cannot be changed without it"


class _RestTerms(NamedTuple):
    """Components of the logged `rest` for n rows."""

    share: Floats
    """S, float64[n]."""
    even: Floats
    """float64[n]: (1 − u) (1 − r) f + u."""
    new: Floats
    """float64[m]: (1 − u) r [k ∈ N] / |N|."""


class Mixture:
    """Computes a candidate's `rest` (the probability that does not depend on the policy) on one log."""

    def __init__(self, log: Log, settings: Settings) -> None:
        self.log, self.settings = log, settings
        shadow = log.decisions.chosen[log.decisions.mode == MODES.index(Mode.SHADOW)]
        self._shadowed: Ints = np.unique(log.options.arm[shadow[shadow >= 0]])
        """Arms that took the default's share."""
        self._default_codes = self._default() if settings.share is not None and settings.share < 1.0 else self._shadowed
        paused = [(name, arm_codes(log.names.arms, name)) for name in settings.paused]
        if unknown := [name for name, codes in paused if not len(codes)]:
            raise ConfigError(
                f"paused: there is no arm {unknown[0]!r} in the log; there are {', '.join(log.names.arms)}"
            )
        self._paused: Ints = np.concatenate([np.zeros(0, dtype=np.int64), *(codes for _, codes in paused)])

    def kept(self, rows: Ints) -> NDArray[np.bool_]:
        """Which entries of these rows the candidate may draw, bool[m]: all of a row that has paused models alone."""
        kept = ~np.isin(self.log.options.arm[entries(self.log, rows)], self._paused)
        counts = np.diff(self.log.decisions.start)[rows]
        return np.asarray(kept | np.repeat(number(kept, counts) == 0, counts))

    def rest(self, rows: Ints) -> Floats:
        """Compute the candidate's `rest` at these rows, flat over their entries, float64[m]; only kept ones matter."""
        kept = self.kept(rows)
        log, settings = self.log, self.settings
        counts = np.diff(log.decisions.start)[rows]
        if log.options.rest is None and settings.floor is not None:
            return self._from_settings(rows, counts, kept)
        rest = per_entry(
            log, log.options.rest, rows, "the probability that does not depend on the policy ('rest')", _NO_REST
        )
        if settings.floor is None and settings.uniform_slice is None and settings.share is None and kept.all():
            return rest
        # Where the router itself failed it drew uniformly, whatever the settings.
        failed = self._policy_failed(rows, rest, counts)
        parts = self._rest_terms(rows, rest, counts, failed)
        if settings.floor is not None or settings.uniform_slice is not None:
            parts = self._respread(rows, parts, counts, failed)
        if not kept.all():
            parts, rest = self._without(parts, counts, kept), np.repeat(1.0 / number(kept, counts), counts)
        inside = np.repeat(parts.even / number(kept, counts), counts) + parts.new
        return np.where(np.repeat(failed, counts), rest, self._shared(rows, counts, inside, parts.share, kept))

    def _without(self, parts: _RestTerms, counts: Ints, kept: NDArray[np.bool_]) -> _RestTerms:
        """Give what paused models had to the kept ones: as new models to others of these, else to policy and floor."""
        had, new = sums(parts.new, counts), np.where(kept, parts.new, 0.0)
        left, even = sums(new, counts), parts.even
        if (gone := (had > 0.0) & (left == 0.0)).any():
            live = self._live_slice(True) if self.settings.uniform_slice is None else self.settings.uniform_slice
            even = np.where(gone, live + (even - live) / (1.0 - had / max(1.0 - live, 1e-300)), even)
        return parts._replace(
            even=even, new=new * np.repeat(np.divide(had, left, out=0.0 * had, where=left > 0.0), counts)
        )

    def _from_settings(self, rows: Ints, counts: Ints, kept: NDArray[np.bool_]) -> Floats:
        """Compute `rest` from the candidate's settings alone, for a log that has none."""
        floor, slice_ = self.settings.floor or 0.0, self.settings.uniform_slice or 0.0
        inside = np.repeat(((1.0 - slice_) * floor + slice_) / number(kept, counts), counts)
        return self._shared(rows, counts, inside, np.ones(len(rows)), kept)

    def _shared(self, rows: Ints, counts: Ints, inside: Floats, logged: Floats, kept: NDArray[np.bool_]) -> Floats:
        """Add the share that the default model gets, to the probability within the policy's share."""
        share = logged if self.settings.share is None else np.full(len(rows), self.settings.share)
        if share.min(initial=1.0) >= 1.0:
            return inside
        takes = np.isin(self.log.options.arm[entries(self.log, rows)], self._default_codes) & kept
        default = self._at_most_one(rows, counts, takes, "may be the candidate's default: set 'default_model'")
        share = np.where(sums(default, counts) > 0.0, share, 1.0)
        return np.repeat(share, counts) * inside + np.repeat(1.0 - share, counts) * default

    def _policy_failed(self, rows: Ints, rest: Floats, counts: Ints) -> NDArray[np.bool_]:
        """Whether each row was drawn uniformly because no policy decided, bool[n]."""
        algorithm = self.log.decisions.algorithm
        if algorithm is None:
            return np.zeros(len(rows), dtype=np.bool_)
        return np.asarray((algorithm[rows] == "uniform") & (sums(rest, counts) >= 1.0 - _ROUNDING))

    def _rest_terms(self, rows: Ints, rest: Floats, counts: Ints, failed: NDArray[np.bool_]) -> _RestTerms:
        log = self.log
        share = per_row(log, log.decisions.share, rows, "the share ('share')", _UNCHANGED)
        floor = per_row(log, log.decisions.floor, rows, "the floor ('floor')", _UNCHANGED)
        nothing = drawn(log, rows) & (share <= 0.0) & ~failed
        if nothing.any():
            problem = "was made with share 0, so the policy's exploration is not in it"
            refuse(log, int(rows[nothing.argmax()]), f"{problem}; leave floor, uniform_slice and share unchanged")
        over = rest - np.repeat(floor / _FLOOR_MARGIN / counts, counts)
        took = (over >= np.repeat(1.0 - share, counts) - _ROUNDING) & np.repeat(share < 1.0, counts)
        if len(self._shadowed):
            took &= np.isin(log.options.arm[entries(log, rows)], self._shadowed)
        default = self._at_most_one(rows, counts, took, "may have been the default")
        share = np.where(sums(default, counts) > 0.0, share, 1.0)
        new = (over - np.repeat(1.0 - share, counts) * default) / np.repeat(share, counts)
        none = (new < _ROUNDING) | np.repeat(failed, counts)
        return _RestTerms(share, floor / _FLOOR_MARGIN / share, np.where(none, 0.0, new))

    def _at_most_one(self, rows: Ints, counts: Ints, is_it: NDArray[np.bool_], what: str) -> Floats:
        """Convert a mask of entries to float64[m], refusing a draw with more than one marked entry."""
        found = is_it.astype(np.float64)
        many = (sums(found, counts) > 1.0) & drawn(self.log, rows)
        if many.any():
            refuse(self.log, int(rows[many.argmax()]), f"has several arms that {what}")
        return found

    def _respread(self, rows: Ints, parts: _RestTerms, counts: Ints, failed: NDArray[np.bool_]) -> _RestTerms:
        """Compute the parts of `rest` under another floor or uniform slice."""
        wanted = self.settings
        new = sums(parts.new, counts)
        live = self._live_slice(bool((new > 0.0).any()))
        kept = max(1.0 - live, 1e-300)
        raised = new / kept
        spread = (parts.even - live) / np.maximum(kept * (1.0 - raised), 1e-300)
        self._check_floor(rows, counts, spread, drawn(self.log, rows) & ~failed)
        if wanted.floor is not None:
            spread = np.minimum(wanted.floor, self._payable(rows, counts))
        slice_ = live if wanted.uniform_slice is None else wanted.uniform_slice
        even = (1.0 - slice_) * (1.0 - raised) * spread + slice_
        return parts._replace(even=even, new=(1.0 - slice_) / kept * parts.new)

    def _live_slice(self, newcomers: bool) -> float:
        wanted = self.settings
        if wanted.live is not None:
            return wanted.live.uniform_slice
        if wanted.floor is None or wanted.uniform_slice is None or newcomers:
            raise ConfigError(
                "floor, uniform_slice: the log has only their sum; name the configuration that was in force with "
                "'over: fitrouter.yaml'" + ("" if newcomers else ", or set both")
            )
        return 0.0

    def _check_floor(self, rows: Ints, counts: Ints, spread: Floats, of: NDArray[np.bool_]) -> None:
        """Raise InvalidLog if a row was logged under another floor or slice than the configuration's."""
        live = self.settings.live
        if live is None or live.uniform_slice >= 1.0:
            return
        wanted = np.minimum(live.floor, self._payable(rows, counts))
        other = of & (np.abs(spread - wanted) > 1e-9)
        if other.any():
            at = int(other.argmax())
            problem = f"was made with floor {spread[at]:.6g} if uniform_slice was {live.uniform_slice:g}"
            remedy = f"the configuration's floor gives {wanted[at]:.6g}: name the one that was in force, or a window"
            refuse(self.log, int(rows[at]), f"{problem}; {remedy}")

    def _payable(self, rows: Ints, counts: Ints) -> Floats:
        """Highest floor that the tenant's budget pays for (see `fitrouter.state.budgets.Budgets.floor`), float64[n]."""
        log, made = self.log, self.log.decisions
        if made.budget_weight is None or made.budget_unit_usd is None:
            return np.full(len(rows), np.inf)
        paced = made.budget_weight[rows] > 0.0
        if not paced.any():
            return np.full(len(rows), np.inf)
        cost = per_entry(log, log.options.cost, rows, "the expected cost ('cost')", "the floor cannot be changed")
        pays = BudgetParams().floor_share * made.budget_unit_usd[rows]
        mean = sums(cost, counts) / counts
        return np.where(paced & (mean > 0.0), pays / np.where(mean > 0.0, mean, 1.0), np.inf)

    def _default(self) -> Ints:
        live, arms = self.settings.live, self.log.names.arms
        name = self.settings.default_model or (live.default_model if live is not None else None)
        if name is None:
            if not len(self._shadowed):
                raise ConfigError(
                    "share: set 'default_model', which takes the remaining traffic; the log does not show it"
                )
            return self._shadowed
        codes = arm_codes(arms, name)
        if not len(codes):
            raise ConfigError(f"default_model: there is no arm {name!r} in the log; there are {', '.join(arms)}")
        return codes
