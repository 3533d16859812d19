"""The scorer: scores every answer once with its user's reward head, and appends a Score event.

Answers wait in the journal's content spool, not in memory, so that they survive a crash and any process can score them.
A `Service` steps the scorer in a thread of its own; if it raises or hangs, scores are late and requests are unaffected.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import msgspec
import numpy as np

from fitrouter.draw import uuid7
from fitrouter.errors import StoreError
from fitrouter.plain import pack
from fitrouter.posterior.tastes import OVERALL
from fitrouter.stores.content import unpack_content
from fitrouter.stores.identities import UnknownSubject
from fitrouter.stores.journal import Entry, Journal, Row, Spooled
from fitrouter.types import Execution, Floats, Identity, Score
from fitrouter_evaluators.scoring import Answer, ResponseFeatures
from fitrouter_evaluators.scoring.batch_size import Pace
from fitrouter_evaluators.scoring.models import Item

if TYPE_CHECKING:
    from fitrouter_evaluators.scoring.models import RewardModels

EXPIRES_S = 86_400.0
"""Seconds after which an answer is no longer scored."""

_STEP_S, _MODELS_STEP_S = 0.1, 1.0
"""Target duration of a step; large models need larger batches."""

_ACK_S = 30.0
_COUNTED = 1000


class Vault(Protocol):
    """Decrypts content that was encrypted under a user's key."""

    def decrypt(self, blob: bytes) -> str:
        """Decrypt a text.

        Raises:
            UnknownSubject: the key is gone for good.
            StoreError: the identity store cannot be read.
            ValueError: the bytes are not encrypted content.
        """
        ...


class RewardHeads(Protocol):
    """Protocol of the reward heads of all users."""

    def score(self, identity: Identity, h: Floats, dimension: str = OVERALL) -> tuple[float, float]:
        """Mean and sd of hᵀw for this person; h is float64[D] with NaN where a feature is missing."""
        ...


@runtime_checkable
class BatchHeads(RewardHeads, Protocol):
    """Protocol of reward heads that score a batch of answers."""

    def score_many(self, identities: Sequence[Identity], h: Floats, dimension: str = OVERALL) -> tuple[Floats, Floats]:
        """Means and sds of hᵀw for rows of h, float64[n, D], as `score` gives them; float64[n] each."""
        ...


@runtime_checkable
class DimensionHeads(Protocol):
    """Reward heads with dimensions besides `overall`; other heads have `overall` only."""

    def dimensions(self) -> Sequence[str]:
        """Names of the other dimensions."""
        ...


class Lag(NamedTuple):
    """Backlog: number of waiting answers (counted up to 1,000) and age of the oldest in seconds."""

    waiting: int
    oldest_s: float


class _Job(NamedTuple):
    """An answer from the spool with its execution, and its text if it can be read."""

    spooled: Spooled
    execution: Execution | None
    earlier: int
    """Number of scores that the decision already has."""
    item: Item | None = None


class _Verdict(NamedTuple):
    h: Floats
    mean: float
    sd: float
    dimensions: dict[str, tuple[float, float]]


def _ignore(_part: str, _error: Exception) -> None:
    """Ignore an error: the default for reporting."""


def _unheard(_score: Score) -> None:
    """Ignore a score: the default for passing scores on."""


