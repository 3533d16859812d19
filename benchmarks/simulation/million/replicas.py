"""Replicas of a router over one log, in virtual time: what each knows when it decides is the fold of an older position.

Requests arrive as a Poisson process and go to the replica of their user. A replica decides with the product's `Decider`
on the state that its `Learner` has folded by then; Decision and answer become events of the log, the label follows
after a delay. A replica folds an event `staleness_s` after it became durable, and no faster than `fold_rate` allows. A
replica that is cut off decides on what it knew and hands its events in when it is back, in their order, as a gateway
that lost PostgreSQL does (`fitrouter.stores.postgres`).

The state is a function of the position in the log alone (law 1 of the design; equal digests are tests of the journal).
So replicas that have folded equally far share one learner here, and one that is cut off has a copy of it: a hundred
replicas cost one fold. `apart=True` gives every replica a learner of its own; a test compares both bit for bit.
"""

from __future__ import annotations

import copy
import heapq
import itertools
import math
import uuid
from typing import NamedTuple

import msgspec
import numpy as np
from benchmarks.simulation.million.crowd import Traffic

from fitrouter.config import CandidateConfig, PolicyConfig
from fitrouter.context.encoders import get_encoder
from fitrouter.policies import build_policy
from fitrouter.routing.decider import Decider, Rules
from fitrouter.state.learner import Learner
from fitrouter.stores.journal import Row
from fitrouter.types import Decision, Event, FeedbackKind, Floats, Identity, ModelCard, ModelChange
from fitrouter_evaluators.scoring.prior import shipped_prior
from fitrouter_evaluators.simulation.pool import Pool
from fitrouter_evaluators.simulation.runner import answer_events, vote_event

START = 1e9
"""Time of the first request, in seconds since the epoch."""


class Cut(msgspec.Struct, frozen=True):
    """A period, in request numbers, in which some replicas cannot reach the log."""

    replicas: tuple[int, ...]
    begin: int
    end: int


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a simulated fleet; times in seconds."""

    rate: float = 10_000.0
    """Requests a second."""
    replicas: int = 1
    staleness_s: float = 0.0
    """From the time that an event is durable until a replica has folded it."""
    answer_s: float = 0.0
    """Mean time until an answer's Execution and Score are durable."""
    label_s: float = 0.0
    """Mean time from the answer to its label."""
    share: float = 0.3
    """Of the answers that get a label."""
    fold_rate: float = math.inf
    """Events a second that a replica folds at most."""
    cut: Cut | None = None


class Outcome(msgspec.Struct, frozen=True):
    """Results of a fleet; arrays by request."""

    regret: Floats
    """Expected under the logged probabilities: reward of the best model minus that of the draw."""
    probs: Floats
    """float64[T, K]"""
    missing: Floats
    """Events of the log that the deciding replica had not folded."""
    events: int
    folded: int
    """By the replicas in contact, at the end."""
    digests: tuple[str, ...]
    """Of the learners that are there, where `digest` was asked for, each after the whole log."""


class _Entry(NamedTuple):
    """An event and when it became durable; `related` are the earlier ones of its decision."""

    ts: float
    event: Event
    related: tuple[Event, ...]


_FOLDED = _Entry(-math.inf, ModelChange(id="", ts=0.0, cards=(), registry=""), ())
"""Takes the place of an entry that nobody reads any more."""


class _View:
    """A learner that has folded the log up to a position.

    Args:
        learner: folds the events.
        rules: of the decider.
        alone: whether no other view reads the log, so that what was folded can be dropped.
    """

    def __init__(self, learner: Learner, rules: Rules, *, alone: bool) -> None:
        self.learner, self.alone = learner, alone
        self.decider = _decider(learner, rules)
        self.at = 0
        self.free = -math.inf
        """When the last fold ended."""

    def fold(self, log: list[_Entry], until: float, fleet: Fleet) -> None:
        """Fold the events that have been durable long enough, as fast as the replica can."""
        per_event = 1.0 / fleet.fold_rate
        while self.at < len(log):
            entry = log[self.at]
            done = max(entry.ts + fleet.staleness_s, self.free) + per_event
            if done > until:
                return
            if self.alone:
                log[self.at] = _FOLDED
            self.free, self.at = done, self.at + 1
            self.learner.apply(Row(self.at, entry.event), entry.related)

    def copied(self, rules: Rules) -> _View:
        """Return another view with the same state."""
        made = _View(copy.deepcopy(self.learner), rules, alone=False)
        made.at, made.free = self.at, self.free
        return made


def _decider(learner: Learner, rules: Rules) -> Decider:
    config = PolicyConfig()
    return Decider(build_policy(**config.model_dump(include=set(CandidateConfig.model_fields))), learner, rules)


