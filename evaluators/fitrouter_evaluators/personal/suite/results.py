"""Results of a suite's run: one row a model."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fitrouter.errors import InvalidRequest
from fitrouter_evaluators.personal.scores import MetricMean


class TurnsResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a model in tasks over several turns, where the last answer is rated with the conversation before it."""

    tasks: int
    answers: int
    """Of all turns."""
    wins: float
    """Probability that its last answer suits the person better than another model's in the same task."""
    low: float
    high: float
    rating: float
    """Mean rating that the person's reward model predicts; a quarter for a conversation with a fault."""
    sound: float
    """Share of conversations without a fault of the common base at any turn."""
    faults: dict[str, int]
    metrics: dict[str, MetricMean]
    """Over the answers of all turns."""
    user: str
    """Model that played the user; `scripted` without one."""
    unplayed: int
    """Messages that it did not write; the style's follow-up stands for each."""


class ModelResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a model. Shares and ratings are from 0 to 1, with 80% intervals."""

    model: str
    rank: int
    wins: float
    """Probability that its answer to a prompt suits the person better than another model's: reward model, and judge."""
    low: float
    high: float
    best: float
    """Probability that no model wins more."""
    rating: float
    """Mean rating that the person's reward model predicts."""
    population: float
    """Mean rating that everybody's reward model predicts."""
    population_rank: int
    rubric: float
    """Share of the rubric's dimensions, by weight, in which its answers are on the wanted side of the other models'."""
    judge: float | None = None
    """Mean of the judge's verdicts, −1 … 1."""
    base: float
    """Share of its answers without a fault of the common base."""
    faults: dict[str, int] = {}
    """Fault → answers that have it."""
    anchor: float | None = None
    """Mean rating on the anchor prompts, equated to the population's scale."""
    turns: TurnsResult | None = None
    """In tasks over several turns, which are not in `wins` but whose faults are in `base`."""
    why: tuple[str, ...] = ()
    metrics: dict[str, MetricMean] = {}
    """Metric → its mean over the answers; `mean` is that of all, weighted for the person."""
    answers: int = 0
    checked: int = 0
    """Prompts whose right answers are known and compared with its answers,"""
    right: int = 0
    """and its right answers to them."""
    failed: int = 0
    """Calls that it did not answer; each counts as an empty answer."""
    unjudged: int = 0
    """Comparisons that the judge did not answer; each counts for neither."""
    suite: str = ""
    """Id of the suite."""
    trust: float = 0.0
    """Weight of the judge beside the reward model."""
    usd: float = 0.0
    """Paid by this run, for all models and the judge; what an interrupted one paid before is not in it."""
    unpriced: int = 0
    """Calls without a price, which `usd` lacks."""
    domains: dict[str, ModelResult] = {}
    """Domain → its result among the prompts about it alone."""


def about(found: Sequence[ModelResult], domain: str) -> list[ModelResult]:
    """Results among the prompts about a domain, best first.

    Raises:
        InvalidRequest: none is about it; names the domains that there are.
    """
    rows = [each.domains[domain] for each in found if domain in each.domains]
    if not rows:
        there = {name: one.answers for each in found for name, one in each.domains.items()}
        known = ", ".join(f"{name} ({number})" for name, number in there.items()) or "no domain that is known"
        raise InvalidRequest(f"domain: none of the suite's prompts is about {domain[:60]!r}; they are about {known}")
    return sorted(rows, key=lambda each: each.rank)


def encoded(results: Sequence[ModelResult]) -> bytes:
    """Encode the results as JSON lines, in the given order; `fitrouter personal certificate --suite` reads them."""
    return b"".join(msgspec.json.encode(each) + b"\n" for each in results)


def decoded(payload: bytes) -> list[ModelResult]:
    """Results from JSON lines.

    Raises:
        InvalidRequest: a line is no result.
    """
    found = []
    for number, line in enumerate(payload.splitlines(), 1):
        if line.strip():
            try:
                found.append(msgspec.json.decode(line, type=ModelResult))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise InvalidRequest(
                    f"results: line {number}: {error}; give a file of `fitrouter personal suite run`"
                ) from None
    return found
