"""Personalisation monitor: anytime-valid tests of whether the terms of role and user help, and an automatic switch.

Every decision logs two pmfs over the same arms: the personal one, and that of a user-blind policy without the terms of
role and user. Each label updates two statistics, overall and per role:

* **Value.** z = Δ_a / p_a · (y − m_a) + Σ_k Δ_k m_k, where Δ is the difference of the two pmfs, p the logged pmf, a the
  arm drawn and m any prediction made before the label. Its mean is V(personal) − V(blind) for every m (doubly robust:
  Dudík, Langford and Li 2011). Its variance given the past is about Σ Δ²/p times that of y − m, known before the
  label, so that intervals need not wait for rare draws to become wide enough. It is unbiased but noisy: where the two
  policies disagree, the arm of the blind one is drawn as rarely as the floor allows.
* **Prediction.** Let b be the prediction of y without the personal term s. The squared error falls on average by
  (y − b)² − (y − b − rs)² if more than r/2 of the term is real. Every label bears on this, whichever arm was drawn.
  A term of which less than a third is real (r = ⅔) is switched off; more than an eighth must be real (r = ¼) for the
  verdict "helps".

Each hypothesis is tested by betting (`e_process`), and the mean of two e-processes decides. "Helps" is therefore ever
reported with probability at most α if, given the past, the term improves neither the value of any decision nor the
prediction of any label, and likewise "harms"; the roles share another α. A third of each e-process's wealth is
reserved for effects that begin late, such as changing tastes. A switch restarts the bets, so that each switching off
and each switching on again is wrong with probability at most α.
"""

from __future__ import annotations

import math
from operator import mul, truediv
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from fitrouter.identity import role_key
from fitrouter.monitors.e_process import EProcess
from fitrouter.plain import Projection
from fitrouter.types import Decision

Verdict: TypeAlias = Literal["helps", "harms", "not known"]

ROLES = 32
"""Roles that are tested on their own, in order of appearance."""
HELPS, HARMS = 0.25, 2.0 / 3.0
"""Strengths r at which the predictions of the term are tested."""
NOISE = 0.25
"""Prior variance of y − m: the largest one of a label in [0, 1]."""
TIGHT = 64.0
"""Scale of the Gaussian mixture: the interval is tightest where Σ z has about eight times this variance, which takes
some thousand labels."""
BETS = ("value_up", "value_down", "foresees", "misleads")
"""Names under which the e-processes of a scope are stored."""


class PersonalisationParams(msgspec.Struct, frozen=True, kw_only=True):
    """Level of the verdicts and of the intervals."""

    alpha: float = 0.05


class Report(NamedTuple):
    """Report on the value of personalisation in one role, or overall."""

    n: int
    """Labelled decisions that were drawn."""
    gain: float
    """Estimate of V(personal) − V(blind), in units of a label in [0, 1]."""
    low: float
    high: float
    """Bounds of its asymptotic confidence sequence, valid at all times."""
    verdict: Verdict
    real: float
    """Share of the personal term that labels confirm: the slope of y − b on s; NaN before any label."""
    off: bool

    def printed(self) -> Report:
        """Return the report for display: its interval clipped to [−1, 1], and its gain to the interval.

        The sequence is asymptotic: 0 stays in it as long as the exact bets have not decided.
        """
        low, high = min(max(self.low, -1.0), 1.0), max(min(self.high, 1.0), -1.0)
        if self.verdict == "not known":
            low, high = min(low, 0.0), max(high, 0.0)
        return self._replace(low=low, high=high, gain=min(max(self.gain, low), high))


class _Totals(msgspec.Struct, array_like=True):
    """Running sums over the labels of one role, or of all roles."""

    n: int = 0
    gain: float = 0.0
    """Σ z."""
    spread: float = 0.0
    """Σ of Σ_k Δ_k²/p_k."""
    seen: int = 0
    cross: float = 0.0
    power: float = 0.0
    """Number of labels with a prediction, Σ s(y − b) and Σ s²."""
    off: bool = False
    wealth: dict[str, bytes] = {}
    """Stored e-processes, by the names in `BETS`."""


