"""Logs for tests of replay: columns out of events in memory, and a town in which the product decides and learns."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from fitrouter.plain import pack, unpack
from fitrouter.policies import Policy, SquareCB
from fitrouter.routing.decider import CurrentModel, Decider, Rules
from fitrouter.state.learner import Learner
from fitrouter.state.projections import ProjectionParams
from fitrouter.state.reading import read_batch
from fitrouter.stores.journal import Entry, MemoryJournal
from fitrouter.types import (
    Attempt,
    Decision,
    Event,
    Execution,
    Feedback,
    FeedbackKind,
    Floats,
    Identity,
    Mode,
    ModelCard,
    ModelChange,
    Prices,
    RunOutcome,
    Score,
)
from fitrouter_evaluators.replay.log.log import MODES, Decisions, Log, Names, Options, Outcomes

# --- columns out of events -----------------------------------------------------------------------------------------


class _Codes(dict[str, int]):
    """Name → code, in order of appearance."""

    def of(self, name: str | None) -> int:
        return -1 if name is None else self.setdefault(name, len(self))


def log_of(events: Iterable[Event], source: str = "a test") -> Log:
    """The log that these events are; other kinds than decisions, executions, scores and feedback say nothing."""
    events = list(events)
    made = [(seq, e) for seq, e in enumerate(events, start=1) if isinstance(e, Decision)]
    place = {e.id: i for i, (_, e) in enumerate(made)}
    codes = {name: _Codes() for name in (*Names._fields, "runs")}
    options = _options([e for _, e in made], codes["arms"])
    return Log(
        source=source,
        decisions=_decisions(made, place, codes),
        options=options,
        outcomes=_outcomes(events, place, codes["arms"]),
        names=Names(**{name: tuple(codes[name]) for name in Names._fields}),
    )


def _decisions(
    made: Sequence[tuple[int, Decision]], place: Mapping[str, int], codes: Mapping[str, _Codes]
) -> Decisions:
    rows = [e for _, e in made]
    start = np.concatenate([[0], np.cumsum([len(e.eligible) for e in rows])]).astype(np.int64)
    chosen = [
        s + e.eligible.index(e.chosen) if e.chosen in e.eligible else -1 for s, e in zip(start[:-1], rows, strict=True)
    ]
    d = max((len(unpack(e.features)) for e in rows), default=0)
    x = [unpack(e.features) if e.features else np.full(d, np.nan) for e in rows]

    def floats(name: str) -> Floats:
        return np.array([getattr(e, name) for e in rows], dtype=np.float64)

    def ints(values: Iterable[int]) -> np.ndarray:
        return np.array(list(values), dtype=np.int64)

    return Decisions(
        id=np.array([e.id for e in rows], dtype=object),
        seq=ints(seq for seq, _ in made),
        ts=floats("ts"),
        draw=ints(place.get(e.draw_id, -1) for e in rows),
        mode=ints(MODES.index(e.mode) for e in rows),
        start=start,
        chosen=ints(chosen),
        propensity=floats("propensity"),
        tenant=ints(codes["tenants"].of(e.identity.tenant) for e in rows),
        user=ints(codes["users"].of(e.identity.user) for e in rows),
        role=ints(codes["roles"].of(e.identity.role) for e in rows),
        task=ints(codes["tasks"].of(e.identity.task) for e in rows),
        session=ints(codes["sessions"].of(e.identity.session) for e in rows),
        begins=np.array([e.draw_id == e.id and not e.redraw for e in rows]),
        asked=np.array([e.asked for e in rows]),
        asked_probability=floats("asked_probability"),
        learnt=ints(e.policy.seq for e in rows),
        x=np.array(x, dtype=np.float32).reshape(len(rows), d),
        **{
            name: floats(name)
            for name in (
                *("steps", "floor", "share", "cost_weight", "cost_unit_usd"),
                *("latency_weight", "latency_unit_s", "budget_weight", "budget_unit_usd"),
            )
        },
        seed=np.array([e.seed for e in rows], dtype=object),
        algorithm=np.array([e.policy.algorithm for e in rows], dtype=object),
        registry=np.array([e.registry for e in rows], dtype=object),
        run=ints(codes["runs"].of(e.identity.run) for e in rows),
        tier=np.array([e.tier for e in rows], dtype=object),
    )


def _options(rows: Sequence[Decision], arms: _Codes) -> Options:
    def flat(name: str, missing: float = np.nan) -> Floats:
        parts = [getattr(e, name) or (missing,) * len(e.eligible) for e in rows]
        return np.array([value for part in parts for value in part], dtype=np.float64)

    prob, personal = flat("probs"), flat("personal")
    names = sorted({name for e in rows for name in e.candidates})
    return Options(
        arm=np.array([arms.of(arm) for e in rows for arm in e.eligible], dtype=np.int64),
        prob=prob,
        **{name: flat(name) for name in ("mean", "sd", "cost", "latency", "availability", "rest", "twin")},
        switch=flat("switch", 0.0),
        personal=np.where(np.isnan(personal), prob, personal),
        candidates={
            name: np.array([p for e in rows for p in e.candidates.get(name, (np.nan,) * len(e.eligible))])
            for name in names
        },
    )


def _outcomes(events: Sequence[Event], place: Mapping[str, int], arms: _Codes) -> Outcomes:
    n = len(place)
    status = np.full(n, "", dtype=object)
    served = np.full(n, -1, dtype=np.int64)
    cost, latency, asked, free, score = np.full((5, n), np.nan)
    for event in events:
        i = place.get(getattr(event, "decision_id", ""), -1)
        if i < 0:
            continue
        if isinstance(event, Execution):
            status[i], served[i] = event.status, arms.of(event.served_by)
            cost[i], latency[i] = event.cost_usd, event.latency_ms / 1000.0
        elif isinstance(event, Score):
            score[i] = event.mean
        elif isinstance(event, Feedback) and event.kind in {FeedbackKind.THUMB, FeedbackKind.RATING}:
            (asked if event.asked else free)[i] = event.y
    ends = {event.identity.run: event.y for event in events if isinstance(event, RunOutcome)}
    runs = [event.identity.run for event in events if isinstance(event, Decision)]
    return Outcomes(
        status=status,
        served=served,
        cost_usd=cost,
        latency_s=latency,
        asked_label=asked,
        free_label=free,
        score=score,
        ended=np.array([np.nan if run is None else ends.get(run, np.nan) for run in runs]),
    )


# --- a town --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Town:
    """Requests with contexts of three numbers, decided by the product's `Decider` and learnt by its `Learner`.

    Model k pleases with probability 1 / (1 + exp(−x · theta[k])). `others` decide beside the live policy, from the
    same beliefs at the same moment: what they would have logged is in `said`, by decision.
    """

    seed: int = 0
    rules: Rules = dataclasses.field(default_factory=lambda: Rules(floor=0.1))
    policy: Policy = dataclasses.field(default_factory=lambda: SquareCB(20.0))
    names: tuple[str, ...] = ("a", "b", "c")
    projections: ProjectionParams | None = None
    votes: float = 1.0
    """Share of the answers on which somebody says something."""
    learns: bool = True
    candidates: Mapping[str, Mapping[str, object]] = dataclasses.field(default_factory=dict)
    others: dict[str, tuple[Policy, Rules]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.theta = np.random.default_rng(99).normal(size=(16, 3)) * 1.2
        self.journal = MemoryJournal()
        self.learner = self.blank()
        self.decider = Decider(
            self.policy,
            self.learner,
            self.rules,
            candidates=dict(self.candidates),
        )
        self._others = {name: Decider(policy, self.learner, rules) for name, (policy, rules) in self.others.items()}
        self.said: dict[str, dict[str, Decision]] = {name: {} for name in self.others}
        self.count = 0
        self.cards: list[ModelCard] = []
        self.join(*self.names)

    def blank(self) -> Learner:
        """A learner that has heard nothing, of the town's kind."""
        return Learner(3, 1, expects_scores=False, votes_per_day=10**6, projections=self.projections)

    def join(self, *names: str) -> None:
        """Models come to town; each is dearer than the one before."""
        new = [
            ModelCard(name=name, provider="p", prices=Prices(output=1.0 + 5.0 * (len(self.cards) + k)))
            for k, name in enumerate(names)
        ]
        self.cards = sorted([*self.cards, *new], key=lambda card: card.arm)
        self.put(ModelChange(id=f"registry {names}", ts=self.now, cards=tuple(self.cards), registry="r"))

    @property
    def now(self) -> float:
        return 1e9 + 10.0 * self.count

    def put(self, *events: Event) -> None:
        """Write events down, and learn from them."""
        for event in events:
            self.journal.append(Entry(event)).result()
        while rows := read_batch(self.journal, self.learner.seq, waiting=self.learner.waiting).rows:
            for row, related in rows:
                if self.learns or isinstance(row.event, ModelChange):
                    self.learner.apply(row, related)
                else:
                    self.learner.seq = row.seq

    def satisfaction(self, x: Floats) -> Floats:
        """float64[K]: P(a person is satisfied) with each model now on offer."""
        utility = np.array([self.theta[ord(card.name[0]) - ord("a")] @ x for card in self.cards])
        return np.asarray(1.0 / (1.0 + np.exp(-utility)))

    def request(self, last: Decision | None = None, *, again: bool = False, user: str | None = None) -> Decision:
        """One request, its answer and perhaps a vote.

        Args:
            last: the session's last decision; this one lives on its draw.
            again: the session is drawn again.
            user: who asks.
        """
        self.count += 1
        x = np.concatenate([[1.0], self.rng.normal(size=2) * 0.7])
        name = str(uuid.UUID(int=(self.seed + 1) << 64 | self.count))
        session = last.identity.session if last else f"s{self.count}"
        who = Identity(user=user, session=session, role=None if user is None else "tester")
        current = None
        if last is not None and again:
            current = CurrentModel(last.chosen, {card.arm: 2e-4 for card in self.cards if card.arm != last.chosen})
        seq = self.learner.seq
        decision = self.decider.decide(name, self.now, who, x, self.cards, prompt_tokens=50, seq=seq, current=current)
        for other, decider in self._others.items():
            cards = [card for card in self.cards if card.name not in decider.rules.paused.split(",")]
            self.said[other][name] = decider.decide(
                name, self.now, who, x, cards, prompt_tokens=50, seq=seq, current=current
            )
        if last is not None and not again and last.chosen in decision.eligible:
            bare: dict[str, object] = {"probs": (), "twin": (), "personal": (), "candidates": {}, "rest": (), "new": ()}
            decision = msgspec.structs.replace(
                decision, mode=Mode.STICKY, chosen=last.chosen, draw_id=last.draw_id, propensity=1.0, **bare
            )
        elif last is not None:
            decision = msgspec.structs.replace(decision, redraw="turns" if again else "ineligible")
        self.put(decision, *self._answered(decision, x))
        return decision

    def _answered(self, decision: Decision, x: Floats) -> list[Event]:
        arm = decision.chosen
        k = [card.arm for card in self.cards].index(arm)
        common = {"decision_id": decision.id, "identity": decision.identity, "ts": decision.ts + 1.0}
        execution = Execution(
            id=f"{decision.id}:execution",
            chosen=arm,
            served_by=arm,
            status="ok",
            attempts=(Attempt(model=arm, probability=1.0),),
            features=pack(x),
            completion_tokens=int(self.rng.integers(20, 400)),
            cost_usd=self.cards[k].prices.output * 2e-4,
            latency_ms=300.0 + 200.0 * k,
            **common,  # type: ignore[arg-type]
        )
        if self.rng.random() >= self.votes:
            return [execution]
        liked = float(self.rng.random() < self.satisfaction(x)[k])
        vote = Feedback(
            id=f"{decision.id}:vote",
            kind=FeedbackKind.THUMB,
            value=liked,
            asked=decision.asked,
            **common,  # type: ignore[arg-type]
        )
        return [execution, vote]

    def live(self, n: int, *, user: str | None = None) -> None:
        """So many requests, each a session of its own."""
        for _ in range(n):
            self.request(user=user)

    def log(self) -> Log:
        """What happened, as columns."""
        return log_of(row.event for row in self.journal.tail(0, 10**9))
