"""Candidates: policies that can be replayed on a log, each a pmf over the eligible arms of every draw."""

from __future__ import annotations

import datetime
import hashlib
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from fitrouter.config import Config, load_config
from fitrouter.errors import ConfigError
from fitrouter.types import Floats
from fitrouter_evaluators.replay.candidates._candidate_file import (
    KINDS,
    CandidateFile,
    SnapshotSection,
    parse_candidate,
    read_candidate,
)
from fitrouter_evaluators.replay.candidates._from_log import FixedCandidate, LoggedCandidate, UniformCandidate
from fitrouter_evaluators.replay.candidates._journal import open_journal
from fitrouter_evaluators.replay.candidates._learners import from_journal, from_prior
from fitrouter_evaluators.replay.candidates._pmf_file import PmfFile
from fitrouter_evaluators.replay.candidates._recomputed import RecomputedCandidate
from fitrouter_evaluators.replay.candidates._settings import Settings
from fitrouter_evaluators.replay.candidates._snapshot import SnapshotCandidate
from fitrouter_evaluators.replay.candidates.learning import ProgressiveCandidate, RejectionCandidate
from fitrouter_evaluators.replay.log.log import Ints, Log


class Candidate(Protocol):
    """A policy in replay."""

    @property
    def description(self) -> str:
        """What it is, in words."""
        ...

    @property
    def trained_until(self) -> float | None:
        """Seconds since the epoch: the last moment that it has learnt from.

        None where it has not learnt from a log, or it is not known.
        """
        ...

    def pmf(self, log: Log, rows: Ints) -> Floats:
        """float64[m]: its pmf at these rows, flat over their entries in `Options`, row after row.

        Only draws need be right: NaN may stand in other rows.

        Raises:
            InvalidLog: the log does not say what is needed.
            ConfigError: the candidate does not.
        """
        ...

    def config(self) -> dict[str, Any]:
        """Its settings, for JSON."""
        ...

    def hash(self) -> str:
        """Sixteen hex digits that change with any setting."""
        ...


def load_candidate(source: str | os.PathLike[str] | Mapping[str, Any], *, config: Config | None = None) -> Candidate:
    """The candidate that a file, settings or a word describe.

    Args:
        source: a candidate.yaml, its content, or one of the words current, uniform, twin, personal.
        config: the configuration that was in force while the log was made; `over` in the file goes before.

    Raises:
        ConfigError: it cannot be used; every mistake with its place and what is allowed there.
    """
    if isinstance(source, Mapping):
        file = parse_candidate(dict(source))
    elif isinstance(source, str) and source in KINDS[:4]:
        file = parse_candidate(source)
    else:
        file = read_candidate(source)
    if file.over is not None:
        config = load_config(file.over)
    return _built(file, config)


def _built(file: CandidateFile, config: Config | None) -> Candidate:
    name, until = file.name, _seconds(file.trained_until)
    match file.kind:
        case "uniform":
            return UniformCandidate(name=name)
        case "fixed":
            return FixedCandidate(str(file.fixed), file.floor or 0.0, name=name)
        case "candidate":
            return LoggedCandidate("candidate", str(file.candidate), name=name, trained_until=until)
        case "current" | "twin" | "personal" as kind:
            return LoggedCandidate(kind, name=name, trained_until=until)
        case "pmf":
            return PmfFile(Path(str(file.pmf)), name=name, trained_until=until)
        case _ if file.snapshot is not None:
            return _snapshot(file.snapshot, file, config, until)
        case _:
            return RecomputedCandidate(Settings.of(file, config), name=name, trained_until=until)


def _snapshot(section: SnapshotSection, file: CandidateFile, config: Config | None, until: float | None) -> Candidate:
    """A learner as it stood, under the file's settings."""
    if config is None:
        raise ConfigError("snapshot: it reads as the gateway read; name its configuration with 'over: fitrouter.yaml'")
    settings = Settings.of(file, config)
    if section.prior is not None:
        prior = section.prior
        digest = hashlib.sha256(prior.read_bytes()).hexdigest() if prior.is_file() else ""
        return SnapshotCandidate(
            lambda arms: from_prior(prior, config, arms),
            settings,
            name=file.name,
            trained_until=until,
            words=f"the prior {prior.name}",
            config={"prior": prior.name, "sha256": digest},
        )
    assert section.journal is not None
    path, begin = section.journal, section.until
    if file.learning is not None and begin is None:
        begin = 0
    learner, trained = from_journal(path, config, begin)
    last = max((moment for moment in (until, trained) if moment is not None), default=None)
    own = {"journal": path.name, "position": learner.seq}
    if file.learning is not None:
        kind = ProgressiveCandidate if file.learning == "progressive" else RejectionCandidate
        opened = partial(open_journal, path)
        return kind(learner, opened, settings, name=file.name, trained_until=last, config=own)
    words = f"the learner at position {learner.seq} of {path.name}"
    return SnapshotCandidate(learner, settings, name=file.name, trained_until=last, words=words, config=own)


def _seconds(moment: datetime.datetime | None) -> float | None:
    """Seconds since the epoch of a time that is in UTC where it says nothing else."""
    if moment is None:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()
