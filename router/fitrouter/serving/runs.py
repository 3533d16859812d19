"""Runs of agents: reports on how one ended, and what it was. A run is every decision under one id of one owner."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from numbers import Real

import msgspec

from fitrouter.draw import uuid7
from fitrouter.errors import InvalidRequest, NotAuthorized, UnknownDecision
from fitrouter.identity import RUN, decision_id_of, owned_run, run_key
from fitrouter.serving.feedback import LARGEST_RATING, NARROWEST_SCALE
from fitrouter.serving.recorder import Recorder, read_in_time
from fitrouter.state.run_outcomes import effective
from fitrouter.stores.identities import Identities
from fitrouter.stores.journal import Row, outcomes_of
from fitrouter.types import SOURCES, Decision, Event, Execution, Identity, RunOutcome, RunStep

KINDS = ("success", "rating", "number")
MOST_ANSWERS = 128
"""Answers of a run that its outcome is about, evenly spaced in a longer one: each is less than a hundredth of it, and
the fold reads them all together."""
MOST_REPORTS = 64
"""Reports on a run, beyond which it takes no further one: each reads all of them."""
MOST_SHOWN = 1000
"""Last decisions of a run that are shown."""
OPEN_S = 30 * 86_400.0
"""Seconds after its last decision in which the outcome of a run is accepted."""
_LOOKS, _LOOK_S = 10, 0.05
"""How often, and how long apart, an answer that is not complete is looked for."""


class Reported(msgspec.Struct, frozen=True):
    """A durable report on a run."""

    id: str
    run: str
    """Hash of the run's id."""
    decisions: int
    """Answers that it is about."""
    counts: bool
    """False if a report of a source that counts more stands."""


class ShownStep(msgspec.Struct, frozen=True, kw_only=True):
    """A decision of a run."""

    decision_id: str
    ts: float
    role: str | None
    task: str | None
    model: str
    """That answered; if none did, the chosen one."""
    status: str | None
    """None while the answer is not complete."""
    cost_usd: float | None


class ShownOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """A report on a run, as `RunOutcome` has it."""

    kind: str
    value: float
    scale: tuple[float, float]
    source: str
    ts: float


class ShownRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run, and the outcome that counts."""

    run: str
    """Hash of its id."""
    steps: int
    began: float
    last: float
    """Times of its first and its last decision."""
    cost_usd: float | None
    """Of the decisions that are listed; None if the price of one is not known."""
    outcome: ShownOutcome | None
    reports: int
    decisions: tuple[ShownStep, ...]


class Run:
    """A run that calls in this context are steps of."""

    def __init__(self, run_id: str, runs: Runs, identity: Identity) -> None:
        self.id, self._runs, self._identity = run_id, runs, identity

    async def outcome(
        self,
        value: float | bool,
        *,
        kind: str = "success",
        scale: tuple[float, float] | None = None,
        source: str = "check",
        identity: Identity | None = None,
    ) -> Reported:
        """Report how it ended; see `Runs.outcome`."""
        who = identity or self._identity
        return await self._runs.outcome(self.id, value, kind=kind, scale=scale, source=source, identity=who)


class Runs:
    """Checks and appends outcomes of runs, and shows runs.

    Args:
        identities: subjects of users.
        recorder: of the journal.
        clock: seconds since the epoch.
        scale: of ratings that name none.
    """

    def __init__(
        self,
        identities: Identities,
        recorder: Recorder,
        clock: Callable[[], float],
        scale: tuple[float, float] | None = None,
    ) -> None:
        self.identities, self.recorder, self.clock, self._scale = identities, recorder, clock, scale

    @contextlib.contextmanager
    def begin(self, run_id: str = "", identity: Identity | None = None) -> Iterator[Run]:
        """Let all calls within be steps of one run, those of its threads and tasks included.

        Args:
            run_id: of a run that others began; a new one by default.
            identity: tenant and user of its requests, for reports on it.
        """
        found = Run(run_id or uuid7(self.clock()), self, identity or Identity())
        token = RUN.set(found.id)
        try:
            yield found
        finally:
            RUN.reset(token)

    async def outcome(
        self,
        run: str,
        value: float | bool,
        *,
        kind: str = "success",
        scale: tuple[float, float] | None = None,
        source: str = "check",
        identity: Identity | None = None,
        key: str = "",
        trusted: bool = True,
        vouched: str = "",
    ) -> Reported:
        """Log how a run ended; returns once it is durable.

        Args:
            run: id of the run, as requests gave it, or one of its decisions.
            value: true or false for success; the rating; or the number.
            kind: success, rating or number.
            scale: worst and best value of a rating or number; by default the configured one of ratings, else [0, 1].
            source: person, check or adapter.
            identity: tenant and user of the run's requests.
            key: untrusted key that began the run.
            trusted: whether the sender may report on runs of any user by their hash.
            vouched: name of the untrusted key that reports.

        Raises:
            InvalidRequest: the value is off its scale, or the run has no answer, is closed, or has too many reports.
            UnknownDecision: there is no such run of this user and key.
            NotAuthorized: it is another user's.
            StoreError: it cannot be made durable now; try again.
        """
        found, bounds = _checked(kind, value, scale or (self._scale if kind == "rating" else None), source)
        steps, reports = await self._found(run, identity or Identity(), key, trusted=trusted)
        now = self.clock()
        if len(reports) >= MOST_REPORTS:
            raise InvalidRequest(f"run: {run!r} has {MOST_REPORTS} reports, the most that count")
        if now - steps[-1].ts > OPEN_S:
            days = OPEN_S / 86_400.0
            raise InvalidRequest(
                f"run: the last call of {run!r} was more than {days:.0f} days ago, so that it is closed"
            )
        number = min(len(steps), MOST_ANSWERS)
        answers = [steps[i * len(steps) // number].decision_id for i in range(number)]
        ended: list[Execution] = []
        for _ in range(_LOOKS):  # another gateway may still be writing the end of its answer
            rows = await read_in_time(self.recorder.journal.of, *answers)
            ended = [e for row in rows if isinstance(e := row.event, Execution)]
            if len({e.decision_id for e in ended}) == len(answers):
                break
            await asyncio.sleep(_LOOK_S)
        done = {e.decision_id for e in ended if e.served_by is not None}
        if not done:
            raise InvalidRequest(
                f"run: no call of {run!r} has been answered, so that its outcome says nothing of models"
            )
        event = RunOutcome(
            id=uuid7(now),
            ts=now,
            identity=msgspec.structs.replace(steps[0].identity, role=None, task=None, session=None),
            kind=kind,
            value=found,
            scale=bounds,
            source=source,
            vouched=vouched,
            decisions=tuple(answer for answer in answers if answer in done),
        )
        await self.recorder.keep(event)
        counts = effective([*reports, event]) is event
        return Reported(event.id, event.identity.run or "", len(event.decisions), counts)

    async def show(
        self, run: str, identity: Identity | None = None, *, key: str = "", trusted: bool = True
    ) -> ShownRun:
        """Return a run with its decisions, cost and outcome; arguments and errors as of `outcome`."""
        steps, reports = await self._found(run, identity or Identity(), key, trusted=trusted, most=MOST_SHOWN)
        number, began, _ = await self._extent(steps[0].identity.run or "")
        rows = await read_in_time(self.recorder.journal.of, *(step.decision_id for step in steps[-MOST_SHOWN:]))
        decisions = shown_steps([row.event for row in rows])
        costs = [each.cost_usd for each in decisions if each.status is not None]
        standing = effective(reports)
        known = [cost for cost in costs if cost is not None]
        return ShownRun(
            run=steps[0].identity.run or "",
            steps=max(number, len(steps)),
            began=min(began, steps[0].ts),
            last=steps[-1].ts,
            cost_usd=math.fsum(known) if len(known) == len(costs) else None,
            outcome=None if standing is None else msgspec.convert(standing, ShownOutcome, from_attributes=True),
            reports=len(reports),
            decisions=decisions,
        )

    async def _found(
        self, run: str, speaker: Identity, key: str, *, trusted: bool, most: float = math.inf
    ) -> tuple[list[RunStep], list[RunOutcome]]:
        """Find a run's steps, or the last ones, and the reports on it; check that the speaker may see and judge it.

        Its id, with whose it is, leads to it; so does one of its decisions, and to a trusted key its hash.
        """
        await self.recorder.settle()
        tenant, user = speaker.tenant, speaker.user
        subjects: list[str | None] = [None]
        if user is not None:
            stored = await read_in_time(self.identities.subjects, tenant, user)
            subjects = [*dict.fromkeys(each for each in (self.identities.known(tenant, user), *stored) if each)]
        keys = [run_key(tenant, subject, owned_run(run, key)) for subject in subjects]
        steps, reports = await self._read(keys, tenant, most)
        if not steps:
            keys = await self._handle(run, speaker, key, subjects, trusted=trusted)
            steps, reports = await self._read(keys, tenant, most)
        if not steps:
            raise UnknownDecision(
                f"there is no logged run {run!r} of this user and key; requests name theirs by 'x-fitrouter-run' or "
                "'metadata.run_id', and a report on it needs the same 'user'"
            )
        return sorted(steps, key=lambda step: (step.ts, step.decision_id)), reports

    async def _handle(
        self, run: str, speaker: Identity, key: str, subjects: Sequence[str | None], *, trusted: bool
    ) -> list[str]:
        """Return the hash of a run that is given by it, or by one of its decisions, and that the speaker may judge."""
        rows = await read_in_time(self.recorder.journal.of, decision_id_of(run))
        for each in (row.event for row in rows):
            if not isinstance(each, Decision | RunStep if trusted else Decision):
                continue
            who = each.identity
            if who.tenant == speaker.tenant and who.run:
                theirs = who.user not in subjects and not (trusted and speaker.user is None)
                if theirs or (isinstance(each, Decision) and not trusted and each.key != key):
                    raise NotAuthorized(f"run: {run!r} is another user's or key's")
                return [who.run]
        return []

    async def _extent(self, key: str) -> tuple[int, float, float]:
        """Number of a run's steps, with the times of the first and the last."""
        return (await read_in_time(self.recorder.journal.counts, key)).get("step", (0, math.inf, -math.inf))

    async def _read(self, keys: Sequence[str], tenant: str, most: float) -> tuple[list[RunStep], list[RunOutcome]]:
        journal, wanted, rows = self.recorder.journal, [*map(outcomes_of, keys)], list[Row]()
        for key in keys:
            if most < math.inf and (await self._extent(key))[0] > most:
                rows += await read_in_time(partial(journal.latest, run=key), ("step",), int(most))
            else:
                wanted.append(key)
        rows += await read_in_time(journal.of, *wanted) if keys else []
        events = [row.event for row in rows]
        steps = [each for each in events if isinstance(each, RunStep) and each.identity.tenant == tenant]
        return steps, [each for each in events if isinstance(each, RunOutcome) and each.identity.tenant == tenant]


