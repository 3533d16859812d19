"""Simulated users over a pool of recorded answers, routed in process.

Every round a user asks a prompt, the router draws a model, and its recorded answer may get a vote (`runner`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np

from fitrouter.identity import role_key
from fitrouter.policies import SquareCB
from fitrouter.posterior.arms import ArmParams, CorrectionPrior
from fitrouter.posterior.gaussian import Gaussian
from fitrouter.posterior.heads import Width
from fitrouter.posterior.labels import FitParams
from fitrouter.posterior.mixture import EXPERTS
from fitrouter.posterior.model import Fit
from fitrouter.posterior.people import DAY_S
from fitrouter.routing.decider import Rules
from fitrouter.state.learner import Learner
from fitrouter.types import Decision, FeedbackKind, Floats, Identity, ModelCard
from fitrouter_evaluators.simulation.pool import Pool
from fitrouter_evaluators.simulation.runner import InProcess
from fitrouter_evaluators.simulation.worlds import Play, World

ROWS = ("label-only", "scores", "role", "ours", "true-tastes", "reward-score")
"""Compared routers: a user-blind bandit on labels, plus response features, plus roles, plus users (ours); ours with
the users' true tastes; and one that learns from its own scores instead of labels."""

_UNCAPPED = 1 << 40
"""Votes per day of the row that learns from scores, which are no user's votes."""


class Vote(NamedTuple):
    """A simulated user's vote."""

    kind: FeedbackKind
    value: float
    scale: tuple[float, float] = (0.0, 1.0)


Opinion: TypeAlias = Callable[[int, float, bool], Vote | None]
"""(round, P(satisfied), whether feedback was solicited) → the vote, None for none."""


