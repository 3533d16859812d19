"""Candidate protocol, and loading of candidates from files and settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from fitrouter.config import Config, load_config
from fitrouter.errors import ConfigError
from fitrouter.types import Floats
from fitrouter_evaluators.replay.candidates._base import DescribedCandidate
from fitrouter_evaluators.replay.candidates._candidate_file import (
    WORDS,
    CandidateFile,
    SnapshotSection,
    parse_candidate,
    read_candidate,
)
from fitrouter_evaluators.replay.candidates._from_log import FixedCandidate, LoggedCandidate, UniformCandidate
from fitrouter_evaluators.replay.candidates._journal import open_journal
from fitrouter_evaluators.replay.candidates._learners import from_journal, from_prior, utc_seconds
from fitrouter_evaluators.replay.candidates._pmf_file import PmfFile
from fitrouter_evaluators.replay.candidates._recomputed import RecomputedCandidate
from fitrouter_evaluators.replay.candidates._settings import Settings
from fitrouter_evaluators.replay.candidates._snapshot import SnapshotCandidate
from fitrouter_evaluators.replay.candidates.learning import ProgressiveCandidate, RejectionCandidate
from fitrouter_evaluators.replay.log.log import Ints, Log

SHORT_FORMS = WORDS
"""Candidates that need no file."""


class Candidate(Protocol):
    """Protocol of a policy to evaluate, which gives a pmf over the eligible arms of every draw."""

    @property
    def description(self) -> str:
        """Describe the policy in words."""
        ...

    @property
    def trained_until(self) -> float | None:
        """End of the candidate's training data (seconds since the epoch); None if unknown or not trained on the log."""
        ...

    def pmf(self, log: Log, rows: Ints) -> Floats:
        """Compute the probabilities at these rows, flat over their entries in `Options`, float64[m].

        Only draws matter: other rows may be NaN.

        Raises:
            InvalidLog: a needed column is not logged.
            ConfigError: the candidate does not fit the log.
        """
        ...


def load_candidate(source: str | os.PathLike[str] | Mapping[str, Any], *, config: Config | None = None) -> Candidate:
    """Load a candidate.

    Args:
        source: a candidate.yaml, its content, or one of the words current, uniform, twin, personal, shadow.
        config: the configuration in force during logging; `over` in the file takes precedence.

    Raises:
        ConfigError: lists every invalid setting with what is allowed.
    """
    if isinstance(source, Mapping):
        file = parse_candidate(dict(source))
    elif isinstance(source, str) and source in WORDS:
        file = parse_candidate(source)
    else:
        file = read_candidate(source)
    if file.over is not None:
        config = load_config(file.over)
    return _build(file, config)


def _build(file: CandidateFile, config: Config | None) -> Candidate:
    until = None if file.trained_until is None else utc_seconds(file.trained_until)
    found: DescribedCandidate
    match file.kind:
        case "uniform":
            found, until = UniformCandidate("uniform over the eligible models"), None
        case "fixed":
            found, until = FixedCandidate(str(file.fixed), file.floor or 0.0), None
        case "candidate" | "current" | "twin" | "personal" | "shadow" as kind:
            found = LoggedCandidate(kind, str(file.candidate))
        case "pmf":
            found = PmfFile(Path(str(file.pmf)))
        case _ if file.snapshot is not None:
            found, trained = _snapshot(file.snapshot, file, config)
            until = max((moment for moment in (until, trained) if moment is not None), default=None)
        case _:
            found = RecomputedCandidate(Settings.of(file, config))
    if file.name:
        found.description = f"{file.name}: {found.description}"
    found.trained_until = until
    return found


def _snapshot(
    section: SnapshotSection, file: CandidateFile, config: Config | None
) -> tuple[DescribedCandidate, float | None]:
    """Load a snapshot or learning candidate, and the time of the last event its learner was trained on."""
    if config is None:
        raise ConfigError("snapshot: it needs the gateway's configuration; name it with 'over: fitrouter.yaml'")
    settings = Settings.of(file, config)
    if section.prior is not None:
        prior = section.prior
        return SnapshotCandidate(
            lambda arms: from_prior(prior, config, arms), settings, f"the prior {prior.name}"
        ), None
    assert section.journal is not None
    path, begin = section.journal, section.until
    if file.learning is None:
        learner, trained = from_journal(path, config, begin)
        source = f"the learner at position {learner.seq} of {path.name}"
        return SnapshotCandidate(learner, settings, source), trained
    learner, trained = from_journal(path, config, 0 if begin is None else begin)
    candidate = ProgressiveCandidate if file.learning == "progressive" else RejectionCandidate
    return candidate(learner, partial(open_journal, path), settings), trained
