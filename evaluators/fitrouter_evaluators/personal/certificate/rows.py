"""Exported rows of a fit certificate, as JSON lines: one person's decisions and votes, and draws of their posterior.

They hold no text, no context, no time and nothing of another person. Sessions are numbered from 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from fitrouter.errors import InvalidRequest
from fitrouter.stores.figures import RATED
from fitrouter.types import Floats
from fitrouter_evaluators.replay.log.sources import open_log

_DIGITS = 6
_DECISIONS = f"""
    WITH rated AS (
        SELECT decision_id, y FROM log_feedback
        WHERE {RATED} AND y BETWEEN 0 AND 1
        QUALIFY row_number() OVER (PARTITION BY decision_id ORDER BY seq DESC) = 1
    ), served AS (
        SELECT decision_id, bool_and(served_by = chosen) AS plain FROM log_executions GROUP BY decision_id
    )
    SELECT d.seq, coalesce(nullif(d.session, ''), d.decision_id), d.eligible, d.probs, d.mean, d.chosen, rated.y
    FROM log_decisions AS d JOIN served USING (decision_id) LEFT JOIN rated USING (decision_id)
    WHERE d.tenant = ? AND d."user" = ? AND d.mode IN ('online', 'uniform') AND plain AND len(d.probs) = len(d.eligible)
    ORDER BY d.seq
"""  # noqa: S608 - constants


class Decided(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="row", tag="decision"):
    """A decision whose model was drawn from the logged probabilities, and answered."""

    seq: int
    """Position in the journal."""
    session: int
    models: tuple[str, ...]
    """Eligible ones, as `ModelCard.arm`: with variant and revision."""
    probs: tuple[float, ...]
    predicted: tuple[float, ...] = ()
    """Ratings that were predicted before the decision, from 0 to 1; empty if there were none."""
    chosen: str
    y: float | None = None
    """The last rating or thumb, from 0 to 1."""


class Compared(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="row", tag="models"):
    """Names of the compared models in the order of the drawn ratings, and the population's first among them."""

    names: tuple[str, ...]
    population_first: str


class Draw(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="row", tag="draw"):
    """A joint draw of the person's mean ratings of the models, from their posterior."""

    ratings: tuple[float, ...]


class Anchor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="row", tag="anchor"):
    """A model's equated score on the anchor prompts, from a run of a personal suite."""

    model: str
    score: float


class Rows(NamedTuple):
    """The rows of a certificate."""

    decisions: tuple[Decided, ...]
    compared: Compared
    draws: tuple[Draw, ...]
    anchors: tuple[Anchor, ...] = ()

    def encoded(self) -> bytes:
        """Encode the rows as JSON lines."""
        return b"".join(msgspec.json.encode(each) + b"\n" for each in self._all())

    def _all(self) -> Iterable[Decided | Compared | Draw | Anchor]:
        return (*self.decisions, self.compared, *self.draws, *self.anchors)

    @classmethod
    def decoded(cls, payload: bytes) -> Rows:
        """Decode and check rows from JSON lines.

        Raises:
            InvalidRequest: a line is not a row of a certificate, or contradicts itself.
        """
        found: dict[type, list[object]] = {Decided: [], Compared: [], Draw: [], Anchor: []}
        decoder = msgspec.json.Decoder(Decided | Compared | Draw | Anchor)
        for number, line in enumerate(payload.split(b"\n")[:-1], 1):
            try:
                row = decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise InvalidRequest(f"rows: line {number}: {error}; give the rows that came with it") from None
            found[type(row)].append(row)
        if len(found[Compared]) != 1:
            raise InvalidRequest(f'rows: {len(found[Compared])} lines with "row": "models"; there must be one')
        rows = cls(tuple(found[Decided]), found[Compared][0], tuple(found[Draw]), tuple(found[Anchor]))  # type: ignore[arg-type]
        rows.check()
        return rows

    def check(self) -> None:
        """Raise InvalidRequest if a row contradicts itself or another one."""
        last = -1
        for each in self.decisions:
            place = f"rows: decision {each.seq}"
            if each.seq <= last:
                raise InvalidRequest(f"{place} does not follow {last}; decisions are in the journal's order")
            last = each.seq
            sizes = {len(each.models), len(set(each.models)), len(each.probs), len(each.predicted) or len(each.models)}
            if len(sizes) > 1 or each.chosen not in each.models:
                raise InvalidRequest(f"{place} has models, probabilities and predictions that do not fit together")
            if not (min(each.probs) >= 0.0 and math.isclose(math.fsum(each.probs), 1.0, abs_tol=1e-6)):
                raise InvalidRequest(f"{place} has probabilities {list(each.probs)}, which do not add up to 1")
            if each.probs[each.models.index(each.chosen)] <= 0.0:
                raise InvalidRequest(f"{place} chose {each.chosen!r}, whose probability is 0")
            if each.y is not None and not 0.0 <= each.y <= 1.0:
                raise InvalidRequest(f"{place} has the rating {each.y}; ratings are from 0 to 1")
        names = self.compared.names
        if not self.draws or not names or any(len(each.ratings) != len(names) for each in self.draws):
            raise InvalidRequest(f"rows: there must be draws of {len(names)} ratings each, one for each model")
        if self.compared.population_first not in names:
            raise InvalidRequest(f"rows: the population's first, {self.compared.population_first!r}, is not compared")