class Contender(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one row of `ROWS`."""

    row: str
    gamma: float
    params: FitParams
    sees_text: bool = True
    """False: no response features, only labels per model."""


def contender(row: str, gamma: float, params: FitParams | None = None) -> Contender:
    """Make the contender of a row in `ROWS`; all rows know the voter, so that votes are capped alike."""
    base = params or FitParams()
    if row == "label-only":
        # A plain ridge bandit: c_k(x) alone learns (DESIGN §4). h is 1, the level.
        wide = ArmParams(corrections=(CorrectionPrior(level=0.2, slopes=0.1),))
        plain = msgspec.structs.replace(base, personal=False, arms=wide)
        return Contender(row=row, gamma=gamma, params=plain, sees_text=False)
    if row == "scores":
        return Contender(row=row, gamma=gamma, params=msgspec.structs.replace(base, personal=False))
    if row == "role":
        return Contender(row=row, gamma=gamma, params=msgspec.structs.replace(base, users=False))
    if row == "true-tastes":
        fixed = Width(level=1e-12, offset=1e-12)
        tastes = msgspec.structs.replace(base.tastes, **dict.fromkeys(EXPERTS[2:], fixed))
        return Contender(row=row, gamma=gamma, params=msgspec.structs.replace(base, tastes=tastes))
    if row in {"ours", "reward-score"}:
        return Contender(row=row, gamma=gamma, params=base)
    raise ValueError(f"there is no row {row!r}; allowed are {ROWS}")


class MonitorHistory(NamedTuple):
    """Reports of the personalisation monitor, read after every label."""

    helped: bool = False
    """It reported "helps" at least once, overall."""
    helped_role: bool = False
    """It did so for a role."""
    off: int | None = None
    """First round after which personalisation was switched off, overall."""
    verdict: str = "not known"
    """Last verdict, overall."""
    off_at_end: bool = False


class SeedResult(msgspec.Struct, frozen=True):
    """Outcome of one seed by round; float64[T] unless stated otherwise."""

    reward: Floats
    """P(satisfied) with the chosen answer."""
    regret: Floats
    """Against the best model for this user and prompt, luck included."""
    gap: Floats
    """Against the feasible oracle's model; negative where that one is unlucky."""
    probs: Floats
    """float64[T, K]."""
    mixture: Floats
    """Weights of the heads for a new user at the end (`posterior.mixture.EXPERTS`), float64[E]."""
    monitor: MonitorHistory


def best_single(play: Play, feedback: float = 0.0) -> int:
    """The model with the highest mean reward over the rounds: best in hindsight."""
    return int(play.rounds(feedback).reward.mean(axis=0).argmax())


class _Simulation:
    """Simulates one contender in one play."""

    def __init__(self, pool: Pool, play: Play, who: Contender, rules: Rules) -> None:
        ones = np.ones((*play.h.shape[:2], 1))
        self.pool, self.play = pool, play
        self.h: Floats = play.h if who.sees_text else ones
        if who.row == "true-tastes":
            self.h = np.concatenate([ones, play.attributes], axis=2)
        d, D = pool.x.shape[1], self.h.shape[2]
        named = who.sees_text and who.row != "true-tastes"
        names = pool.names if named else ()
        learner = Learner(d, D, schema=pool.schema, params=who.params, names=names, expects_scores=True)
        if who.row == "true-tastes":
            _know(learner.fit, play)
        cards = [ModelCard(name=model, provider="pool") for model in pool.models]
        policy = SquareCB(who.gamma)
        self.router = InProcess(learner, policy, rules, cards)
        self.judge: InProcess | None = None
        if who.row == "reward-score":
            # The bandit learns from the scores of a reward model that learns from the labels.
            self.judge = self.router
            wide = contender("label-only", who.gamma).params
            bandit = Learner(d, 1, schema=pool.schema, params=wide, votes_per_day=_UNCAPPED)
            self.router = InProcess(bandit, policy, rules, cards)
        self.monitor = MonitorHistory()

    def run(self, world: World, opinion: Opinion, feedback: float) -> SeedResult:
        play, T, K = self.play, world.rounds, len(self.pool.models)
        rounds = play.rounds(feedback)
        chosen, probs = np.empty(T, dtype=np.intp), np.empty((T, K))
        for t in range(T):
            user, n = int(play.user[t]), int(play.prompt[t])
            who = Identity(user=f"u{user}", role=f"r{play.role[user]}")
            ts = 1e9 + t * DAY_S / world.rounds_per_day
            decision = self.router.decide(t, ts, who, self.pool.x[n], prompt_tokens=int(self.pool.prompt_tokens[n]))
            k = chosen[t] = self.pool.models.index(decision.chosen)
            probs[t] = decision.probs
            vote = opinion(t, float(rounds.reward[t, k]), decision.asked)
            self._answer(decision, int(k), n, vote)
            if vote is not None:
                self._read_monitor(t, who)
        reward = rounds.reward[np.arange(T), chosen]
        return SeedResult(
            reward=reward,
            regret=rounds.best[:T] - reward,
            gap=rounds.feasible[:T] - reward,
            probs=probs,
            mixture=self.router.learner.fit.mixture.weights("user"),
            monitor=self.monitor,
        )

    def _answer(self, decision: Decision, k: int, n: int, vote: Vote | None) -> None:
        """Fold the recorded answer to a decision, and the vote on it if there is one."""
        about = {
            "prompt_tokens": int(self.pool.prompt_tokens[n]),
            "completion_tokens": int(self.pool.completion_tokens[k, n]),
        }
        learning = self.router
        if self.judge is not None:
            # What law 5 forbids: a score as if it were a label.
            score, _ = self.judge.learner.score(decision.identity, self.h[k, n])
            turn = self.router.answer(decision, h=np.ones(1), **about)
            self.router.vote(turn, FeedbackKind.THUMB, score)
            learning = self.judge
        turn = learning.answer(decision, h=self.h[k, n], **about)
        if vote is not None:
            learning.vote(turn, vote.kind, vote.value, scale=vote.scale)

    def _read_monitor(self, t: int, who: Identity) -> None:
        """Note what the personalisation monitor reports, overall and for the user's role."""
        monitor, before = self.router.learner.projections.personalisation, self.monitor
        report, of_role = monitor.report(), monitor.report(role_key(who))
        if report is not None:
            self.monitor = MonitorHistory(
                helped=before.helped or report.verdict == "helps",
                helped_role=before.helped_role or (of_role is not None and of_role.verdict == "helps"),
                off=t if before.off is None and report.off else before.off,
                verdict=report.verdict,
                off_at_end=report.off,
            )


def _know(fit: Fit, play: Play) -> None:
    """Put the true tastes into the fit, converted from logits to reward by the mean slope of σ."""
    slope = float((play.reward * (1 - play.reward)).mean())
    D = 1 + play.tastes.shape[1]
    sure = np.full(D, 1e-12)
    level = np.concatenate([[fit.params.tastes.level], np.zeros(D - 1)])
    fit.tastes.population = Gaussian.prior(level, sure)
    for user, taste in enumerate(play.tastes):
        known = fit.tastes.users[f"u{user}"] = fit.tastes.new_person()
        known.declare(np.concatenate([[0.0], slope * taste]))
        known.weights["user"] = np.eye(len(EXPERTS))[1]


def simulate(
    world: World,
    pool: Pool,
    play: Play,
    who: Contender,
    *,
    feedback: float = 0.0,
    floor: float = 0.05,
    opinion: Opinion | None = None,
    ask: float = 0.0,
) -> SeedResult:
    """Run one contender through one seed.

    Args:
        world: its rounds and days.
        pool: contexts and features.
        play: the seed's draws, common to all contenders.
        who: the contender.
        feedback: share of the rounds whose answer gets a thumb.
        floor: share of the traffic that is spread over all models.
        opinion: the users' votes, instead of thumbs at the rate `feedback`.
        ask: share of the answers for which feedback is solicited.
    """

    def thumb(t: int, satisfaction: float, _asked: bool) -> Vote | None:
        liked = float(play.label[t] < satisfaction)
        return Vote(FeedbackKind.THUMB, liked) if play.rated[t] < feedback else None

    rules = Rules(floor=floor, encoder="pool", ask=ask)
    return _Simulation(pool, play, who, rules).run(world, opinion or thumb, feedback)