class Scorer:
    """Scores spooled answers in batches while this process holds the lease `scorer`.

    Args:
        journal: where answers wait and scores go.
        identities: decrypts the answers.
        features: turns answers into h.
        heads: the users' reward heads; `score_many` is used where there is one (see `DeviceHeads`).
        models: reward models whose features follow those of `features`.
        batch: maximum answers of a step; `Pace` takes fewer while few wait or scoring is slow.
        clock: seconds since the epoch.
        timer: monotonic seconds, for the batch size.
        hook: called on every failure with (part, error); part is scorer, content, or features.
        happened: called with every Score once it is durable.
    """

    def __init__(
        self,
        journal: Journal,
        identities: Vault,
        features: ResponseFeatures,
        heads: RewardHeads,
        *,
        models: RewardModels | None = None,
        batch: int = 64,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.perf_counter,
        hook: Callable[[str, Exception], None] = _ignore,
        happened: Callable[[Score], None] = _unheard,
    ) -> None:
        if batch < 1:
            raise ValueError(f"batch is {batch}; a step scores at least 1 answer")
        self._journal = journal
        self._identities = identities
        self._features = features
        self._models = models
        self._schema = f"{features.schema}/{models.schema}" if models else features.schema
        self._heads = heads
        self._clock = clock
        self._timer = timer
        self._hook = hook
        self._happened = happened
        self._lease = journal.lease("scorer")
        self.pace = Pace(batch, step_s=_STEP_S if models is None else _MODELS_STEP_S)
        """Chooses the size of the next batch."""
        self.leading = False
        """Whether this process held the lease at the last step."""

    def lag(self) -> Lag:
        """Backlog of the scorer, whichever process holds the lease."""
        waiting = self._journal.spooled(_COUNTED)
        oldest = min((item.ts for item in waiting), default=None)
        return Lag(len(waiting), 0.0 if oldest is None else max(0.0, self._clock() - oldest))

    def step(self) -> int:
        """Score one batch; returns how many answers left the spool. Without the lease it does nothing.

        An answer that is too old, cannot be decrypted or cannot be scored gets a Score with another status and no h.
        If a fixed plain answer cannot be scored either, the encoder or the heads are broken, and answers stay.

        Raises:
            StoreError: the journal or the identities cannot be used now; everything is still in the spool.
            Exception: the encoder or the heads fail on every answer.
        """
        led, self.leading = self.leading, self._lease.held()
        if not self.leading:
            return 0
        if self._models is not None and not led:
            self._models.resume()
        started = self._timer()
        jobs = [self._read(item) for item in self._next()]
        if not jobs:
            return 0
        # First those without a text: a broken encoder must not keep content beyond its time.
        self._append([self._score(job, None) for job in jobs if job.item is None])
        readable = [job for job in jobs if job.item is not None]
        if self._models is not None:
            begun = self._models.start([job.item for job in readable if job.item is not None])
            readable = [job for job, ready in zip(readable, begun, strict=True) if ready]
            jobs = [job for job in jobs if job.item is None] + readable
        scores = [self._score(*pair) for pair in zip(readable, self._judge(readable), strict=True)] if readable else []
        # Without the commit: a slow disk costs a batch of one as much as one of many.
        self.pace.took(len(jobs), self._timer() - started)
        self._append(scores)
        return len(jobs)

    # --- one batch ---

    def _append(self, scores: Sequence[Score]) -> None:
        """Append the scores durably, which removes their contents from the spool."""
        if not scores:
            return
        self._journal.append(*(Entry(score) for score in scores)).result(_ACK_S)
        for score in scores:
            self._happened(score)

    def _next(self) -> Sequence[Spooled]:
        """Oldest answers of the spool, without those that wait for a slow model."""
        if self._models is None:
            return self._journal.spooled(self.pace.size)
        waiting = self._models.waiting()
        spooled = self._journal.spooled(self.pace.size + len(waiting))
        self._models.prune([item.decision_id for item in spooled])
        expired = self._clock() - EXPIRES_S
        return [item for item in spooled if item.decision_id not in waiting or item.ts < expired]

    def _read(self, item: Spooled) -> _Job:
        """Execution of an answer, and its text unless it is too old, unreadable, or without a decision."""
        rows = self._journal.of(item.decision_id)
        job = _Job(item, _last_execution(rows), sum(isinstance(row.event, Score) for row in rows))
        if job.execution is None or self._clock() - item.ts > EXPIRES_S:
            return job
        try:
            content = unpack_content(self._identities.decrypt(item.content))
            answer = Answer.of(content.prompt, content.message, content.tools)
            answer = msgspec.structs.replace(answer, declared=self._declared(job.execution))
            who = job.execution.identity
            asks = who.user and self._models is not None and self._models.needs_consent
            profile = self._journal.profile(who.user) if who.user and asks else None
            named = frozenset(() if profile is None else profile.declared)
            return job._replace(item=Item(answer=answer, identity=who, decision_id=item.decision_id, named=named))
        except Exception as error:
            if isinstance(error, StoreError) and not isinstance(error, UnknownSubject):
                raise  # the disk's fault, not the answer's
            self._tell("content", error)
            return job

    def _declared(self, execution: Execution) -> tuple[str, ...]:
        """Decrypt the user's statements about topics; empty if there are none or they cannot be read."""
        profile = self._journal.profile(execution.identity.user) if execution.identity.user else None
        if profile is None or not profile.topics:
            return ()
        try:
            return tuple(msgspec.json.decode(self._identities.decrypt(profile.topics), type=list[str]))
        except Exception as error:
            if isinstance(error, StoreError) and not isinstance(error, UnknownSubject):
                raise
            self._tell("content", error)
            return ()

    def _judge(self, jobs: Sequence[_Job]) -> list[_Verdict | None]:
        """Score the jobs in one batch, or one by one if that fails; None for a job that cannot be scored."""
        try:
            return list(self._verdicts(jobs))
        except Exception as error:  # noqa: BLE001 - the trial below raises it again where it is not about an answer
            self._tell("features", error)
            # A broken encoder must not write off what waits: only if a plain answer passes are the answers to blame.
            self._verdicts([])
            if len(jobs) == 1:
                return [None]
        return [self._judge_one(job) for job in jobs]

    def _judge_one(self, job: _Job) -> _Verdict | None:
        try:
            return self._verdicts([job])[0]
        except Exception as error:  # noqa: BLE001 - one bad answer holds up no other
            self._tell("features", error)
            return None

    def _verdicts(self, jobs: Sequence[_Job]) -> list[_Verdict]:
        """Score jobs in one encoder pass; without jobs, a trial on an answer that no cache holds."""
        items = [job.item for job in jobs if job.item is not None]
        if not jobs:
            items = [Item(answer=Answer(text=f"This is a plain answer, number {time.monotonic_ns()}."))]
        answers, identities = [item.answer for item in items], [item.identity for item in items]
        h = self._features.encode(answers)
        if self._models is not None:
            added = self._models.features(items) if jobs else np.full((1, len(self._models.names)), np.nan)
            h = np.hstack([h, added])
        means, sds = _score_many(self._heads, identities, h)
        if not (np.isfinite(means).all() and np.isfinite(sds).all()):
            raise ValueError("the reward heads gave a score that is no finite number")
        others: list[dict[str, tuple[float, float]]] = [{} for _ in answers]
        for name in self._heads.dimensions() if isinstance(self._heads, DimensionHeads) else ():
            # A head that is no number is left out: the answer's own score is worth more than any of these.
            for found, mean, sd in zip(others, *_score_many(self._heads, identities, h, name), strict=True):
                if np.isfinite(mean) and np.isfinite(sd):
                    found[name] = float(mean), float(sd)
        return [_Verdict(*row) for row in zip(h, means.tolist(), sds.tolist(), others, strict=True)]

    def _score(self, job: _Job, verdict: _Verdict | None) -> Score:
        """Build the Score event; its id is derived from the decision, so that racing processes score an answer once."""
        decision_id, ts, _ = job.spooled
        execution, now = job.execution, self._clock()
        digest = hashlib.sha256(f"score {job.earlier} of {decision_id}".encode()).digest()
        h, mean, sd = (b"", 0.0, 0.0) if verdict is None else (pack(verdict.h), verdict.mean, verdict.sd)
        missing = "expired" if execution and now - ts > EXPIRES_S else "failed"
        return Score(
            id=uuid7(ts, lambda n: digest[:n]),
            ts=now,
            decision_id=decision_id,
            identity=execution.identity if execution else Identity(),
            served_by=(execution.served_by or "") if execution else "",
            features=execution.features if execution else b"",
            h=h,
            schema=self._schema,
            encoder=self._features.encoder.id,
            mean=mean,
            sd=sd,
            dimensions={} if verdict is None else verdict.dimensions,
            sampled={} if verdict is None or job.item is None else job.item.sampled,
            status=missing if verdict is None else "ok",
        )

    def _tell(self, part: str, error: Exception) -> None:
        self._hook(part, error)


def _last_execution(rows: Sequence[Row]) -> Execution | None:
    return next((row.event for row in reversed(rows) if isinstance(row.event, Execution)), None)


def _score_many(
    heads: RewardHeads, identities: Sequence[Identity], h: Floats, *dimension: str
) -> tuple[Floats, Floats]:
    """Means and sds of a batch in one dimension, `overall` if none is named."""
    if isinstance(heads, BatchHeads):
        return heads.score_many(identities, h, *dimension)
    rows = zip(identities, h, strict=True)
    pairs = np.array([heads.score(identity, row, *dimension) for identity, row in rows]).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]
