"""Candidate recomputed from the logged posterior with another algorithm, parameter, price, floor or share."""

from __future__ import annotations

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
"""Draws on which inherited parameters are checked against the log."""
_NO_POSTERIOR = "no policy can be recomputed without it; give its probabilities with 'pmf: FILE'"
_OTHER = "choose another algorithm"


class RecomputedCandidate(DescribedCandidate):
    """Changed settings over the logged policy; with unchanged ones it reproduces the logged pmf to 1e-12.

    Posteriors, the budget's dual variable, switch costs and the set of new arms are as logged.
    """

    def __init__(self, settings: Settings, description: str = "") -> None:
        super().__init__(description or settings.description())
        self.settings = settings

    def pmf(self, log: Log, rows: Ints) -> Floats:
        policy, mixture = self.policy(log, rows), Mixture(log, self.settings)
        out: list[Floats] = []
        for some in chunks(rows):
            found = utility_terms(log, some, self.settings, mixture)
            out.append(found.pmf(policy, *self._posterior(log, some, policy)))
        return np.concatenate(out) if out else np.zeros(0)

    def policy(self, log: Log, rows: Ints) -> Policy:
        """The policy that maps posteriors to probabilities; its inherited parameter must reproduce the log."""
        logged = self.settings.algorithm or _logged_algorithm(log, rows)
        policy = self.settings.policy(logged)
        if parameter := self.settings.inherits(logged):
            _check_parameter(log, rows, policy, parameter, self.settings)
        return policy

    def _posterior(self, log: Log, rows: Ints, policy: Policy) -> tuple[Floats, Floats, Floats]:
        """Posterior mean and sd of the entries, float64[m], and number of labels of the rows, float64[n]."""
        if not self.settings.personal:
            _check_personal(log, rows)
        return _logged_posterior(log, rows, policy)


_OF_MEANS = frozenset({"epsilon_greedy", "fixed", "softmax", "uniform"})
_WITHOUT_SD, _WITHOUT_STEPS = _OF_MEANS | {"squarecb"}, _OF_MEANS | {"linucb"}
"""Policies that do not depend on standard deviations, and on the number of labels."""


def _logged_posterior(log: Log, rows: Ints, policy: Policy) -> tuple[Floats, Floats, Floats]:
    """Read the logged mean and sd, float64[m], and number of labels, float64[n], as far as the policy uses them."""
    mean = per_entry(log, log.options.mean, rows, "the posterior mean ('mean')", _NO_POSTERIOR)
    sd, learnt = np.zeros(len(mean)), np.zeros(len(rows))
    # A policy of another package may use both.
    if policy.name not in _WITHOUT_SD:
        sd = per_entry(log, log.options.sd, rows, "the posterior sd ('sd')", _OTHER)
    if policy.name not in _WITHOUT_STEPS:
        learnt = per_row(log, log.decisions.steps, rows, "the number of labels learnt ('steps')", _OTHER)
    return mean, sd, learnt


def _logged_algorithm(log: Log, rows: Ints) -> str:
    names = log.decisions.algorithm
    found = set() if names is None else set(names[rows[drawn(log, rows)]].tolist()) - {None, ""}
    # A router that fails for a moment draws uniformly.
    found = found - {"uniform"} or found
    if not found:
        raise InvalidLog(f"{log.source}: the algorithm is not logged; set 'algorithm'")
    if len(found) > 1:
        raise ConfigError(f"algorithm: {', '.join(sorted(found))} decided in {log.source}; set one of them")
    return str(found.pop())


def _check_parameter(log: Log, rows: Ints, policy: Policy, parameter: str, settings: Settings) -> None:
    """Raise ConfigError if the inherited parameter does not reproduce the logged pmfs."""
    sample = rows[drawn(log, rows)]
    sample = sample[:: max(len(sample) // _SAMPLE, 1)]
    terms = utility_terms(log, sample, Settings(), Mixture(log, Settings()))
    found = terms.pmf(policy, *_logged_posterior(log, sample, policy))
    made = log.options.prob if log.options.personal is None else log.options.personal
    off = np.abs(found - made[entries(log, sample)]) > 1e-9
    if not off.any():
        return
    row = int(np.repeat(sample, np.diff(log.decisions.start)[sample])[off.argmax()])
    where = "the configuration's" if settings.live is not None else "the default"
    raise ConfigError(
        f"{parameter}: {where} {getattr(policy, parameter):g} of {policy.name!r} does not give what "
        f"{row_name(log, row)} of {log.source} logged; set 'algorithm' and {parameter!r}, or name the "
        "configuration that was in force"
    )


def _check_personal(log: Log, rows: Ints) -> None:
    """Raise InvalidLog for a draw of the user-blind policy: the logged means include the user and role terms."""
    if log.options.personal is None:
        return
    owner = np.repeat(rows, np.diff(log.decisions.start)[rows])
    at = entries(log, rows)
    off = (np.abs(log.options.personal[at] - log.options.prob[at]) > 1e-12) & drawn(log, owner)
    if off.any():
        refuse(
            log,
            int(owner[off.argmax()]),
            "was made without the user and role terms, and the posterior mean without them is not logged; set "
            "'personal: true' for a candidate with them, or choose a window",
        )
