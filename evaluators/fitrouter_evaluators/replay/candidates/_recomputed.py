"""A policy recomputed from the logged beliefs: another algorithm, other parameters, another price, floor or share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fitrouter.errors import ConfigError, InvalidLog
from fitrouter.policies import Policy
from fitrouter.types import Floats
from fitrouter_evaluators.replay.candidates._base import DescribedCandidate
from fitrouter_evaluators.replay.candidates._log_columns import (
    chunks,
    drawn,
    entries,
    per_entry,
    per_row,
    refuse,
    row_name,
)
from fitrouter_evaluators.replay.candidates._mixture import Mixture
from fitrouter_evaluators.replay.candidates._settings import Settings
from fitrouter_evaluators.replay.candidates._utility import utility_terms
from fitrouter_evaluators.replay.log.log import Ints, Log

_SAMPLE = 500
"""Draws on which what is taken over unsaid is checked."""
_BELIEFS = "there is nothing to recompute a policy from; give its probabilities with 'pmf: FILE'"
_OTHER = "choose another algorithm"


class RecomputedCandidate(DescribedCandidate):
    """Settings over the logged policy; with the live ones it gives the logged pmf to 1e-12.

    What is believed of the models, the budget's λ, the switch cost and who is new are as logged.

    Args:
        settings: what differs.
        name: for reports.
        trained_until: the last moment that the settings were chosen by, where that is known.
        words: what it is, where the settings do not say it all.
        config: what it is beside the settings, for JSON.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        name: str = "",
        trained_until: float | None = None,
        words: str = "",
        config: Mapping[str, Any] | None = None,
    ) -> None:
        said = {"settings": settings.plain(), **(config or {})}
        super().__init__(words or settings.words(), said, name=name, trained_until=trained_until)
        self.settings = settings

    def pmf(self, log: Log, rows: Ints) -> Floats:
        """float64[m], flat over the entries of these rows; NaN may stand in rows that are no draws.

        Raises:
            InvalidLog: the log does not say what is needed.
            ConfigError: the settings do not.
        """
        policy, mixture = self.policy(log, rows), Mixture(log, self.settings)
        out: list[Floats] = []
        for some in chunks(rows):
            found = utility_terms(log, some, self.settings, mixture)
            out.append(found.pmf(policy, *self._beliefs(log, some, policy)))
        return np.concatenate(out) if out else np.zeros(0)

    def policy(self, log: Log, rows: Ints) -> Policy:
        """What turns beliefs into probabilities.

        Raises:
            InvalidLog: the log does not say which algorithm decided, and the settings go by it.
            ConfigError: what they take over unsaid is not what made the log.
        """
        logged = self.settings.algorithm or _logged_algorithm(log, rows)
        policy = self.settings.policy(logged)
        if parameter := self.settings.inherits(logged):
            _check(log, rows, policy, parameter, self.settings)
        return policy

    def _beliefs(self, log: Log, rows: Ints, policy: Policy) -> tuple[Floats, Floats, Floats]:
        """Mean and sd, float64[m], and steps, float64[n]."""
        if not self.settings.personal:
            _same_beliefs(log, rows)
        return logged_beliefs(log, rows, policy)


def logged_beliefs(log: Log, rows: Ints, policy: Policy) -> tuple[Floats, Floats, Floats]:
    """Mean and sd of the fit, float64[m], and how much had been learnt, float64[n], as far as a policy reads them.

    Raises:
        InvalidLog: they are not logged.
    """
    mean = per_entry(log, log.options.mean, rows, "what was believed ('mean')", _BELIEFS)
    sd, learnt = np.zeros(len(mean)), np.zeros(len(rows))
    if policy.name in {"linear_thompson", "linucb"}:
        sd = per_entry(log, log.options.sd, rows, "how sure that was ('sd')", _OTHER)
    if policy.name == "squarecb":
        learnt = per_row(log, log.decisions.steps, rows, "how much had been learnt ('steps')", _OTHER)
    return mean, sd, learnt


def _logged_algorithm(log: Log, rows: Ints) -> str:
    """The algorithm that made the draws among these rows.

    Raises:
        InvalidLog: it is not known.
        ConfigError: there are several.
    """
    names = log.decisions.algorithm
    found = set() if names is None else set(names[rows[drawn(log, rows)]].tolist()) - {None, ""}
    # A router that fails for a moment draws uniformly.
    found = found - {"uniform"} or found
    if not found:
        raise InvalidLog(f"{log.source}: which algorithm decided is not logged; say 'algorithm'")
    if len(found) > 1:
        raise ConfigError(f"algorithm: {', '.join(sorted(found))} decided in {log.source}; say which is meant")
    return str(found.pop())


def _check(log: Log, rows: Ints, policy: Policy, parameter: str, settings: Settings) -> None:
    """What nobody said must reproduce the log.

    Raises:
        ConfigError: it does not.
    """
    sample = rows[drawn(log, rows)]
    sample = sample[:: max(len(sample) // _SAMPLE, 1)]
    as_logged = Settings()
    found = utility_terms(log, sample, as_logged, Mixture(log, as_logged)).pmf(
        policy, *logged_beliefs(log, sample, policy)
    )
    made = log.options.prob if log.options.personal is None else log.options.personal
    off = np.abs(found - made[entries(log, sample)]) > 1e-9
    if not off.any():
        return
    row = int(np.repeat(sample, np.diff(log.decisions.start)[sample])[off.argmax()])
    where = "the configuration's" if settings.live is not None else "the default"
    raise ConfigError(
        f"{parameter}: {where} {getattr(policy, parameter):g} of {policy.name!r} does not give what "
        f"{row_name(log, row)} of {log.source} logged; say 'algorithm' and {parameter!r}, or name the "
        "configuration that was in force"
    )


def _same_beliefs(log: Log, rows: Ints) -> None:
    """The logged means are those with the terms of role and user; the policy must have gone by them.

    Raises:
        InvalidLog: a draw did not.
    """
    if log.options.personal is None:
        return
    owner = np.repeat(rows, np.diff(log.decisions.start)[rows])
    at = entries(log, rows)
    off = (np.abs(log.options.personal[at] - log.options.prob[at]) > 1e-12) & drawn(log, owner)
    if off.any():
        refuse(
            log,
            int(owner[off.argmax()]),
            "was made without the terms of role and user, and what is believed without them is not logged; say "
            "'personal: true' for a candidate with them, or choose a window",
        )
