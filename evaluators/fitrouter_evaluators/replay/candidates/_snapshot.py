"""Candidate with the posterior of a frozen learner, evaluated at every logged decision."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fitrouter.errors import ConfigError
from fitrouter.policies import Policy
from fitrouter.posterior.labels import Estimate
from fitrouter.state.learner import Learner
from fitrouter.types import Floats, Identity
from fitrouter_evaluators.replay.candidates._log_columns import drawn, refuse
from fitrouter_evaluators.replay.candidates._recomputed import RecomputedCandidate
from fitrouter_evaluators.replay.candidates._settings import Settings
from fitrouter_evaluators.replay.log.log import Ints, Log

_NAN = float("nan")


class Requests:
    """Reconstructs the requests of a log, to evaluate a learner on them."""

    def __init__(self, log: Log, learner: Learner) -> None:
        self.log, self.learner = log, learner
        self._arms: dict[bytes, tuple[str, ...]] = {}
        self._who: dict[tuple[int, ...], Identity] = {}
        x = log.decisions.x
        if x is None or x.shape[1] != learner.fit.d:
            has = "none" if x is None else str(x.shape[1])
            raise ConfigError(
                f"snapshot: its context has {learner.fit.d} features, and that of {log.source} has {has}; name the "
                "configuration of the gateway that made the log"
            )
        self._x = x

    def estimate(self, row: int) -> Estimate | None:
        """Compute the learner's estimates of the eligible arms; None where the row has no context."""
        made = self.log.decisions
        x = self._x[row].astype(np.float64)
        if not np.isfinite(x).all():
            return None
        who = self._identity(row)
        return self.learner.of(who.tenant).fit.estimate(who, x, self._names(row), float(made.ts[row]))

    def labels(self, row: int) -> float:
        """Number of labels that the tenant's learner knows."""
        return float(self.learner.of(self._identity(row).tenant).fit.labels)

    def _names(self, row: int) -> tuple[str, ...]:
        start, names = self.log.decisions.start, self.log.names.arms
        codes = self.log.options.arm[start[row] : start[row + 1]]
        key = codes.tobytes()
        if key not in self._arms:
            self._arms[key] = tuple(names[code] for code in codes.tolist())
        return self._arms[key]

    def _identity(self, row: int) -> Identity:
        made, names = self.log.decisions, self.log.names
        codes = tuple(int(column[row]) for column in (made.tenant, made.user, made.role, made.task))
        if codes not in self._who:
            tenant, user, role, task = (
                table[code] if code >= 0 else None
                for table, code in zip((names.tenants, names.users, names.roles, names.tasks), codes, strict=True)
            )
            self._who[codes] = Identity(tenant=tenant or "default", user=user, role=role, task=task)
        return self._who[codes]


class SnapshotCandidate(RecomputedCandidate):
    """Changed settings over the logged policy, with the posterior of a frozen learner.

    The learner may be a function that makes it from the names of the log's arms. Cost, latency, availability, the
    budget's dual variable, switch costs and the set of new arms are as logged.
    """

    def __init__(
        self,
        learner: Learner | Callable[[tuple[str, ...]], Learner],
        settings: Settings,
        source: str = "a frozen learner",
    ) -> None:
        super().__init__(settings, f"posterior of {source}; {settings.description()}")
        self._learner = learner
        self._made: tuple[tuple[str, ...], Learner] | None = None

    def learner(self, log: Log) -> Learner:
        if not isinstance(self._learner, Learner):
            if self._made is None or self._made[0] != log.names.arms:
                self._made = log.names.arms, self._learner(log.names.arms)
            return self._made[1]
        return self._learner

    def _posterior(self, log: Log, rows: Ints, policy: Policy) -> tuple[Floats, Floats, Floats]:  # noqa: ARG002 - its own
        learner = self.learner(log)
        requests, start = Requests(log, learner), log.decisions.start
        counts = np.diff(start)[rows]
        mean, sd = np.full((2, int(counts.sum())), _NAN)
        draws, ends = drawn(log, rows), np.cumsum(counts)
        for i in np.flatnonzero(draws).tolist():
            found = requests.estimate(int(rows[i]))
            if found is None:
                self._check_failed(log, int(rows[i]))
                continue
            at = slice(ends[i] - counts[i], ends[i])
            mean[at] = found.blind if self.settings.personal is False else found.mean
            sd[at] = found.sd
        return mean, sd, np.array([requests.labels(row) for row in rows.tolist()])

    @staticmethod
    def _check_failed(log: Log, row: int) -> None:
        """Check that a decision without a context was drawn uniformly after a failure; refuse the log otherwise."""
        rest = log.options.rest
        at = slice(*log.decisions.start[row : row + 2])
        if rest is None or not rest[at].sum() >= 1.0 - 1e-12:
            refuse(log, row, "does not log its context ('features'), which a snapshot needs")
