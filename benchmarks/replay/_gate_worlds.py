"""Simulated logs with a known truth, for `replay_gate.py`: 20,000 decisions of a router, and a candidate.

Four to six models, prompts of six numbers, 300 users with tastes. What somebody says of an answer is a thumb or a
rating around their true satisfaction with it; a reward model's score is informative and miscalibrated. The logger is
softmax or inverse-gap-weighted (SquareCB) on beliefs that know no tastes and are wrong in part, with a floor of .05; in
a third of the worlds it learns from the labels as they come. In half of them decisions are turns of sessions that stay
on their model and are drawn again after six turns. The candidate has other beliefs: wrong elsewhere, and moved towards
the truth or away from it, by as much as makes its value differ from the logger's by what is wanted, exactly, over the
log's own prompts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fitrouter.types import Mode
from fitrouter_evaluators.replay.log.log import MODES, Decisions, Log, Names, Options, Outcomes

Floats = np.ndarray

PROMPT, STYLES, USERS = 6, 3, 300
FLOOR, ASK = 0.05, 0.1
MOVED, MOVED_IN_VAIN = 0.02, 0.06
"""How wrong a candidate is elsewhere: more where it gains nothing, or it would hardly differ from the logger."""
BLOCK = 500
"""Decisions between two updates of a logger that learns."""
REDRAW = 6
GAP_S, IDLE_S = 30.0, 3600.0


class Kind(NamedTuple):
    """Settings that define a kind of world."""

    family: str
    sharpness: float
    """softmax: temperature; squarecb: γ."""
    adaptive: bool
    sessions: bool
    thumbs: bool
    flattery: bool
    """The candidate follows a score that is too high where satisfaction is low."""
    ask: float
    """Probability with which somebody is asked."""


class World(NamedTuple):
    """A log with its true values."""

    kind: Kind
    log: Log
    candidate: Floats
    """float64[m]: the candidate's pmf, for each entry of the log's options."""
    difference: float
    """Mean over sessions of the candidate's satisfaction − the logger's."""
    score: float
    """The same of the score."""
    chi2: float
    """Mean over draws of Σ (π − p)² / p: how far the candidate is from the log."""


class Scene(NamedTuple):
    """A world's users, prompts and truths, before the logger draws."""

    x: Floats
    user: Floats
    truth: Floats
    """float64[n, K]: mean satisfaction with each model."""
    scored: Floats
    """float64[n, K]: mean score."""
    beliefs: Floats
    """float64[n, K]: the logger's, before it learns."""
    wrong: Floats
    """float64[n, K]: what the candidate believes elsewhere, by mistake."""
    styles: Floats
    """float64[K, STYLES]"""
    ts: Floats
    session: Floats
    draw: Floats
    """int64[n]: the row whose draw a decision lives on."""


def make(index: int, difference: float, *, flattery: bool = False, ask: float = ASK, n: int = 20_000) -> World:
    """Make world number `index`, whose candidate is worth `difference` more than its logger.

    Kinds take turns. Where no candidate of the kind could be worth so much, another world of it is made, in which
    tastes differ a little more.
    """
    for attempt in range(50):
        rng = np.random.default_rng([index, round(1e4 * difference) % 2**32, flattery, attempt])
        family = ("softmax", "squarecb")[index % 2]
        kind = Kind(
            family=family,
            sharpness=float(rng.uniform(0.04, 0.1) if family == "softmax" else rng.uniform(20.0, 80.0)),
            adaptive=index // 2 % 3 == 0,
            sessions=index // 6 % 2 == 0,
            thumbs=index // 12 % 2 == 0,
            flattery=flattery,
            ask=ask,
        )
        world = _attempt(rng, kind, 0.1 * 1.1**attempt, difference, n)
        if world is not None:
            return world
    raise ValueError(f"no world found in which a candidate could be worth {difference:+}")


