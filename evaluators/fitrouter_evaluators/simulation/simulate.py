"""The personal pool in process: simulated people judge real responses, and the router's own code decides and learns.

Decisions are made by `Decider`, and every event goes through `Learner.apply`, as in
the gateway; only the network, the disk and the text are left out.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np

from fitrouter.identity import role_key
from fitrouter.policies import SquareCB
from fitrouter.posterior.arms import ArmParams
from fitrouter.posterior.gaussian import Gaussian
from fitrouter.posterior.labels import Answered, FitParams, Label
from fitrouter.posterior.model import Fit
from fitrouter.posterior.people import DAY_S, Person
from fitrouter.routing.decider import Decider, Rules
from fitrouter.state.learner import Learner
from fitrouter.stores.journal import Row
from fitrouter.types import (
    Decision,
    Event,
    Execution,
    Feedback,
    FeedbackKind,
    Floats,
    Identity,
    ModelCard,
    ModelChange,
    Score,
    pack,
)
from fitrouter_evaluators.simulation.pool import Pool
from fitrouter_evaluators.simulation.worlds import Play, World

ROWS = ("label-only", "label-only-tight", "scores", "role", "ours", "unweighted", "true-tastes", "reward-score")
"""From a user-blind bandit on labels to everything; everything without reliance; a row that knows what nobody knows;
and the ablation that learns from its own scores."""


class Verdict(NamedTuple):
    """What a person says of an answer."""

    kind: FeedbackKind
    value: float
    scale: tuple[float, float] = (0.0, 1.0)


Opinion: TypeAlias = Callable[[int, float, bool], Verdict | None]
"""(round, P(satisfied), whether the person was asked) → what they say, None for nothing."""


class Contender(msgspec.Struct, frozen=True, kw_only=True):
    """How one row decides and learns."""

    row: str
    gamma: float
    params: FitParams
    sees_text: bool = True
    """False: no response features at all, only labels per model."""


def contender(row: str, gamma: float, params: FitParams | None = None) -> Contender:
    """The contender of a row in `ROWS`. All know who votes, so that votes are capped alike."""
    base = params or FitParams()
    if row in {"label-only", "label-only-tight"}:
        # A plain ridge bandit: c_k(x) alone learns, at a width that suits it (DESIGN §4; the tight one was found on
        # these very worlds, so it is a baseline that knows them), and nothing weighs its parts. h is 1, the level.
        wide = ArmParams(correction_intercept=0.2, correction_slope=0.1 if row == "label-only" else 0.03)
        plain = msgspec.structs.replace(base, personal=False, slopes_reliance=(1.0, 0.0), arms=wide)
        return Contender(row=row, gamma=gamma, params=plain, sees_text=False)
    if row == "scores":
        return Contender(row=row, gamma=gamma, params=msgspec.structs.replace(base, personal=False))
    if row == "role":
        nobody = msgspec.structs.replace(base.tastes, user=0.0, user_intercept=0.0, user_offset=0.0)
        return Contender(row=row, gamma=gamma, params=msgspec.structs.replace(base, tastes=nobody))
    if row == "unweighted":
        certain = msgspec.structs.replace(base, slopes_reliance=(1.0, 0.0), people_reliance=(1.0, 0.0))
        return Contender(row=row, gamma=gamma, params=certain)
    if row in {"ours", "true-tastes", "reward-score"}:
        return Contender(row=row, gamma=gamma, params=base)
    raise ValueError(f"there is no row {row!r}; allowed are {ROWS}")


class Said(NamedTuple):
    """What the twin said of personalisation, looked at after every label."""

    helped: bool
    """It once said "helps", overall."""
    helped_role: bool
    """It once did so of a role."""
    off: int | None
    """The round at whose end the term was first off, overall."""
    verdict: str
    """Its last word, overall."""
    off_at_end: bool


class SeedResult(msgspec.Struct, frozen=True):
    """What happened in one seed, round by round; float64[T] unless said otherwise."""

    reward: Floats
    """Expected reward of the chosen answer (no luck of the label)."""
    regret: Floats
    """Against the best model for this user and prompt, luck included."""
    gap: Floats
    """Against the feasible oracle's model, which may be unlucky: its reward minus that of the chosen one."""
    probs: Floats
    """float64[T, K]."""
    reliance: Floats
    """float64[4]: how far each part of the fit counted at the end."""
    zero: tuple[float, ...]
    """For each part, the probability at the end that it is worth nothing; empty where the fit does not say."""
    said: Said


def best_single(play: Play, feedback: float = 0.0) -> int:
    """The model with the highest mean reward over the rounds: best in hindsight."""
    return int(play.rounds(feedback).reward.mean(axis=0).argmax())