class _Run:
    def __init__(self, pool: Pool, traffic: Traffic, fleet: Fleet, seed: int, *, apart: bool) -> None:
        self.pool, self.traffic, self.fleet, self.seed = pool, traffic, fleet, seed
        config = PolicyConfig().model_dump()
        self.rules = Rules(**{name: config[name] for name in Rules.__struct_fields__ if name in config}, seed=seed)
        self.cards = tuple(sorted((ModelCard(name=m, provider="p") for m in pool.models), key=lambda card: card.arm))
        self.index = [pool.models.index(card.name) for card in self.cards]
        self.log: list[_Entry] = [_Entry(-math.inf, ModelChange(id="r", ts=START, cards=self.cards, registry="r"), ())]
        self.arms = [card.arm for card in self.cards]
        self.waiting: list[tuple[float, int, Event, list[Event]]] = []
        """Not durable yet: time, order, event, and the decision's events in the log, which it will join."""
        self.order = itertools.count()
        count = fleet.replicas if apart else 1
        self.views = [_View(self._blank(), self.rules, alone=not apart) for _ in range(count)]
        self.cut_off: _View | None = None
        """What replicas that are cut off know, where they share a learner."""
        self.times = (np.cumsum(traffic.gap) / fleet.rate).tolist()

    def _blank(self) -> Learner:
        pool = self.pool
        encoder = get_encoder("static").id
        prior = shipped_prior(pool.names, encoder)
        return Learner(
            pool.x.shape[1], pool.h.shape[2], schema=pool.schema, names=pool.names, prior=prior, expects_scores=True
        )

    def _append(self, until: float) -> None:
        """Move what is durable by now to the log."""
        while self.waiting and self.waiting[0][0] <= until:
            ts, _, event, turn = heapq.heappop(self.waiting)
            self.log.append(_Entry(ts, event, tuple(turn)))
            turn.append(event)

    def _is_cut(self, t: int, replica: int) -> bool:
        cut = self.fleet.cut
        return cut is not None and replica in cut.replicas and cut.begin <= t < cut.end

    def _view(self, t: int, now: float, replica: int) -> _View:
        """Return the view that a replica decides on."""
        cut, view = self.fleet.cut, self.views[replica % len(self.views)]
        if cut is not None and t == cut.begin:  # what was folded by then is what is known
            for each in self.views:
                each.fold(self.log, now, self.fleet)
            if len(self.views) == 1:
                self.cut_off = view.copied(self.rules)
        if self._is_cut(t, replica):
            return self.cut_off or view
        view.fold(self.log, now, self.fleet)
        return view

    def _settle(self, t: int, now: float, decision: Decision, k: int, replica: int) -> None:
        """Queue the events of a decision, each with the time when it becomes durable."""
        fleet, traffic, cut = self.fleet, self.traffic, self.fleet.cut
        n = int(traffic.prompt[t])
        events = answer_events(
            decision,
            h=self.pool.h[k, n],
            schema=self.pool.schema,
            prompt_tokens=int(self.pool.prompt_tokens[n]),
            completion_tokens=int(self.pool.completion_tokens[k, n]),
        )
        answered = now + fleet.answer_s * float(traffic.wait[t, 0])
        due: list[tuple[float, Event]] = [(now, events[0]), (answered, events[1]), (answered, events[2])]
        if traffic.rated[t] < fleet.share:
            liked = float(traffic.label[t] < traffic.reward[t, k])
            heard = answered + fleet.label_s * float(traffic.wait[t, 1])
            due.append((heard, vote_event(decision, FeedbackKind.THUMB, liked, ts=START + heard)))
        held = -math.inf
        if cut is not None and self._is_cut(t, replica):
            held = self.times[min(cut.end, len(self.times) - 1)]
        turn: list[Event] = []
        for ts, event in due:
            heapq.heappush(self.waiting, (max(ts, held), next(self.order), event, turn))

    def run(self, *, digest: bool) -> Outcome:
        traffic, fleet, K = self.traffic, self.fleet, len(self.cards)
        T = len(traffic.user)
        regret, probs, missing = np.empty(T), np.zeros((T, K)), np.empty(T)
        for t, now in enumerate(self.times):
            self._append(now)
            replica = int(traffic.user[t]) % fleet.replicas
            view = self._view(t, now, replica)
            name = str(uuid.UUID(int=self.seed << 64 | t + 1))
            who = Identity(user=f"u{traffic.user[t]}", role=f"r{traffic.role[t]}", session=name)
            n = int(traffic.prompt[t])
            decision = view.decider.decide(
                name,
                START + now,
                who,
                self.pool.x[n],
                self.cards,
                prompt_tokens=int(self.pool.prompt_tokens[n]),
                seq=view.learner.seq,
            )
            at = self.arms.index(decision.chosen)
            probs[t, self.index] = decision.probs
            regret[t] = traffic.reward[t].max() - probs[t] @ traffic.reward[t]
            missing[t] = len(self.log) - view.at
            self._settle(t, now, decision, self.index[at], replica)
        folded = self.views[0].at
        digests: list[str] = []
        if digest:
            self._append(math.inf)
            whole = msgspec.structs.replace(fleet, fold_rate=math.inf)
            for view in self.views:
                view.free = -math.inf
                view.fold(self.log, math.inf, whole)
                digests.append(view.learner.digest())
        return Outcome(regret, probs, missing, len(self.log), folded, tuple(digests))


def simulate(
    pool: Pool, traffic: Traffic, fleet: Fleet, seed: int = 0, *, apart: bool = False, digest: bool = False
) -> Outcome:
    """Run a fleet through the requests of a seed.

    Args:
        pool: contexts and features of recorded answers.
        traffic: the requests.
        fleet: replicas, delays and partitions.
        seed: of the draws of models.
        apart: gives every replica a learner of its own, instead of one for all that have folded equally far.
        digest: whether to fold the rest of the log at the end and take digests.
    """
    return _Run(pool, traffic, fleet, seed, apart=apart).run(digest=digest)