def logged_rows(
    log: Path,
    *,
    tenant: str,
    subject: str,
    compared: Sequence[str],
    population_first: str,
    draws: Floats,
    anchors: Mapping[str, float] | None = None,
) -> Rows:
    """The rows of a person, from a log. Blocks.

    Args:
        log: any that `read_log` takes; a gateway may be writing it.
        tenant: of the person.
        subject: their user id as events hold it.
        compared: names of the models whose ratings are drawn.
        population_first: the first of them for everybody.
        draws: float64[S, K] of the person's mean ratings of them.
        anchors: model → equated score on the anchors of a suite.

    Raises:
        ConfigError, InvalidLog, StoreError: as `open_log`.
    """
    with open_log(log, features=False) as opened:
        found = opened.connection.execute(_DECISIONS, [tenant, subject]).fetchall()
    sessions: dict[str, int] = {}
    decisions = tuple(
        Decided(
            seq=seq,
            session=sessions.setdefault(session, len(sessions)),
            models=tuple(eligible),
            probs=tuple(probs),
            predicted=tuple(round(min(max(m, 0.0), 1.0), _DIGITS) for m in mean or ())
            if len(mean or ()) == len(probs) and all(map(math.isfinite, mean))
            else (),
            chosen=chosen,
            y=y,
        )
        for seq, session, eligible, probs, mean, chosen, y in found
    )
    rows = Rows(
        decisions,
        Compared(names=tuple(compared), population_first=population_first),
        tuple(Draw(ratings=tuple(row)) for row in draws.round(_DIGITS).tolist()),
        tuple(Anchor(model=model, score=score) for model, score in sorted((anchors or {}).items())),
    )
    rows.check()
    return rows


class _Result(msgspec.Struct):
    """Fields read from a result row of a suite's run."""

    model: str
    anchor: float | None = None


def anchor_scores(payload: bytes) -> dict[str, float]:
    """Read model → equated anchor score from JSON lines of a suite's results; lines without `anchor` are skipped.

    Raises:
        InvalidRequest: a line is not such a row, or a model has two scores.
    """
    found: dict[str, float] = {}
    for number, line in enumerate(payload.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line, type=_Result)
        except msgspec.DecodeError as error:
            raise InvalidRequest(f"suite: line {number}: {error}; give the results of a suite's run") from None
        if row.anchor is not None and found.setdefault(row.model, row.anchor) != row.anchor:
            raise InvalidRequest(f"suite: line {number}: {row.model!r} has two anchor scores")
    if not found:
        raise InvalidRequest("suite: no row has an anchor score; give the results of a suite's run")
    return found