def _attempt(rng: np.random.Generator, kind: Kind, taste: float, difference: float, n: int) -> World | None:
    scene = _scene(rng, kind, taste, MOVED if difference > 0.0 else MOVED_IN_VAIN, n)
    logged = _Logger(kind, scene).play(rng)
    closed = _closed(scene)
    follows = 0.5 * (scene.scored - logged.beliefs) if kind.flattery else 0.0
    start = logged.beliefs + scene.wrong + follows
    draws = np.flatnonzero(scene.draw == np.arange(n))
    gains, shares = (_per_draw(scene, v, closed)[draws] for v in (scene.truth, np.ones_like(scene.truth)))
    towards = (scene.truth - logged.beliefs)[draws]
    pmf = _calibrated(kind, start[draws], towards, logged.pmf[draws], gains, shares[:, 0], difference)
    if pmf is None:
        return None
    moved = pmf - logged.pmf[draws]
    units = len(np.unique(scene.session[closed]))
    score = float((moved * _per_draw(scene, scene.scored, closed)[draws]).sum()) / units
    if kind.flattery and score <= 0.0:
        return None
    full = np.full(logged.pmf.shape, np.nan)
    full[draws] = pmf
    return World(
        kind=kind,
        log=_log(kind, scene, logged),
        candidate=full.ravel(),
        difference=float((moved * gains).sum()) / units,
        score=score,
        chi2=float((moved**2 / logged.pmf[draws]).sum(axis=1).mean()),
    )


def _scene(rng: np.random.Generator, kind: Kind, taste: float, moved: float, n: int) -> Scene:
    K = int(rng.integers(4, 7))
    ts, session, draw = _sessions(rng, n) if kind.sessions else (GAP_S * np.arange(n), np.arange(n), np.arange(n))
    topic = rng.normal(size=(int(session.max()) + 1, PROMPT))
    x = 0.9 * topic[session] + np.sqrt(1.0 - 0.81) * rng.normal(size=(n, PROMPT))
    user = rng.integers(USERS, size=len(topic))[session]
    styles, tastes = rng.normal(size=(K, STYLES)), rng.normal(size=(USERS, STYLES))
    base, slope = 0.05 * rng.normal(size=K), 0.12 * rng.normal(size=(PROMPT, K)) / np.sqrt(PROMPT)
    flattered = np.zeros(K)
    if kind.flattery:
        flattered[rng.integers(K)] = 0.25
        base -= 0.3 * flattered
    truth = np.clip(0.6 + base + x @ slope + taste * tastes[user] @ styles.T / np.sqrt(STYLES), 0.02, 0.98)

    def mistaken(scale: float) -> Floats:
        return scale * (x @ rng.normal(size=(PROMPT, K)) / np.sqrt(PROMPT) + rng.normal(size=K))

    return Scene(
        x=x,
        user=user,
        truth=truth,
        scored=0.25 + 0.5 * truth + flattered,
        beliefs=0.6 + 0.6 * (base + x @ slope) + mistaken(0.05),
        wrong=mistaken(moved),
        styles=styles,
        ts=ts,
        session=session,
        draw=draw,
    )


def _sessions(rng: np.random.Generator, n: int) -> tuple[Floats, Floats, Floats]:
    """Draw (time, session, row of the draw) of each decision; sessions overlap."""
    length = np.minimum(rng.geometric(0.4, size=n), 12)
    begins = np.sort(rng.uniform(0.0, 1.0, size=n)) * n * GAP_S * length.mean()
    session = np.repeat(np.arange(n), length)
    turn = np.arange(len(session)) - np.repeat(np.cumsum(length) - length, length)
    silence = rng.exponential(180.0, size=len(session)) * (turn > 0)
    passed = np.cumsum(silence)
    at = begins[session] + passed - np.repeat(passed[np.cumsum(length) - length], length)
    order = np.argsort(at, kind="stable")[:n]
    at, session, turn = at[order], session[order], turn[order]
    _, session = np.unique(session, return_inverse=True)
    key = session * 16 + turn // REDRAW
    _, first, back = np.unique(key, return_index=True, return_inverse=True)
    return at, session, first[back]


