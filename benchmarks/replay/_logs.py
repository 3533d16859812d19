"""Logs with a known truth: ParetoBandit's matrix behind an adaptive logger, with everything that makes replay hard.

Every prompt of the matrix has the judged reward of each model, so the value of any candidate is a sum and no estimate.
A person's label is a coin with the reward's bias (squeezed to .1 + .8 r, so that a session's own mood, up to ±.1, fits
between 0 and 1). The logger learns as it goes: a ridge a model, refreshed every block from labels that had arrived, a
steep softmax, and a small floor. The candidate is another softmax, of a rough model of the whole matrix.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fitrouter.types import Floats, Mode
from fitrouter_evaluators.replay.log.log import MODES, Decisions, Ints, Log, Names, Options, Outcomes

BLOCK = 100
"""Sessions between two refreshes of the logger."""
SECONDS = 60.0
"""Between the beginnings of two sessions; a second between the turns of one."""
IDLE_S = 30.0
DELAY_S = 9_000.0
HORIZON_S = 4.0 * DELAY_S
"""The latest label."""


class World(NamedTuple):
    """The difficulties of a log."""

    sessions: bool = False
    """Up to eight turns on one draw, drawn again at the fifth."""
    floor: float = 0.02
    ask: float = 1.0
    """Probability that a decision's person is asked."""
    late: bool = False
    """Labels come with an exponential delay, mean 150 minutes, at most four times as much; bad ones come first."""
    arms: bool = False
    """One model joins after a third of the log, another leaves after two thirds."""
    drift: bool = False
    """The candidate's favourite loses .3 of its reward half-way."""
    volunteers: bool = False
    """Three times as eager when angry (3 % and 9 %), beside those who are asked."""
    response: tuple[float, float] = (1.0, 1.0)
    """Probability that somebody who is asked answers, content (1) or not (0)."""
    hidden_switch: bool = False
    """The router silently leaves the draw for its favourite where the gain is large, and logs the draw's propensity."""


WORLDS = {
    "plain": World(),
    "small floor": World(floor=0.005),
    "sessions": World(sessions=True),
    "late labels": World(late=True),
    "arms come and go": World(arms=True),
    "drift": World(drift=True),
    "10 % asked": World(ask=0.1),
    "sessions, 10 % asked": World(sessions=True, ask=0.1),
    "all of it": World(sessions=True, ask=0.3, late=True, arms=True, drift=True),
}


class Prompts(NamedTuple):
    """ParetoBandit's matrix: contexts and rewards."""

    x: Floats
    """float64[N, d], the first column 1."""
    reward: Floats
    """float64[N, K] in [.1, .9]: the probability of a content person."""
    models: tuple[str, ...]


class Simulated(NamedTuple):
    """A simulated log with its true values."""

    log: Log
    pmf: Floats
    """float64[m]: the candidate's, for every entry of `log.options`."""
    truth: Floats
    """float64[n]: its value at the time of each session."""


class _Turns(NamedTuple):
    """All turns of all sessions; arrays by turn."""

    which: Ints
    """Its prompt."""
    unit: Ints
    """Its session."""
    drawn: NDArray[np.bool_]
    draw: Ints
    """The turn whose draw it lives on."""
    allowed: NDArray[np.bool_]
    """bool[t, K]"""
    chance: Floats
    """float64[t, K]: of a content person."""
    ts: Floats


def prompts_of(x: Floats, reward: Floats, models: tuple[str, ...], d: int = 8) -> Prompts:
    """Project the matrix's contexts on their leading directions, scaled to mean square 1 in all."""
    centred = x - x.mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    lead = centred @ axes[:d].T
    lead /= np.sqrt((lead**2).sum(axis=1).mean())
    return Prompts(np.column_stack([np.ones(len(x)), lead]), 0.1 + 0.8 * reward, models)


def softmax(values: Floats, allowed: NDArray[np.bool_]) -> Floats:
    """Compute the softmax of each row over the allowed models."""
    shifted = np.where(allowed, values - np.where(allowed, values, -np.inf).max(axis=-1, keepdims=True), -np.inf)
    weights: Floats = np.exp(shifted)
    return weights / weights.sum(axis=-1, keepdims=True)


