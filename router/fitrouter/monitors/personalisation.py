"""What personalisation buys, looked at continuously, and where it is to be switched off.

Every decision logs two pmfs over the same arms: with the terms of role and user, and without them (its blind twin). Two
questions are asked of every label, overall and per role, and may be looked at after each:

* **Value.** z = Δ_a / p_a · (y − m_a) + Σ_k Δ_k m_k, with Δ the difference of the pmfs, p the logged one, a the model
  drawn and m any prediction made before the label, has the mean V(personal) − V(blind) whatever m is (doubly
  robust, Dudík, Langford and Li 2011). Its variance given the past is Σ Δ²/p times about that of y − m, known before
  the label, so intervals do not wait for rare draws to show how wide they ought to be. It is unbiased, and slow: where
  the two disagree, the blind one's model is drawn as rarely as the floor allows.
* **Foresight.** Does the personal term predict people's labels? With b the prediction without it and s the term at full
  strength, the squared error falls by (y − b)² − (y − b − rs)² on average if more than r/2 of the term is real. Every
  label speaks to that, whatever was drawn. Less than a third real (r = ⅔) switches the term off: one that is to help
  must first foresee. More than an eighth real (r = ¼) is what "helps" needs.

Bets against each (`e_process`) give e-processes, and the mean of the two decides. So "helps" is ever said with
probability α at most where, given the past, the term raises neither the value of any decision nor the foresight of any
label; the same holds for "harms"; roles share an α of their own. A third of each gambler's wealth is kept for effects
that begin late (tastes that turn). A switch starts the bets on the next one anew: each switching off, and each
switching on again, is wrong with probability α at most.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np

from fitrouter.identity import role_key
from fitrouter.monitors.e_process import Wealth
from fitrouter.types import Decision, Projection

Verdict: TypeAlias = Literal["helps", "harms", "not known"]

ROLES = 32
"""Modes whose model was drawn from `probs`; which of them it was hangs on the draw, so all count or none."""
HELPS, HARMS = 0.25, 2.0 / 3.0
"""Strengths r at which the term's foresight is tested."""
NOISE = 0.25
"""Prior variance of y − m."""
TIGHT = 64.0
"""The interval is tightest where Σ z has about eight times this variance, as some thousand labels give it."""
GAMBLERS = ("value_up", "value_down", "foresees", "misleads")


class PersonalisationParams(msgspec.Struct, frozen=True, kw_only=True):
    """Levels of the verdicts and of the intervals."""

    alpha: float = 0.05


class Report(NamedTuple):
    """What personalisation buys in one role, or overall."""

    n: int
    """Labelled decisions that were drawn."""
    gain: float
    """V(personal) − V(blind), in labels of [0, 1]."""
    low: float
    high: float
    """An interval for it that covers at all times (asymptotic)."""
    verdict: Verdict
    real: float
    """Share of the personal term that labels bear out; NaN before there are any."""
    off: bool


class _Scope(msgspec.Struct, array_like=True):
    """Sums of one role, or of all."""

    n: int = 0
    gain: float = 0.0
    """Σ z."""
    spread: float = 0.0
    """Σ of Σ_k Δ_k²/p_k."""
    seen: int = 0
    cross: float = 0.0
    power: float = 0.0
    """Number of labels foreseen, Σ s(y − b) and Σ s²."""
    off: bool = False
    wealth: dict[str, bytes] = {}


class _Stored(msgspec.Struct, array_like=True):
    scopes: list[tuple[str, _Scope]]
    squares: tuple[float, float]


class _Watched:
    """A scope with its gamblers."""

    def __init__(self, scope: _Scope) -> None:
        self.scope = scope
        self.wealth = {name: Wealth() for name in GAMBLERS}

    def evidence(self, value: str, foresight: str) -> float:
        return 0.5 * (self.wealth[value].value + self.wealth[foresight].value)

    @property
    def helps(self) -> float:
        """The e-value against "it does not help"."""
        return self.evidence("value_up", "foresees")

    @property
    def harms(self) -> float:
        """The e-value against "it does not harm"."""
        return self.evidence("value_down", "misleads")