def _closed(scene: Scene) -> Floats:
    """Return which decisions, bool[n], are of sessions without a turn in the last hour of the log."""
    last = np.zeros(int(scene.session.max()) + 1)
    np.maximum.at(last, scene.session, scene.ts)
    alone = len(last) == len(scene.ts)
    return np.full(len(scene.ts), True) if alone else last[scene.session] < scene.ts[-1] - IDLE_S


def _per_draw(scene: Scene, values: Floats, closed: Floats) -> Floats:
    """Return what each model would add to the sum of sessions' means, float64[n, K] at the rows of draws."""
    turns = np.bincount(scene.session)[scene.session]
    total = np.zeros_like(values)
    np.add.at(total, scene.draw, values * (closed / turns)[:, None])
    return total


class Logged(NamedTuple):
    """What the logger did in a scene, and the outcomes."""

    beliefs: Floats
    pmf: Floats
    arm: Floats
    asked: Floats
    label: Floats
    """float64[n]: what would be said; heard of those who are asked."""
    score: Floats
    h: Floats


class _Logger:
    """The policy that made the log."""

    def __init__(self, kind: Kind, scene: Scene) -> None:
        self.kind, self.scene = kind, scene

    def play(self, rng: np.random.Generator) -> Logged:
        scene, kind = self.scene, self.kind
        n, K = scene.truth.shape
        beliefs, pmf, arm = scene.beliefs.copy(), np.empty((n, K)), np.empty(n, dtype=np.int64)
        quality, label = np.empty(n), np.full(n, np.nan)
        asked = rng.random(n) < kind.ask
        features = np.concatenate([scene.x, np.ones((n, 1))], axis=1)
        gram, moment = np.tile(10.0 * np.eye(PROMPT + 1), (K, 1, 1)), np.zeros((K, PROMPT + 1))
        for begin in range(0, n, BLOCK):
            now = slice(begin, min(n, begin + BLOCK))
            if kind.adaptive:
                beliefs[now] += features[now] @ np.linalg.solve(gram, moment[:, :, None])[:, :, 0].T
            pmf[now] = policy(kind, beliefs[now])
            own = np.minimum((pmf[now].cumsum(axis=1) < rng.random((len(pmf[now]), 1))).sum(axis=1), K - 1)
            arm[now] = own
            arm[now] = arm[scene.draw[now]]
            quality[now], label[now] = _said(rng, scene.truth[np.arange(n)[now], arm[now]], kind.thumbs)
            rows = np.flatnonzero(asked[now]) + begin
            missed = label[rows] - scene.beliefs[rows, arm[rows]]
            np.add.at(gram, arm[rows], features[rows, :, None] * features[rows, None, :])
            np.add.at(moment, arm[rows], features[rows] * missed[:, None])
        flattered = scene.scored - 0.25 - 0.5 * scene.truth
        score = 0.25 + 0.5 * quality + flattered[np.arange(n), arm] + rng.normal(0.0, 0.1, n)
        style = scene.styles[arm] + 0.5 * rng.normal(size=(n, STYLES))
        h = np.concatenate([np.ones((n, 1)), score[:, None], style], axis=1)
        return Logged(beliefs, pmf, arm, asked, label, np.clip(score, 0.0, 1.0), h.astype(np.float32))


def _said(rng: np.random.Generator, mean: Floats, thumbs: bool) -> tuple[Floats, Floats]:
    """Draw (quality of each answer, what somebody says of it), with means around `mean`."""
    reach = np.minimum(np.minimum(mean, 1.0 - mean), 0.3)
    quality = mean + reach * rng.uniform(-1.0, 1.0, len(mean))
    if thumbs:
        return quality, (rng.random(len(mean)) < quality).astype(np.float64)
    safe = np.clip(quality, 1e-3, 1.0 - 1e-3)
    return quality, rng.beta(6.0 * safe, 6.0 * (1.0 - safe))