class _StoredGains(msgspec.Struct, array_like=True):
    scopes: list[tuple[str, _Totals]]
    squares: tuple[float, float]


class _Scope:
    """Totals and e-processes of one role, or of all roles."""

    def __init__(self, totals: _Totals) -> None:
        self.totals = totals
        self.bets = {name: EProcess() for name in BETS}

    @property
    def helps(self) -> float:
        """E-value against the hypothesis that personalisation does not help."""
        return 0.5 * (self.bets["value_up"].value + self.bets["foresees"].value)

    @property
    def harms(self) -> float:
        """E-value against the hypothesis that personalisation does not harm."""
        return 0.5 * (self.bets["value_down"].value + self.bets["misleads"].value)


class PersonalisationMonitor(Projection):
    """Tests whether personalisation helps, over labels in [0, 1] of the dimension `overall`, each once and in order."""

    stored_type = _StoredGains

    def __init__(self, params: PersonalisationParams | None = None) -> None:
        self.params = params or PersonalisationParams()
        self._all = _Scope(_Totals())
        self._roles: dict[str, _Scope] = {}
        self._squares = (0.0, 0.0)
        """Σ (y − m)² and their number."""

    # --- learning ---

    def observe(self, decision: Decision, y: float) -> None:
        """Update the value statistics with a labelled decision.

        Args:
            decision: that was labelled. One that was not drawn, or has no user-blind pmf, is skipped.
            y: the label in [0, 1].
        """
        personal, blind = decision.personal or decision.probs, decision.twin or decision.probs
        K = len(decision.eligible)
        if not decision.mode.drawn or not (0.0 <= y <= 1.0) or not len(personal) == len(blind) == K:
            return
        p, delta = decision.probs, [after - before for after, before in zip(personal, blind, strict=True)]
        if len(p) != K or not min(p) > 0.0 or decision.chosen not in decision.eligible:
            return
        m = [min(max(mean, 0.0), 1.0) for mean in decision.mean] if len(decision.mean) == K else [0.5] * K
        if not all(map(math.isfinite, (*delta, *m))):
            return
        a = decision.eligible.index(decision.chosen)
        direct, weight = math.fsum(map(mul, delta, m)), list(map(truediv, delta, p))
        z = weight[a] * (y - m[a]) + direct
        # Bounds of z over all draws and labels, known before the draw as betting requires.
        ends = [(-w * mean, w * (1.0 - mean)) for w, mean in zip(weight, m, strict=True)]
        low, high = direct + min(map(min, ends)), direct + max(map(max, ends))
        spread = math.fsum(map(mul, delta, weight))
        self._squares = self._squares[0] + (y - m[a]) ** 2, self._squares[1] + 1.0
        for scope in self._scopes(role_key(decision.identity)):
            totals = scope.totals
            totals.n += 1
            totals.gain += z
            totals.spread += spread
            # A bound of at least 1 limits the stakes; without it, negligible differences would become significant.
            scope.bets["value_up"].bet(z, min(low, -1.0))
            scope.bets["value_down"].bet(-z, min(-high, -1.0))
            self._switch(scope)

    def observe_prediction(self, role: str, *, y: float, blind: float, term: float) -> None:
        """Update the prediction statistics with a label, whichever arm answered.

        Args:
            role: key of the role (`fitrouter.identity.role_key`), empty for none.
            y: the label in [0, 1].
            blind: its prediction without the terms of role and user.
            term: the sum of these terms at full strength, before the label was learnt.
        """
        if not (0.0 <= y <= 1.0 and math.isfinite(blind) and math.isfinite(term)) or term == 0.0:
            return
        b = min(max(blind, 0.0), 1.0)
        for scope in self._scopes(role):
            totals = scope.totals
            totals.seen += 1
            totals.cross += term * (y - b)
            totals.power += term * term
            scope.bets["foresees"].bet(_error_reduction(y, b, (HARMS if totals.off else HELPS) * term), -1.0)
            scope.bets["misleads"].bet(-_error_reduction(y, b, HARMS * term), -1.0)
            self._switch(scope)

    def _scopes(self, role: str) -> list[_Scope]:
        if role and role not in self._roles and len(self._roles) < ROLES:
            self._roles[role] = _Scope(_Totals())
        return [self._all, *([self._roles[role]] if role in self._roles else [])]

    def _switch(self, scope: _Scope) -> None:
        """Switch personalisation off if it harms, and on again if later labels show that it helps."""
        totals = scope.totals
        if (scope.helps if totals.off else scope.harms) >= self._threshold(scope):
            totals.off = not totals.off
            for name in BETS:
                scope.bets[name] = EProcess()

    def _threshold(self, scope: _Scope) -> float:
        """The e-value from which a verdict is given: 1/α overall, Bonferroni-corrected for roles."""
        return (1.0 if scope is self._all else float(len(self._roles))) / self.params.alpha

    # --- reading ---

    def off(self, role: str = "") -> bool:
        """Whether personalisation is off for a role; the personal pmf is then only logged as a candidate.

        A role follows its own verdict where it has one, else the overall switch.
        """
        own = self._roles.get(role)
        if own is not None and (own.totals.off or self._verdict(own) == "helps"):
            return own.totals.off
        return self._all.totals.off

    def report(self, role: str | None = None) -> Report | None:
        """The report overall or of one role; None for a role without labels."""
        scope = self._all if role is None else self._roles.get(role)
        if scope is None:
            return None
        totals = scope.totals
        gain, half = (totals.gain / totals.n, self._half_width(totals)) if totals.n else (0.0, math.inf)
        real = totals.cross / totals.power if totals.power > 0.0 else math.nan
        return Report(totals.n, gain, gain - half, gain + half, self._verdict(scope), real, totals.off)

    def roles(self) -> list[str]:
        """Roles that have a report."""
        return list(self._roles)

    def _verdict(self, scope: _Scope) -> Verdict:
        if scope.totals.off or scope.harms >= self._threshold(scope):
            return "harms"
        return "helps" if scope.helps >= self._threshold(scope) else "not known"

    def _half_width(self, totals: _Totals) -> float:
        """Half-width of the confidence sequence for the gain, by a Gaussian mixture in the martingale's intrinsic time.

        As `Moments.half_width`, with the accumulated variance given the past in place of the number of observations.
        """
        noise = (10.0 * NOISE + self._squares[0]) / (10.0 + self._squares[1])
        clock = noise * totals.spread
        if not clock > 0.0:  # the policies never differed
            return math.inf
        grown = clock / TIGHT + 1.0
        reach = 2.0 * grown * TIGHT * math.log(math.sqrt(grown) / self.params.alpha)
        return math.sqrt(reach) / totals.n

    # --- state ---

    def _store(self) -> _StoredGains:
        scopes = []
        for key, scope in (("", self._all), *self._roles.items()):
            wealth = {name: bet.dump() for name, bet in scope.bets.items()}
            scopes.append((key, msgspec.structs.replace(scope.totals, wealth=wealth)))
        return _StoredGains(scopes, self._squares)

    def _restore(self, stored: _StoredGains) -> bool:
        found: dict[str, _Scope] = {}
        for key, totals in stored.scopes:
            scope = _Scope(msgspec.structs.replace(totals, wealth={}))
            sums = (totals.gain, totals.spread, totals.cross, totals.power, *stored.squares)
            valid = all(map(math.isfinite, sums)) and min(totals.spread, totals.power, *stored.squares) >= 0.0
            valid = valid and min(totals.n, totals.seen) >= 0 and set(totals.wealth) == set(BETS)
            if not valid or not all(scope.bets[name].load(state) for name, state in totals.wealth.items()):
                return False
            found[key] = scope
        if "" not in found or len(found) != len(stored.scopes) or len(found) > ROLES + 1:
            return False
        self._all, self._squares = found.pop(""), stored.squares
        self._roles = found
        return True


def _error_reduction(y: float, b: float, term: float) -> float:
    """How much the personal term reduces the squared error of one label, in [−1, 1]."""
    p = min(max(b + term, 0.0), 1.0)
    return (y - b) ** 2 - (y - p) ** 2