class PersonalisationMonitor(Projection):
    """The fold; see the module. Labels are those on [0, 1] of the dimension `overall`, each once, in sequence order."""

    stored_type = _Stored

    def __init__(self, params: PersonalisationParams | None = None) -> None:
        self.params = params or PersonalisationParams()
        self._all = _Watched(_Scope())
        self._roles: dict[str, _Watched] = {}
        self._squares = (0.0, 0.0)
        """Σ (y − m)² and their number."""

    # --- the fold ---

    def observe(self, decision: Decision, y: float) -> None:
        """Fold what a label says of the value of personal decisions.

        Args:
            decision: that was labelled. Pinned, forced and sticky ones are skipped, and those without a twin.
            y: the label in [0, 1].
        """
        personal, blind = decision.personal or decision.probs, decision.twin or decision.probs
        K = len(decision.eligible)
        if not decision.mode.drawn or not (0.0 <= y <= 1.0) or not len(personal) == len(blind) == K:
            return
        p, delta = np.array(decision.probs), np.array(personal) - np.array(blind)
        if len(p) != K or not p.min() > 0.0 or decision.chosen not in decision.eligible:
            return
        m = np.clip(np.array(decision.mean), 0.0, 1.0) if len(decision.mean) == K else np.full(K, 0.5)
        if not (np.isfinite(delta).all() and np.isfinite(m).all()):
            return
        a = decision.eligible.index(decision.chosen)
        direct, weight = float((delta * m).sum()), delta / p
        z = float(weight[a]) * (y - float(m[a])) + direct
        # The least and the most that z could have been, as they were known before the draw.
        low = direct + float(np.minimum(-weight * m, weight * (1.0 - m)).min())
        high = direct + float(np.maximum(-weight * m, weight * (1.0 - m)).max())
        self._squares = self._squares[0] + (y - float(m[a])) ** 2, self._squares[1] + 1.0
        for watched in self._scopes(role_key(decision.identity)):
            scope = watched.scope
            scope.n += 1
            scope.gain += z
            scope.spread += float((delta * weight).sum())
            # Never more than a unit a label is staked, or differences that are too small to matter would be proven.
            watched.wealth["value_up"].bet(z, min(low, -1.0))
            watched.wealth["value_down"].bet(-z, min(-high, -1.0))
            self._switch(watched)

    def foresee(self, role: str, y: float, blind: float, term: float) -> None:
        """Fold what a label says of the personal term's foresight, whoever answered.

        Args:
            role: its key (`fitrouter.posterior.tastes.role_key`), empty for none.
            y: the label in [0, 1].
            blind: what was predicted of it without the terms of role and user.
            term: what these add at full strength, before the label was learnt.
        """
        if not (0.0 <= y <= 1.0 and math.isfinite(blind) and math.isfinite(term)) or term == 0.0:
            return
        b = min(max(blind, 0.0), 1.0)
        for watched in self._scopes(role):
            scope = watched.scope
            scope.seen += 1
            scope.cross += term * (y - b)
            scope.power += term * term
            watched.wealth["foresees"].bet(_better(y, b, (HARMS if scope.off else HELPS) * term), -1.0)
            watched.wealth["misleads"].bet(-_better(y, b, HARMS * term), -1.0)
            self._switch(watched)

    def _scopes(self, role: str) -> list[_Watched]:
        if role and role not in self._roles and len(self._roles) < ROLES:
            self._roles[role] = _Watched(_Scope())
        return [self._all, *([self._roles[role]] if role in self._roles else [])]

    def _switch(self, watched: _Watched) -> None:
        """Off where it harms, on again where what came later says that it helps."""
        scope, enough = watched.scope, self._enough(watched)
        if (watched.helps if scope.off else watched.harms) >= enough:
            scope.off = not scope.off
            for name in GAMBLERS:
                watched.wealth[name] = Wealth()

    def _enough(self, watched: _Watched) -> float:
        """The e-value that is a verdict."""
        return (1.0 if watched is self._all else float(len(self._roles))) / self.params.alpha

    # --- reading ---

    def off(self, role: str = "") -> bool:
        """Whether the personal term is to be left out of a role's decisions (its pmf is logged as a candidate then)."""
        own = self._roles.get(role)
        if own is not None and (own.scope.off or self._verdict(own) == "helps"):
            return own.scope.off
        return self._all.scope.off

    def report(self, role: str | None = None) -> Report | None:
        """What is known, overall or of one role; None for a role without labels."""
        watched = self._all if role is None else self._roles.get(role)
        if watched is None:
            return None
        scope = watched.scope
        gain, half = (scope.gain / scope.n, self._half_width(scope)) if scope.n else (0.0, math.inf)
        real = scope.cross / scope.power if scope.power > 0.0 else math.nan
        return Report(scope.n, gain, gain - half, gain + half, self._verdict(watched), real, scope.off)

    def roles(self) -> list[str]:
        """Roles that have a report."""
        return list(self._roles)

    def _verdict(self, watched: _Watched) -> Verdict:
        if watched.scope.off or watched.harms >= self._enough(watched):
            return "harms"
        return "helps" if watched.helps >= self._enough(watched) else "not known"

    def _half_width(self, scope: _Scope) -> float:
        """Of a Gaussian mixture over the martingale's own clock: its variance given the past (`Moments.half_width`)."""
        noise = (10.0 * NOISE + self._squares[0]) / (10.0 + self._squares[1])
        clock = noise * scope.spread
        if not clock > 0.0:
            return 0.0 if scope.n else math.inf
        grown = clock / TIGHT + 1.0
        reach = 2.0 * grown * TIGHT * math.log(math.sqrt(grown) / self.params.alpha)
        return math.sqrt(reach) / scope.n

    # --- state ---

    def _store(self) -> _Stored:
        scopes = []
        for key, watched in (("", self._all), *self._roles.items()):
            wealth = {name: gambler.dump() for name, gambler in watched.wealth.items()}
            scopes.append((key, msgspec.structs.replace(watched.scope, wealth=wealth)))
        return _Stored(scopes, self._squares)

    def _restore(self, stored: _Stored) -> bool:
        found: dict[str, _Watched] = {}
        for key, scope in stored.scopes:
            watched = _Watched(msgspec.structs.replace(scope, wealth={}))
            sums = (scope.gain, scope.spread, scope.cross, scope.power, *stored.squares)
            sound = all(math.isfinite(part) for part in sums) and min(scope.spread, scope.power, *stored.squares) >= 0.0
            sound = sound and min(scope.n, scope.seen) >= 0 and set(scope.wealth) == set(GAMBLERS)
            if not sound or not all(watched.wealth[name].load(state) for name, state in scope.wealth.items()):
                return False
            found[key] = watched
        if "" not in found or len(found) != len(stored.scopes) or len(found) > ROLES + 1:
            return False
        self._all, self._squares = found.pop(""), stored.squares
        self._roles = found
        return True


def _better(y: float, b: float, term: float) -> float:
    """By how much the term lowers the squared error, in [−1, 1]."""
    p = min(max(b + term, 0.0), 1.0)
    return (y - b) ** 2 - (y - p) ** 2