def shown_steps(events: Sequence[Event]) -> tuple[ShownStep, ...]:
    """The decisions among events as they are shown, in order."""
    ended = {event.decision_id: event for event in events if isinstance(event, Execution)}
    found = []
    for event in events:
        if isinstance(event, Decision):
            end = ended.get(event.id)
            found.append(
                ShownStep(
                    decision_id=event.id,
                    ts=event.ts,
                    role=event.identity.role,
                    task=event.identity.task,
                    model=(end and end.served_by) or event.chosen,
                    status=None if end is None else end.status,
                    cost_usd=None if end is None else end.known_usd,
                )
            )
    return tuple(sorted(found, key=lambda step: (step.ts, step.decision_id)))


def _checked(
    kind: str, value: float | bool, scale: tuple[float, float] | None, source: str
) -> tuple[float, tuple[float, float]]:
    """Check an outcome, and return its value and scale as numbers.

    Raises:
        InvalidRequest: names what is wrong.
    """
    if kind not in KINDS:
        raise InvalidRequest(f"kind: got {kind!r}; allowed are {', '.join(KINDS)}")
    if source not in SOURCES:
        raise InvalidRequest(f"source: got {source!r}; allowed are {', '.join(SOURCES)}")
    if kind == "success":
        if scale is not None or value not in (0, 1):
            raise InvalidRequest(f"value: got {value!r}; success is true or false, and has no scale")
        return float(value), (0.0, 1.0)
    if isinstance(value, bool):
        raise InvalidRequest(f"value: got {value!r}; a {kind} is a number, and true or false are a success")
    given = (value, *(scale or (0.0, 1.0)))
    if len(given) != 3 or not all(isinstance(number, Real) and math.isfinite(number) for number in given):
        raise InvalidRequest(f"value: got {value!r} with scale {scale!r}; give numbers, the scale as worst and best")
    found, worst, best = map(float, given)
    if abs(best - worst) < NARROWEST_SCALE or max(map(abs, (found, worst, best))) > LARGEST_RATING:
        raise InvalidRequest(
            f"scale: got {scale!r}; its ends are within ±{LARGEST_RATING:g}, and {NARROWEST_SCALE:g} apart or more"
        )
    if kind == "rating" and not min(worst, best) <= found <= max(worst, best):
        raise InvalidRequest(f"value: {found:g} is not on the scale from {worst:g} to {best:g}")
    return found, (worst, best)
