"""Labs: small simulated worlds with one event each, and the router's response to it.

Labels are delayed; a better model arrives; the best model degrades unannounced; a price rises; users differ. A lab is
a pure function of its seed and of the router's setup; `benchmarks/simulation/labs.py` prints them over seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from benchmarks.research.scene import K, Outcome, People, Setup, draw, logit, play

from fitrouter.types import Floats
from fitrouter_evaluators.training.hierarchy import sigmoid

WINDOW = 50
"""Decisions over which a probability is averaged to say that a model is adopted, or abandoned."""


class Result(msgspec.Struct, frozen=True):
    """Results of one setup in one seed of a lab."""

    regret: dict[str, float]
    """Phase → cumulative regret."""
    measures: dict[str, float | None]
    """Further measures; None for what never happened."""


def phases(outcome: Outcome, cuts: Sequence[int]) -> dict[str, float]:
    """Sum the regret between cuts (rounds), and in all."""
    parts = {f"{a}-{b}": float(outcome.regret[a:b].sum()) for a, b in pairwise(cuts)}
    return parts | {"all": float(outcome.regret.sum())}


def crossed(probs: Floats, rounds: Any, level: float, since: int, *, above: bool) -> tuple[float, float] | None:
    """Find when the mean of `WINDOW` probabilities in a row first got above a level, or below it.

    Args:
        probs: of the decisions that count.
        rounds: int, theirs, in order.
        level: of the mean.
        since: round from which decisions are counted, all of them, the first being 1.
        above: or below.

    Returns:
        The first and the last decision of that window; None where there is no such window.
    """
    if len(probs) < WINDOW:
        return None
    means = np.convolve(probs, np.full(WINDOW, 1.0 / WINDOW), "valid")
    hits = np.flatnonzero(means > level if above else means < level)
    if not len(hits):
        return None
    first = int(hits[0])
    return float(rounds[first] - since + 1), float(rounds[first + WINDOW - 1] - since + 1)


def share_held(chosen: Any, model: int, since: int) -> float | None:
    """Find ParetoBandit's adoption: the first decision from which a model's share of the last 100 stays at .1 for 50.

    (`_compute_sustained_step` of its model onboarding experiment.) A raised floor alone passes it.
    """
    taken = (chosen[since:] == model).astype(float)
    sums = np.concatenate([[0.0], np.cumsum(taken)])
    held = 0
    for i in range(1, len(sums)):
        start = max(i - 100, 0)
        held = held + 1 if sums[i] - sums[start] >= 0.1 * (i - start) else 0
        if held == 50:
            return float(i - 49)
    return None


# --- the labs ---


def stationary(seed: int, setup: Setup, rounds: int = 4000) -> Result:
    """Run a stationary world. With a `delay`, labels are late; all alarms are false."""
    outcome = play(draw(seed, rounds), setup)
    return Result(phases(outcome, (0, rounds // 4, rounds)), {"false alarms": float(len(outcome.alarms))})


def newcomer(seed: int, setup: Setup, margin: float = 0.8, rounds: int = 4000) -> Result:
    """Run a world in which half-way a model arrives, `margin` above the best mean logit so far.

    It is adopted with the first 50 decisions where it is truly best at a mean probability above ½. The measures from
    "others before" on are mean probabilities of the truly best model: of the others in the quarter before it came, and
    of the newcomer, by decisions since.
    """
    half, new = rounds // 2, K - 1
    scene = draw(seed, rounds, lab=1)
    logits = logit(scene.p)
    means = logits.mean(axis=0)
    logits[:, new] += means[:new].max() + margin - means[new]
    here = scene.here.copy()
    here[:half, new] = False
    outcome = play(msgspec.structs.replace(scene, p=sigmoid(logits), here=here), setup)
    theirs = np.flatnonzero((outcome.best == new) & (np.arange(rounds) >= half))
    window = crossed(outcome.probs[theirs, new], theirs, 0.5, half, above=True) or (None, None)
    right = outcome.probs[np.arange(rounds), outcome.best]

    def given(first: int, last: int) -> float | None:
        its = theirs[(theirs >= half + first) & (theirs < half + last)]
        return float(right[its].mean()) if len(its) else None

    measures: dict[str, float | None] = {
        "adopted": window[0],
        "window ends": window[1],
        "share .1 held": share_held(outcome.chosen, new, half),
        "others before": float(right[half // 2 : half].mean()),
        "decisions 1-120": given(0, 120),
        "121-500": given(120, 500),
        "501 on": given(500, half),
        "best in": len(theirs) / half,
    }
    return Result(phases(outcome, (0, half, half + half // 4, rounds)), measures)


def worse(seed: int, setup: Setup, loss: float = 2.0, rounds: int = 4000) -> Result:
    """Run a world in which half-way the model that is best on average loses logits, unannounced.

    It is abandoned with the first 50 decisions where it was best and is no longer at a mean probability below ¼.
    """
    half = rounds // 2
    scene = draw(seed, rounds, lab=2)
    logits = logit(scene.p)
    best = int(logits.mean(axis=0).argmax())
    before = scene.p.argmax(axis=1)
    logits[half:, best] -= loss
    outcome = play(msgspec.structs.replace(scene, p=sigmoid(logits)), setup)
    measures = _lost(outcome, best, before, half, "abandoned")
    found = [t - half for t, model in outcome.alarms if model == best and t >= half]
    measures["alarm"] = float(found[0]) if found else None
    measures["false alarms"] = float(sum(t < half for t, _ in outcome.alarms))
    return Result(phases(outcome, (0, half, half + half // 4, rounds)), measures)


def _lost(outcome: Outcome, model: int, before: Any, since: int, name: str) -> dict[str, float | None]:
    """Measure the delay until a model is left, and its remaining share, in decisions where it is no longer best."""
    lost = np.flatnonzero((before == model) & (outcome.best != model) & (np.arange(len(before)) >= since))
    window = crossed(outcome.probs[lost, model], lost, 0.25, since, above=False) or (None, None)
    return {name: window[0], "wasted": float(outcome.probs[lost, model].sum())}


def dearer(seed: int, setup: Setup, factor: float = 10.0, rounds: int = 4000) -> Result:
    """Run a world in which half-way the best model's announced price rises tenfold; at first answers cost .02 of fit.

    It is left with the first 50 decisions where it was best and is no longer at a mean probability below ¼.
    """
    half = rounds // 2
    scene = draw(seed, rounds, lab=3)
    rules = msgspec.structs.replace(setup.rules, cost_weight=0.1)
    price = np.full((rounds, K), 4.0)
    best, before = int(logit(scene.p).mean(axis=0).argmax()), scene.p.argmax(axis=1)
    price[half:, best] *= factor
    changed = msgspec.structs.replace(scene, price=price)
    outcome = play(changed, msgspec.structs.replace(setup, rules=rules))
    return Result(phases(outcome, (0, half, half + half // 4, rounds)), _lost(outcome, best, before, half, "left"))


POOLS = ("blind", "role", "user", "separate")
"""Pooling of labels: over all users, also by role, also by user (as shipped), by user only."""


def pooling(seed: int, setup: Setup, pool: str, sd: float = 0.6, rounds: int = 8000) -> Result:
    """Run 200 Zipf users in five roles, for whom models differ by offsets of `sd` logits, per role and per user."""
    params = setup.params
    if pool == "role":
        params = msgspec.structs.replace(params, users=False)
    elif pool in {"blind", "separate"}:
        params = msgspec.structs.replace(params, personal=False)
    elif pool != "user":
        raise ValueError(f"there is no pool {pool!r}; allowed are {POOLS}")
    setup = msgspec.structs.replace(setup, params=params, separate=pool == "separate", votes_per_day=3)
    scene = draw(seed, rounds, People(user_sd=sd, role_sd=sd), lab=4)
    outcome = play(scene, setup)
    often = np.bincount(scene.user, minlength=int(scene.user.max()) + 1)[scene.user] >= 100
    measures: dict[str, float | None] = {"users with 100+ requests": float(outcome.regret[often].sum())}
    return Result(phases(outcome, (0, rounds // 4, rounds)), measures)
