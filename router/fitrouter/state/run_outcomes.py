"""What counts of all that was said about an answer or a run; outcomes of runs as labels, means over their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from fitrouter.identity import canonical_role
from fitrouter.posterior.labels import Answered, Label, Share
from fitrouter.stores.journal import decision_of
from fitrouter.types import SOURCES, Event, Execution, FeedbackKind, Identity, Remark, RunOutcome, Score

_KINDS = {"success": FeedbackKind.THUMB, "rating": FeedbackKind.RATING, "number": FeedbackKind.RATING}
"""Kind of an outcome → the kind of feedback whose noise its own starts from."""


def effective(outcomes: Sequence[RunOutcome]) -> RunOutcome | None:
    """The outcome that counts among all reports on one run, in order: the last one of the source that counts most."""
    ranks = [SOURCES.index(each.source) for each in outcomes]
    return max(zip(ranks, range(len(ranks)), outcomes, strict=True), key=lambda each: each[:2])[2] if ranks else None


def standing(remarks: Sequence[Remark]) -> Remark | None:
    """The remark that counts among all remarks on one decision, in order."""
    comments = [remark for remark in remarks if remark.kind == "comment"]
    return next(reversed(comments or remarks), None)


def reports_on(who: Identity, events: Sequence[Event]) -> list[RunOutcome]:
    """The reports on a run of a tenant among events, in order."""
    reports = [event for event in events if isinstance(event, RunOutcome)]
    return [each for each in reports if (each.identity.run, each.identity.tenant) == (who.run, who.tenant)]


def by_decision(decisions: Sequence[str], events: Sequence[Event]) -> dict[str, list[Event]]:
    """The events of each of some decisions, in order."""
    found: dict[str, list[Event]] = {decision: [] for decision in decisions}
    for event in events:
        if (decision := decision_of(event)) in found:
            found[decision].append(event)
    return found


def run_label(
    standing: RunOutcome,
    first: RunOutcome,
    before: RunOutcome | None,
    answers: Mapping[str, Answered | None],
    of_answer: Mapping[str, Sequence[Event]],
) -> Label | None:
    """Build the label of a run, None as long as one of its answers is not known.

    A person's own terms learn from what that person said alone. A report that supersedes another is about the answers
    of the first one on the run, so that it corrects what was learnt of that; a refit reads it with its own.

    Args:
        standing: the report that counts.
        first: the first one on the run.
        before: the one that counted before.
        answers: of the run, by decision.
        of_answer: the events of each.
    """
    shares = tuple(
        Share(1.0 / len(answers), answer, *_work_of(of_answer[name]))
        for name, answer in answers.items()
        if answer is not None
    )
    if not shares or len(shares) < len(answers):
        return None
    personal = standing.source == "person" and (before is None or before.source == "person")
    roles = {share.role for share in shares}
    who = msgspec.structs.replace(
        first.identity,
        user=first.identity.user if personal else None,
        role=roles.pop() if len(roles) == 1 else None,
    )
    return Label(
        who,
        shares[0].answer,
        standing.y,
        _KINDS[standing.kind],
        ts=standing.ts,
        run=shares,
        stream=f"outcome {standing.kind}",
    )


def _work_of(events: Sequence[Event]) -> tuple[str | None, str | None]:
    """The role and the task of a decision, by its events."""
    who = next((event.identity for event in events if isinstance(event, Score | Execution)), Identity())
    return canonical_role(who.role), who.task
