"""Schema of candidate.yaml, and its error messages."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

from fitrouter.config import CandidateConfig
from fitrouter.errors import ConfigError
from fitrouter_evaluators.replay._yaml_file import parse, read_yaml

WORDS = ("current", "uniform", "twin", "personal", "shadow")
"""Candidates that need no file."""
KINDS = (*WORDS, "candidate", "fixed", "pmf")
"""Candidates that one setting describes; all others are an algorithm with settings."""

_COMMON = {"name", "over", "trained_until"}
"""Settings that every candidate may have."""

_Share = Annotated[float, Field(ge=0.0, le=1.0)]
_Weight = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
_Yes = Literal[True]


class SnapshotSection(pydantic.BaseModel):
    """Where the snapshot's learner, whose posterior replaces the logged one, comes from: a journal or a prior file."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    journal: Path | None = None
    """A journal, or the folder that holds journal.db."""
    until: int | datetime.datetime | None = None
    """Last journal position or time (UTC if without an offset) to learn from; default: the end."""
    prior: Path | None = None
    """A file made by `fitrouter train policy`."""

    @pydantic.model_validator(mode="after")
    def _one_source(self) -> SnapshotSection:
        if (self.journal is None) == (self.prior is None):
            raise ValueError("name either 'journal' or 'prior': whose beliefs are they?")
        if self.prior is not None and self.until is not None:
            raise ValueError("'until' is a position or a time of a journal; a prior has none: leave it out")
        return self


class CandidateFile(CandidateConfig):
    """A candidate policy: one of `KINDS`, or settings. Settings that are not given stay as logged."""

    name: str = Field(default="", max_length=80)
    """Name in reports."""
    over: Path | None = None
    """The fitrouter.yaml that was in force during logging, for settings that the log does not have."""
    trained_until: datetime.datetime | None = None
    """End of the candidate's training data, where it cannot be derived."""

    current: _Yes | None = None
    """The logged policy."""
    uniform: _Yes | None = None
    """Equal probabilities for all eligible models."""
    twin: _Yes | None = None
    """The logged user-blind policy."""
    personal: bool | None = None
    """Alone and true: the logged policy with user and role terms for all traffic. With other settings: whether those
    terms are used.
    """
    shadow: _Yes | None = None
    """The logged policy with all of the traffic, where a share of it went to the default model."""
    candidate: str | None = None
    """Name of a candidate that ran in shadow."""
    fixed: str | None = None
    """One model for all requests; uniform over the others where it is not eligible."""
    pmf: Path | None = None
    """A CSV, JSONL or Parquet file with the columns decision_id, arm, probability."""

    floor: _Share | None = None
    uniform_slice: _Share | None = None
    share: _Share | None = None
    cost_weight: _Weight | None = None
    latency_weight: _Weight | None = None
    default_model: str | None = None
    """The model that takes the traffic outside `share`, where the log does not show it."""
    paused: str | None = None
    """Models that get nothing, separated by commas, as the setting of a gateway; the policy draws among the others."""
    snapshot: SnapshotSection | None = None
    """The learner whose posterior is used; default: the logged posterior."""
    learning: Literal["progressive", "rejection"] | None = None
    """How the snapshot continues to learn from the log; see `fitrouter_evaluators.replay.candidates.learning`."""

    @property
    def said(self) -> set[str]:
        """Names of the settings that the file gives, without those common to all kinds."""
        return {name for name in self.model_fields_set if getattr(self, name) is not None} - _COMMON

    @property
    def kind(self) -> str:
        """Kind of the candidate: one of `KINDS`, or "settings"."""
        said = self.said
        if said == {"personal"} and self.personal:
            return "personal"
        return next((kind for kind in KINDS if kind != "personal" and kind in said), "settings")

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> CandidateFile:
        said, kind = self.said, self.kind
        if not said:
            raise ValueError(f"nothing says what the policy is; say one of {', '.join(KINDS)}, or an algorithm")
        if kind == "settings":
            self._sensible()
            return self
        allowed = {kind, "floor"} if kind == "fixed" else {kind}
        if said - allowed:
            beside = f"only {', '.join(sorted(allowed - {kind}))}" if len(allowed) > 1 else "nothing"
            raise ValueError(
                f"{kind!r} is a policy by itself and allows {beside} beside it; "
                f"take out {', '.join(sorted(said - allowed))}, or take out {kind!r}"
            )
        return self

    def _sensible(self) -> None:
        if self.algorithm == "fixed":
            raise ValueError("algorithm: say 'fixed: MODEL' for one model that takes everything")
        if self.personal is False and self.snapshot is None:
            raise ValueError(
                "personal: what is believed without the terms of role and user is not logged; say 'twin: true' for the "
                "logged policy without them, or name a 'snapshot'"
            )
        if self.paused is not None and self.snapshot is not None:
            raise ValueError("paused: a snapshot draws among all models of the log; leave one of them out")
        if self.learning is not None and (self.snapshot is None or self.snapshot.journal is None):
            raise ValueError("learning: name the 'snapshot' with its 'journal' that it begins with and reads on in")


def parse_candidate(data: object, source: str = "the candidate") -> CandidateFile:
    """Validate a candidate; a word such as "current" is short for `{current: true}`."""
    if isinstance(data, str) and data in KINDS:
        data = {data: True}
    if not isinstance(data, dict):
        raise ConfigError(f"{source} holds {data!r}; give settings, or one of {', '.join(KINDS)}")
    return parse(CandidateFile, data, source, {"snapshot": SnapshotSection})


def read_candidate(path: str | os.PathLike[str]) -> CandidateFile:
    """Read candidate.yaml. Relative paths in it are relative to its folder."""
    data = read_yaml(path, f"give a candidate.yaml, or one of {', '.join(WORDS)}")
    found, root = parse_candidate(data, f"{str(path)!r}"), Path(path).resolve().parent
    moved: dict[str, Any] = {
        name: root / value for name in ("over", "pmf") if (value := getattr(found, name)) is not None
    }
    if found.snapshot is not None:
        paths = {name: root / value for name in ("journal", "prior") if (value := getattr(found.snapshot, name))}
        moved["snapshot"] = found.snapshot.model_copy(update=paths)
    return found.model_copy(update=moved)