def policy(kind: Kind, beliefs: Floats) -> Floats:
    """Return the pmf that a policy of this kind makes of beliefs, float64[n, K]."""
    K = beliefs.shape[1]
    gap = beliefs.max(axis=1, keepdims=True) - beliefs
    if kind.family == "softmax":
        pmf = np.exp(-gap / kind.sharpness)
        pmf /= pmf.sum(axis=1, keepdims=True)
    else:
        pmf = 1.0 / (K + kind.sharpness * gap)
        best = beliefs.argmax(axis=1)
        pmf[np.arange(len(pmf)), best] += 1.0 - pmf.sum(axis=1)
    return (1.0 - FLOOR) * pmf + FLOOR / K


def _calibrated(
    kind: Kind, start: Floats, towards: Floats, logged: Floats, gains: Floats, shares: Floats, difference: float
) -> Floats | None:
    """Return the candidate's pmf at draws; None where no candidate has the wanted difference.

    A logger that learns is met anew in each stretch of two thousand draws, so that the difference is there all along.

    Args:
        kind: of world.
        start: float64[m, K], what the candidate believes.
        towards: float64[m, K], what separates the logger from the truth.
        logged: float64[m, K], the logger's pmf.
        gains: float64[m, K], what each model would add to the sum over sessions of their means.
        shares: float64[m], sessions that each draw stands for.
        difference: of the candidate from the logger, wanted.
    """
    pmf = np.empty_like(logged)
    step = 2000 if kind.adaptive else len(logged)
    for begin in range(0, len(logged), step):
        now = slice(begin, begin + step)
        found = _solved(kind, start[now], towards[now], logged[now], gains[now], difference * float(shares[now].sum()))
        if found is None:
            return None
        pmf[now] = found
    return pmf


def _solved(kind: Kind, start: Floats, towards: Floats, logged: Floats, gains: Floats, aim: float) -> Floats | None:
    def worth(c: float) -> float:
        return float(((policy(kind, start + c * towards) - logged) * gains).sum())

    low, high = -2.0, 2.0
    if not worth(low) < aim < worth(high):
        return None
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if worth(middle) < aim else (low, middle)
    return policy(kind, start + high * towards)


def _log(kind: Kind, scene: Scene, logged: Logged) -> Log:
    n, K = logged.pmf.shape
    rows, drawn = np.arange(n), scene.draw == np.arange(n)
    alone = len(np.unique(scene.session)) == n
    start = np.arange(n + 1) * K
    _, first = np.unique(scene.session, return_index=True)
    decisions = Decisions(
        id=np.array([f"d{i}" for i in rows], dtype=object),
        seq=rows + 1,
        ts=scene.ts,
        draw=scene.draw,
        mode=np.where(drawn, MODES.index(Mode.ONLINE), MODES.index(Mode.STICKY)),
        start=start,
        chosen=start[:-1] + logged.arm,
        propensity=np.where(drawn, logged.pmf[rows, logged.arm], 1.0),
        tenant=np.zeros(n, dtype=np.int64),
        user=scene.user,
        role=np.full(n, -1),
        task=np.full(n, -1),
        session=np.full(n, -1) if alone else scene.session,
        begins=first[scene.session] == rows,
        asked=logged.asked,
        asked_probability=np.full(n, kind.ask),
        learnt=np.full(n, -1),
        x=scene.x.astype(np.float32),
    )
    unseen = np.full(n, np.nan)
    return Log(
        source="a simulated log",
        names=Names(
            arms=tuple(f"m{k}" for k in range(K)),
            tenants=("t",),
            users=tuple(f"u{i}" for i in range(USERS)),
            sessions=() if alone else tuple(f"s{i}" for i in range(len(first))),
        ),
        decisions=decisions,
        options=Options(
            arm=np.tile(np.arange(K), n),
            prob=np.where(drawn[:, None], logged.pmf, np.nan).ravel(),
            mean=logged.beliefs.ravel(),
        ),
        outcomes=Outcomes(
            status=np.full(n, "ok", dtype=object),
            served=logged.arm,
            cost_usd=unseen,
            latency_s=unseen,
            asked_label=np.where(logged.asked, logged.label, np.nan),
            free_label=unseen,
            score=logged.score,
            h=logged.h,
            schema="benchmark",
        ),
    )