class _Logger:
    """Adaptive logger: a ridge regression for each model on the labels it was told, refreshed between blocks."""

    def __init__(self, d: int, K: int) -> None:
        self.gram = np.repeat(np.eye(d)[None], K, axis=0)
        self.cross = np.zeros((K, d))
        self.cross[:, 0] = 0.5

    def pmf(self, x: Floats, allowed: NDArray[np.bool_], floor: float) -> Floats:
        theta = np.linalg.solve(self.gram, self.cross[:, :, None])[:, :, 0]
        share = floor * allowed.sum(axis=1, keepdims=True)
        return np.where(allowed, (1 - share) * softmax(30.0 * (x @ theta.T), allowed) + floor, 0.0)

    def learn(self, x: Floats, a: Ints, y: Floats) -> None:
        for k in range(len(self.gram)):
            mine = x[a == k]
            self.gram[k] += mine.T @ mine
            self.cross[k] += mine.T @ y[a == k]


def simulate(rng: np.random.Generator, prompts: Prompts, world: World, n: int = 5000, seed: int = 7) -> Simulated:
    """Simulate a log of n sessions (of one turn each without sessions).

    Args:
        rng: of this repetition.
        prompts: the matrix.
        world: what is hard.
        n: sessions.
        seed: of the candidate, which is the same in every repetition.
    """
    N, K = prompts.reward.shape
    rough = _rough(prompts, seed)
    favourite = int(softmax(15.0 * rough, np.ones((N, K), dtype=bool)).mean(axis=0).argmax())
    spell = rng.integers(1, 9, n) if world.sessions else np.ones(n, dtype=np.int64)
    turns = _turns(rng, prompts, world, spell, favourite)
    candidate = np.where(turns.allowed, 0.95 * softmax(15.0 * rough[turns.which], turns.allowed), 0.0)
    candidate += 0.05 * turns.allowed / turns.allowed.sum(axis=1, keepdims=True)
    pmf, arm, y, heard = _play(rng, prompts, world, turns)
    log = _log(rng, prompts, world, turns, pmf, arm, y, heard)
    return Simulated(log, candidate[turns.allowed], _truth(prompts, world, spell, rough, favourite))


def _turns(rng: np.random.Generator, prompts: Prompts, world: World, spell: Ints, favourite: int) -> _Turns:
    n, K = len(spell), len(prompts.models)
    unit = np.repeat(np.arange(n), spell)
    turn = np.arange(len(unit)) - np.repeat(np.cumsum(spell) - spell, spell)
    which = rng.integers(0, len(prompts.x), len(unit))
    mood = rng.uniform(-0.1, 0.1, n) if world.sessions else np.zeros(n)
    drawn = (turn == 0) | (turn == 4)
    return _Turns(
        which=which,
        unit=unit,
        drawn=drawn,
        draw=np.maximum.accumulate(np.where(drawn, np.arange(len(unit)), 0)),
        allowed=_allowed(world, unit, n, K),
        chance=prompts.reward[which] - _lost(world, unit, n, K, favourite) + mood[unit, None],
        ts=SECONDS * unit + turn,
    )


