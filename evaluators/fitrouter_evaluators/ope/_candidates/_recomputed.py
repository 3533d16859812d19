"""A policy recomputed from the logged beliefs: another algorithm, other parameters, another price, floor or share."""

from __future__ import annotations

import numpy as np

from fitrouter.errors import ConfigError, InvalidLog
from fitrouter.policies import Policy
from fitrouter.types import Floats
from fitrouter_evaluators.ope._candidates._base import Described
from fitrouter_evaluators.ope._candidates._columns import chunks, drawn, entries, per_entry, per_row, refuse, row_name
from fitrouter_evaluators.ope._candidates._ground import ground
from fitrouter_evaluators.ope._candidates._mixture import Mixture
from fitrouter_evaluators.ope._candidates._settings import Settings
from fitrouter_evaluators.ope.log import Ints, Log

__all__ = ["Recomputed", "logged_algorithm"]

_SAMPLE = 500
"""Draws on which what is taken over unsaid is checked."""
_BELIEFS = "there is nothing to recompute a policy from; give its probabilities with 'pmf: FILE'"


class Recomputed(Described):
    """Settings over the logged policy; with the live ones it gives the logged pmf to 1e-12.

    What is believed of the models, the budget's λ, the switch cost and who is new are as logged.

    Args:
        settings: what differs.
        name: for reports.
        trained_until: the last moment that the settings were chosen by, where that is known.
    """

    def __init__(self, settings: Settings, *, name: str = "", trained_until: float | None = None) -> None:
        super().__init__(settings.words(), {"settings": settings.plain()}, name=name, trained_until=trained_until)
        self.settings = settings

    def pmf(self, log: Log, rows: Ints) -> Floats:
        """float64[m], flat over the entries of these rows; NaN may stand in rows that are no draws.

        Raises:
            InvalidLog: the log does not say what is needed.
            ConfigError: the settings do not.
        """
        logged = logged_algorithm(log, rows) if self.settings.algorithm is None else self.settings.algorithm
        policy = self.settings.policy(logged)
        if parameter := self.settings.inherits(logged):
            self._check(log, rows, policy, parameter)
        if not self.settings.personal:
            _same_beliefs(log, rows)
        return _pmf(log, rows, policy, self.settings)

    def _check(self, log: Log, rows: Ints, policy: Policy, parameter: str) -> None:
        """What nobody said must reproduce the log.

        Raises:
            ConfigError: it does not.
        """
        sample = rows[drawn(log, rows)]
        sample = sample[:: max(len(sample) // _SAMPLE, 1)]
        logged = log.options.prob[entries(log, sample)]
        off = np.abs(_pmf(log, sample, policy, Settings()) - logged) > 1e-9
        if not off.any():
            return
        counts = np.diff(log.decisions.start)[sample]
        row = int(np.repeat(sample, counts)[off.argmax()])
        value = getattr(policy, parameter)
        where = "the configuration's" if self.settings.live is not None else "the default"
        raise ConfigError(
            f"{parameter}: {where} {value:g} of {policy.name!r} does not give what {row_name(log, row)} of "
            f"{log.source} logged; say 'algorithm' and {parameter!r}, or name the configuration that was in force"
        )


def logged_algorithm(log: Log, rows: Ints) -> str:
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


def _pmf(log: Log, rows: Ints, policy: Policy, settings: Settings) -> Floats:
    mixture, steps = Mixture(log, settings), log.decisions.steps
    out: list[Floats] = []
    for some in chunks(rows):
        mean = per_entry(log, log.options.mean, some, "what was believed ('mean')", _BELIEFS)
        sd = np.zeros(len(mean))
        if policy.name in {"linear_thompson", "linucb"}:
            sd = per_entry(log, log.options.sd, some, "how sure that was ('sd')", "choose an algorithm without it")
        found = ground(log, some, settings, mixture)
        learnt = np.zeros(len(some)) if steps is None else steps[some]
        if policy.name == "squarecb":
            learnt = per_row(log, steps, some, "how much had been learnt ('steps')", "choose another algorithm")
        out.append(found.pmf(policy, mean, sd, learnt))
    return np.concatenate(out) if out else np.zeros(0)


def _same_beliefs(log: Log, rows: Ints) -> None:
    """The logged means are those with the terms of role and user; the policy must have gone by them.

    Raises:
        InvalidLog: a draw did not.
    """
    if log.options.personal is None:
        return
    start = log.decisions.start
    owner = np.repeat(rows, start[rows + 1] - start[rows])
    at = entries(log, rows)
    off = (np.abs(log.options.personal[at] - log.options.prob[at]) > 1e-12) & drawn(log, owner)
    if off.any():
        refuse(
            log,
            int(owner[off.argmax()]),
            "was made without the terms of role and user, and what is believed without them is not logged; say "
            "'personal: true' for a candidate with them, or choose a window",
        )