class _Runner:
    """One contender in one play."""

    def __init__(
        self, world: World, pool: Pool, play: Play, who: Contender, opinion: Opinion, rules: Rules, feedback: float
    ) -> None:
        self.world, self.pool, self.play, self.who, self.opinion = world, pool, play, who, opinion
        self.rounds = play.rounds(feedback)
        ones = np.ones((play.h.shape[0], play.h.shape[1], 1))
        self.h: Floats = play.h if who.sees_text else ones
        if who.row == "true-tastes":
            self.h = np.concatenate([ones, play.attributes], axis=2)
        self.learner = Learner(
            pool.x.shape[1], self.h.shape[2], schema=pool.schema, params=who.params, expects_scores=True
        )
        self.judge: Learner | None = None
        if who.row == "reward-score":
            # The bandit learns from the scores of a reward model that learns from the labels.
            self.judge = self.learner
            wide = contender("label-only", who.gamma).params
            self.learner = Learner(pool.x.shape[1], 1, schema=pool.schema, params=wide)
        if who.row == "true-tastes":
            _know(self.learner.fit, play)
        self.decider = Decider(SquareCB(who.gamma), self.learner, rules)
        self.cards = [ModelCard(name=model, provider="pool") for model in pool.models]
        self.index = {model: k for k, model in enumerate(pool.models)}
        self.seq = 0
        self._fold(self.learner, [ModelChange(id="registry", ts=0.0, cards=tuple(self.cards), registry="pool")])

    def run(self) -> SeedResult:
        play, T, K = self.play, self.world.rounds, len(self.cards)
        chosen, probs = np.empty(T, dtype=np.intp), np.empty((T, K))
        said = Said(False, False, None, "not known", False)
        for t in range(T):
            user, n = int(play.user[t]), int(play.prompt[t])
            who = Identity(user=f"u{user}", role=f"r{play.role[user]}")
            ts = 1e9 + t * DAY_S / self.world.rounds_per_day
            decision = self.decider.decide(str(uuid.UUID(int=t)), ts, who, self.pool.x[n], self.cards)
            k = chosen[t] = self.index[decision.chosen]
            probs[t] = decision.probs
            vote = self.opinion(t, float(self.rounds.reward[t, k]), decision.asked)
            self._answer(decision, int(k), n, ts, vote)
            if vote is not None:
                said = self._hear(said, t, who)
        reward = self.rounds.reward[np.arange(T), chosen]
        fit = self.learner.fit
        zero = getattr(fit, "zero", None)
        return SeedResult(
            reward=reward,
            regret=self.rounds.best[:T] - reward,
            gap=self.rounds.feasible[:T] - reward,
            probs=probs,
            reliance=fit.reliance(),
            zero=tuple(float(value) for value in zero()) if zero is not None else (),
            said=said,
        )

    def _hear(self, said: Said, t: int, who: Identity) -> Said:
        """Look at the twin after a label, which may have changed what it says overall and of the user's role."""
        twin = self.learner.projections.personalisation
        report, of_role = twin.report(), twin.report(role_key(who))
        if report is None:
            return said
        helped_role = said.helped_role or (of_role is not None and of_role.verdict == "helps")
        off = t if said.off is None and report.off else said.off
        return Said(said.helped or report.verdict == "helps", helped_role, off, report.verdict, report.off)

    def _answer(self, decision: Decision, k: int, n: int, ts: float, vote: Verdict | None) -> None:
        """The events of one answer, in the order of the journal."""
        who, arm = decision.identity, decision.chosen
        execution = Execution(
            id=f"{decision.id}:execution",
            ts=ts,
            decision_id=decision.id,
            identity=who,
            chosen=arm,
            served_by=arm,
            status="ok",
            features=decision.features,
        )
        score = Score(
            id=f"{decision.id}:score",
            ts=ts,
            decision_id=decision.id,
            identity=who,
            served_by=arm,
            features=decision.features,
            h=pack(self.h[k, n]),
            schema=self.pool.schema,
        )
        events: list[Event] = [execution, score]
        if vote is not None:
            events.append(
                Feedback(
                    id=f"{decision.id}:vote",
                    ts=ts,
                    decision_id=decision.id,
                    identity=who,
                    kind=vote.kind,
                    value=vote.value,
                    scale=vote.scale,
                    asked=decision.asked,
                )
            )
        if self.judge is not None:
            mean, _ = self.judge.score(who, self.h[k, n])
            self._fold(self.judge, events, decision)
            self._learn_score(decision, mean)
        else:
            self._fold(self.learner, events, decision)

    def _fold(self, learner: Learner, events: Sequence[Event], *earlier: Event) -> None:
        for place, event in enumerate(events):
            self.seq += 1
            learner.apply(Row(self.seq, event), [*earlier, *events[:place]])

    def _learn_score(self, decision: Decision, score: float) -> None:
        """What law 5 forbids: a score as if it were a label."""
        x = np.frombuffer(decision.features, dtype="<f4").astype(np.float64)
        one = np.ones(1)
        answer = Answered(decision.chosen, x, one)
        self.learner.fit.learn(Label(decision.identity, answer, score, FeedbackKind.THUMB))


def _know(fit: Fit, play: Play) -> None:
    """Put the true tastes into the fit, in reward per attribute: the mean slope of σ times the weights."""
    slope = float((play.reward * (1 - play.reward)).mean())
    D = 1 + play.tastes.shape[1]
    sure = np.full(D, 1e-12)
    level = np.concatenate([[fit.params.tastes.level], np.zeros(D - 1)])
    fit.tastes.population = Gaussian.prior(level, sure)
    for user, taste in enumerate(play.tastes):
        known = fit.tastes.users[f"u{user}"] = Person(sure, 1e-12)
        known.taste.mean = np.concatenate([[0.0], slope * taste])
    # The tastes count in full; how far the slopes of c can be relied upon is still to be learnt, as by everybody.
    slopes, variance = fit.params.slopes_reliance
    fit.stack = Gaussian(np.array([slopes, 1.0, 1.0, 1.0]), np.diag([variance, 1e-12, 1e-12, 1e-12]))


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
        opinion: what people say, instead of `feedback`.
        ask: share of the answers for which feedback is solicited.
    """

    def thumb(t: int, satisfaction: float, _asked: bool) -> Verdict | None:
        liked = float(play.label[t] < satisfaction)
        return Verdict(FeedbackKind.THUMB, liked) if play.rated[t] < feedback else None

    rules = Rules(floor=floor, encoder="pool", ask=ask)
    return _Runner(world, pool, play, who, opinion or thumb, rules, feedback).run()