def _allowed(world: World, u: Ints, n: int, K: int) -> NDArray[np.bool_]:
    allowed = np.ones((len(u), K), dtype=bool)
    if world.arms:
        allowed[u < n // 3, K - 1] = False
        allowed[u >= 2 * n // 3, 0] = False
    return allowed


def _lost(world: World, u: Ints, n: int, K: int, favourite: int) -> Floats:
    """Return what is taken from every prompt's reward at each time, float64[len(u), K]."""
    lost = np.zeros((len(u), K))
    if world.drift:
        lost[u >= n // 2, favourite] = 0.3
    return lost


def _rough(prompts: Prompts, seed: int) -> Floats:
    """Return a noisy model of the rewards, which are the candidate's beliefs; float64[N, K]."""
    rng = np.random.default_rng(seed)
    theta, *_ = np.linalg.lstsq(prompts.x, prompts.reward, rcond=None)
    rough: Floats = prompts.x @ (theta + rng.normal(0.0, 0.05, theta.shape))
    return rough


def _play(
    rng: np.random.Generator, prompts: Prompts, world: World, turns: _Turns
) -> tuple[Floats, Ints, Floats, Floats]:
    """Return (pmf, arm, label, when it is heard) of every turn; sticky turns have the arm of their draw."""
    t, K = turns.chance.shape
    x = prompts.x[turns.which]
    pmf, arm, y = np.zeros((t, K)), np.zeros(t, dtype=np.int64), np.zeros(t)
    heard = turns.ts.copy()
    logger, told = _Logger(x.shape[1], K), np.zeros(t, dtype=bool)
    u, coin, delay = rng.random(t), rng.random(t), np.minimum(rng.exponential(1.0, t), 4.0) * DELAY_S
    for begin in range(0, int(turns.unit[-1]) + 1, BLOCK):
        rows = slice(*np.searchsorted(turns.unit, [begin, begin + BLOCK]))
        fresh = ~told[: rows.start] & (heard[: rows.start] <= SECONDS * begin)
        fresh = np.flatnonzero(fresh)
        logger.learn(x[fresh], arm[fresh], y[fresh])
        told[fresh] = True
        pmf[rows] = logger.pmf(x[rows], turns.allowed[rows], world.floor)
        fell = (pmf[rows].cumsum(axis=1) < (u[rows] * pmf[rows].sum(axis=1))[:, None]).sum(axis=1)
        arm[rows] = fell[turns.draw[rows] - rows.start]
        here = np.arange(rows.stop - rows.start)
        if world.hidden_switch:
            best = pmf[rows].argmax(axis=1)
            arm[rows] = np.where(pmf[rows].max(axis=1) - pmf[rows][here, arm[rows]] > 0.6, best, arm[rows])
        y[rows] = coin[rows] < turns.chance[rows][here, arm[rows]]
        if world.late:
            heard[rows] += delay[rows] * np.where(y[rows] == 1, 1.0, 0.3)
    return pmf, arm, y, heard


def _truth(prompts: Prompts, world: World, spell: Ints, rough: Floats, favourite: int) -> Floats:
    """Return the candidate's expected session mean at each time, float64[n].

    A draw's own turn sees its own prompt; the sticky turns after it see others, which are independent of it.
    """
    n = len(spell)
    period = sorted({0, n, *([n // 3, 2 * n // 3] if world.arms else []), *([n // 2] if world.drift else [])})
    truth = np.zeros(n)
    N, K = prompts.reward.shape
    for begin, end in pairwise(period):
        at = np.array([begin])
        allowed = np.repeat(_allowed(world, at, n, K), N, axis=0)
        reward = prompts.reward - _lost(world, at, n, K, favourite)
        pi = np.where(allowed, 0.95 * softmax(15.0 * rough, allowed) + 0.05 / allowed[0].sum(), 0.0)
        own, sticky = (pi * reward).sum(axis=1).mean(), float(pi.mean(axis=0) @ reward.mean(axis=0))
        draws = 1 + (spell[begin:end] > 4)
        truth[begin:end] = (draws * own + (spell[begin:end] - draws) * sticky) / spell[begin:end]
    return truth


def _log(
    rng: np.random.Generator,
    prompts: Prompts,
    world: World,
    turns: _Turns,
    pmf: Floats,
    arm: Ints,
    y: Floats,
    heard: Floats,
) -> Log:
    """Build the columns that a router would have written; labels that arrive after the last request are missing."""
    t = len(pmf)
    start = np.concatenate([[0], np.cumsum(turns.allowed.sum(axis=1))])
    place = start[:-1] + (turns.allowed.cumsum(axis=1) - 1)[np.arange(t), arm]
    asked = rng.random(t) < world.ask
    answers = rng.random(t) < np.where(y == 1, *world.response)
    eager = rng.random(t) < np.where(y == 1, 0.03, 0.09)
    there = heard <= turns.ts[-1]
    nobody = np.full(t, -1)
    decisions = Decisions(
        id=np.array([f"d{i}" for i in range(t)], dtype=object),
        seq=np.arange(t),
        ts=turns.ts,
        draw=turns.draw,
        mode=np.where(turns.drawn, MODES.index(Mode.ONLINE), MODES.index(Mode.STICKY)),
        start=start,
        chosen=place,
        propensity=np.where(turns.drawn, pmf[np.arange(t), arm], 1.0),
        tenant=np.zeros(t, dtype=np.int64),
        user=nobody,
        role=nobody,
        task=nobody,
        session=turns.unit if world.sessions else nobody,
        begins=turns.drawn & (np.concatenate([[-1], turns.unit[:-1]]) != turns.unit),
        asked=asked,
        asked_probability=np.full(t, world.ask),
        learnt=nobody,
        x=prompts.x[turns.which].astype(np.float32),
    )
    outcomes = Outcomes(
        status=np.full(t, "ok", dtype=object),
        served=arm,
        cost_usd=np.zeros(t),
        latency_s=np.zeros(t),
        asked_label=np.where(asked & answers & there, y, np.nan),
        free_label=np.where(~asked & eager & there, y, np.nan) if world.volunteers else np.full(t, np.nan),
        score=0.25 + 0.15 * y + 0.35 * rng.random(t),
    )
    sessions = tuple(f"s{i}" for i in range(int(turns.unit[-1]) + 1)) if world.sessions else ()
    names = Names(prompts.models, ("default",), sessions=sessions)
    options = Options(arm=np.nonzero(turns.allowed)[1], prob=pmf[turns.allowed])
    return Log("simulated", names, decisions, options, outcomes)
