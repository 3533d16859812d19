"""Claims and intervals of every surface, at the least evidence there can be."""

from __future__ import annotations

import ast
import asyncio
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from tests.kits.suite import STYLES, install
from tests.kits.tables import table_driven
from tests.personal.test_exposure import counted, rated_of
from tests.personal.test_satisfaction import found_in

from fitrouter.monitors.personalisation import PersonalisationMonitor
from fitrouter.posterior.draws import Draws, Means, RatingDraws
from fitrouter.posterior.gaussian import Gaussian
from fitrouter.providers import Recorded
from fitrouter.router import Router
from fitrouter.stores.figures import chance, interval, ratings
from fitrouter.types import Identity
from fitrouter_dashboards.console import Reads
from fitrouter_dashboards.console.models import calibration
from fitrouter_dashboards.console.overview import _change
from fitrouter_dashboards.quality import LEAST, savings
from fitrouter_evaluators.bench.rewardbench import Mean, Ratings, accuracy
from fitrouter_evaluators.datasets import Pair
from fitrouter_evaluators.personal.audit.probes import PROBES
from fitrouter_evaluators.personal.audit.swaps import audited, ranges
from fitrouter_evaluators.personal.beliefs import Beliefs
from fitrouter_evaluators.personal.certificate.figures import Method, figures
from fitrouter_evaluators.personal.certificate.rows import Compared, Decided, Draw, Rows
from fitrouter_evaluators.personal.diagnose.diagnosis import rate
from fitrouter_evaluators.personal.exposure import exposure, price_list
from fitrouter_evaluators.personal.leaderboard import Drawn, Leaderboard, ranked, sentences
from fitrouter_evaluators.personal.report import Reports, _personal_gain, _settled
from fitrouter_evaluators.personal.scores import metric_means, predicted
from fitrouter_evaluators.personal.suite import ANCHORS, Ledger, Models, Runner, decoded


def spans(value: Any) -> Iterator[tuple[float, float]]:
    """Every interval in a result."""
    if isinstance(value, dict):
        for low in [name for name in value if name.endswith("low") and value[name] is not None]:
            yield value[low], value[low.removesuffix("low") + "high"]
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        yield from spans(each)


def board(labels: int, beats: float, people: int | None = None) -> Leaderboard:
    rng = np.random.default_rng(0)
    own = np.array([0.99, 0.7]) + rng.normal(0.0, 0.05, (4000, 2))
    rows = ranked(("a", "b"), own, own)
    who: dict[str, Any] = {"user": "ann", "role": None} if people is None else {"user": None, "role": "nurse"}
    claimed = beats >= 0.8 and labels > 0
    more: dict[str, Any] = {"near": 1.0, "why": (), "tasks": 0, "sentences": (), "people": people}
    return Leaderboard(
        **who, models=rows, first="a", population_first="b", beats=beats, claimed=claimed, labels=labels, **more
    )


@table_driven(
    ("labels", "people", "beats", "said"),
    [
        (0, None, 0.94, "may fit this person better than everybody's first, b, but that is 94% sure, from 0 votes"),
        (1, None, 0.94, "fits this person better than everybody's first, b: 94% sure, from 1 vote."),
        (12, None, 1.0, "b: over 99% sure, from 12 votes."),
        (40, 7, 0.9, "a fits this role better than everybody's first, b: 90% sure, from 40 votes of 7 people."),
    ],
)
def test_a_leaderboard_names_its_evidence(labels: int, people: int | None, beats: float, said: str) -> None:
    """Without a vote nothing personal is claimed; number of votes and people stand beside each claim."""
    found = " ".join(sentences(board(labels, beats, people)))
    assert said in found
    assert "100%" not in found
    assert (" fits " in found) is (labels > 0)


def test_nothing_is_above_the_scale() -> None:
    """What would change a ranking is never a rating above 100%."""
    own = np.array([1.0, 0.4]) + np.random.default_rng(0).normal(0.0, 0.02, (400, 2))
    nothing = Means(Gaussian(np.zeros(1), np.eye(1)), np.zeros(2), np.zeros(1), np.zeros(2))
    drawn = RatingDraws(own, nothing, np.zeros((2, 1)), 1.0)
    rows = ranked(("a", "b"), own, own)
    [said] = _settled(Drawn(msgspec.structs.replace(board(3, 0.9), models=rows), ("a", "b"), drawn, drawn))
    assert said == "a beats b with a probability of over 99%; lower ratings of a could change that."


@pytest.mark.parametrize(
    ("even", "said"),
    [
        (22, "about 1 more rating of each"),
        (90, "about 8 more ratings of each"),
        (100, "more than anybody gives: they are near"),
    ],
)
def test_ratings_that_would_settle_a_rank(even: int, said: str) -> None:
    """Models without a difference are near, however sure that is; a difference that is as sure takes few ratings."""
    own = np.array([[1.0, 0.0]] * (100 - even) + [[0.5, 0.5]] * even)
    nothing = Means(Gaussian(np.zeros(1), np.eye(1)), np.zeros(2), np.zeros(1), np.zeros(2))
    drawn = RatingDraws(own, nothing, np.zeros((2, 1)), 1.0)
    [found] = _settled(
        Drawn(msgspec.structs.replace(board(3, 0.78), models=ranked(("a", "b"), own, own)), ("a", "b"), drawn, drawn)
    )
    assert said in found


def test_without_a_scorer_no_taste_is_told() -> None:
    """No feature has a name then, so that none can be said to make another model the first."""
    reports = object.__new__(Reports)
    reports.router = cast("Router", SimpleNamespace(people=SimpleNamespace(features=())))
    own = np.array([[0.6, 0.5]] * 10)
    nothing = Means(Gaussian(np.zeros(1), np.eye(1)), np.zeros(2), np.zeros(1), np.zeros(2))
    drawn = RatingDraws(own, nothing, np.array([[1.0], [0.0]]), 1.0)
    taste, everybodys = np.array([0.5]), np.array([0.0])
    found = Drawn(board(3, 0.9), ("a", "b"), drawn, drawn)
    assert reports._counterfactuals(found, np.array([[1.0], [0.0]]), taste, everybodys) == ()


def test_one_model_is_compared_with_nothing() -> None:
    """No rating would settle which of one is first."""
    own, one = np.full((10, 1), 0.5), Gaussian(np.zeros(1), np.eye(1))
    drawn = RatingDraws(own, Means(one, np.zeros(1), np.zeros(1), np.zeros(1)), np.zeros((1, 1)), 1.0)
    [found] = _settled(
        Drawn(msgspec.structs.replace(board(3, 0.0), models=ranked(("a",), own, own)), ("a",), drawn, drawn)
    )
    assert found == "There is one model; configure another one to compare it with."


@table_driven(("y", "rated"), [(None, 0), (1.0, 1), (1.0, 8)])
def test_a_certificate_without_ratings_claims_nothing(y: float | None, rated: int) -> None:
    """With no rated decision among the rows nothing is claimed; intervals of equal ratings are left out."""
    decisions = tuple(
        Decided(seq=i, session=i, models=("a", "b"), probs=(1.0, 0.0), chosen="a", y=y if i < rated else None)
        for i in range(1, 9)
    )
    drawn = tuple(Draw(ratings=(0.9 + 0.001 * i, 0.5 - 0.001 * i)) for i in range(50))
    found = figures(Rows(decisions, Compared(names=("a", "b"), population_first="b"), drawn), Method())
    assert found.beats == 1.0
    assert found.claimed is (found.rated > 0)
    assert all(low < high for low, high in spans(msgspec.to_builtins(found)))


@pytest.mark.parametrize("y", [0.0, 1.0])
@pytest.mark.parametrize("people", [10, 30])
def test_satisfaction_of_people_who_are_all_alike(people: int, y: float) -> None:
    """No interval has width zero or is the whole scale, of anybody, of roles and of rarity; the sentences say so."""
    rows = [(f"u{i % people}", "cook", y, float(i), "a", ["a", "b"], [0.9, 0.1], True) for i in range(10 * people)]
    rare = {f"u{i}": float(i) for i in range(people)}
    found = found_in(rows, rare, now=1e9)
    assert found.people == people
    assert found.mean is not None
    assert found.departed is not None
    assert all(0.0 < high - low < 1.0 for low, high in spans(msgspec.to_builtins(found)))
    words = " ".join(found.sentences)
    assert f"{people} people: no interval" in words
    assert "0% to 100%" not in words


def test_exposure_of_people_who_are_all_alike() -> None:
    """One model for everybody: shares have an interval with a width, and changes that change nothing have no price."""
    found = exposure(*counted([(f"u{i % 12}", "a" if i else "b", None) for i in range(240)]))
    rated: list[tuple[Any, ...]] = [
        (f"u{i % 12}", "a", ["a", "b"], [0.9, 0.1], [0.9, 0.1], [], [0.5, 0.2], 0.5) for i in range(120)
    ]
    assert {each.name for each in price_list(rated_of(rated))} & {"floor", "privacy 0.5", "privacy 1"} == set()
    assert found.in_bubble is not None
    every = [*spans(msgspec.to_builtins(found)), *spans(msgspec.to_builtins(price_list(rated_of(rated))))]
    assert all(low < high for low, high in every)
    assert exposure(*counted([(f"u{i % 12}", "a", None) for i in range(240)])).models_each is None


def test_shares_and_chances() -> None:
    """A share of few people has an interval with a width at both ends; no estimated probability is certain."""
    for n in (1, 5, 1000):
        for mean in (0.0, 0.5, 1.0):
            low, high = interval(mean, 0.0, n)
            assert 0.0 <= low < high <= 1.0
            assert low <= mean <= high
    assert [chance(p) for p in (0.0, 0.004, 0.8, 0.994, 1.0)] == ["under 1%", "under 1%", "80%", "99%", "over 99%"]


# --- every class or payload with an interval ---


def with_intervals() -> Iterator[str]:
    """What in the product's source has both ends of an interval: classes, and functions that make a dictionary."""
    root = Path(__file__).parents[2]
    for package in ("router", "evaluators", "dashboards", "integrations"):
        for path in sorted((root / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    names = {ast.unparse(each.target) for each in node.body if isinstance(each, ast.AnnAssign)}
                elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    made = [each for each in ast.walk(node) if isinstance(each, ast.Dict)]
                    names = {str(key.value) for each in made for key in each.keys if isinstance(key, ast.Constant)}
                else:
                    continue
                if any(name.endswith("low") and f"{name.removesuffix('low')}high" in names for name in names):
                    yield f"{path.stem}.{node.name}"


def suite_of_one(folder: Path) -> Any:
    """The anchors alone, and a person who has never voted."""
    asked = [{"row": "prompt", "id": f"p{i}", "text": text, "source": "anchor"} for i, text in enumerate(ANCHORS)]
    rows = [{"row": "suite", "rubric": {"warmth": 1.0}}, *asked]
    suite, config = decoded(b"\n".join(map(msgspec.json.encode, rows))), install(folder)

    async def ran() -> Any:
        async with Router.from_config(config) as router:
            with Ledger(folder / "calls.db") as ledger:
                cards = {card.name: card for card in config.cards()}
                models = Models(cards, {}, ledger, recorded=Recorded(folder / "answers.jsonl"))
                return await Runner(router, models).run(suite, Identity(user="ann"), STYLES)

    return asyncio.run(ran())


def alike(names: tuple[str, ...]) -> RatingDraws:
    """Draws of one person among whom nothing is known to differ but the first model."""
    own = np.array([0.99, 0.7][: len(names)]) + np.random.default_rng(0).normal(0.0, 0.02, (400, len(names)))
    nothing = Means(Gaussian(np.zeros(1), np.eye(1)), np.zeros(len(names)), np.zeros(1), np.zeros(len(names)))
    return RatingDraws(own, nothing, np.zeros((len(names), 1)), 1.0)


def gains(first: str) -> Any:
    found = msgspec.structs.replace(board(3, 0.9), population_first=first)
    return _personal_gain(Drawn(found, ("a", "b"), alike(("a", "b")), alike(("a", "b"))), {})


def people_alike() -> Any:
    rows = [(f"u{i % 10}", "cook", 1.0, float(i), "a", ["a", "b"], [0.9, 0.1], True) for i in range(100)]
    bubble = exposure(*counted([(f"u{i % 12}", "a" if i else "b", None) for i in range(240)]))
    rated: list[tuple[Any, ...]] = [
        (f"u{i % 12}", "a", ["a", "b"], [0.9, 0.1], [0.9, 0.1], [], [0.5, 0.2], 0.5) for i in range(120)
    ]
    alone = [("u0", *row[1:]) for row in rated]
    assert price_list(rated_of(alone)) == ()  # a hundred ratings of one person
    return [found_in(rows, {f"u{i}": float(i) for i in range(10)}, now=1e9), bubble, price_list(rated_of(rated))]


def certified() -> Any:
    decided = [Decided(seq=i, session=i, models=("a", "b"), probs=(1.0, 0.0), chosen="a", y=1.0) for i in range(1, 9)]
    drawn = tuple(Draw(ratings=(0.9 + 0.001 * i,)) for i in range(50))
    return figures(Rows(tuple(decided), Compared(names=("a",), population_first="a"), drawn), Method())


def calibrated() -> Any:
    class One(Reads):
        def rows(self, *queries: Any) -> Any:
            return [[(9.0, 0.95, 1.0, None, 1, 1), (0.0, 0.05, 0.0, 0.0, 2, 1)] for _ in queries]

    return calibration(One(None), None, 0.0)


def changed() -> Any:
    (alike, other), few = (ratings().read([(True, None, y, 30, 30, 0, 0.0)]).all for y in (1.0, 0.0)), 1e3
    return [_change(alike, other), _change(alike, alike), _change(other, alike, few)]


def believed() -> Any:
    rng = np.random.default_rng(1)
    drawn = Draws(0.1 * rng.normal(size=(200, 1)), 0.1 * rng.normal(size=(200, 2)), np.zeros((1, 2)))
    return Beliefs(drawn, 0.1 * rng.normal(size=(1, 2, 1))).models(("a", "b"))


def never_apart() -> Any:
    monitor = PersonalisationMonitor()
    monitor._all.totals.n = 5
    report = monitor.report()
    assert report is not None
    return report.printed()._asdict()


def all_right(n: int) -> list[Mean]:
    """What a benchmark of n pairs says where each is rated rightly, with the posts and without."""
    fields = {"user": "u", "prompt": "?", "a": {"text": "c"}, "b": {"text": "r"}, "label": 1.0}
    pair = msgspec.convert(fields | {"extra": {"subset": "d", "profile": []}}, Pair)
    [found, _] = accuracy([pair] * n, [Ratings([0.9, 0.1], [0.9, 0.1], [0.1, 0.9])] * n)
    assert found.pairs == n, "stands beside each"
    assert found.other is not None
    assert found.personal is not None
    return [found.without, found.history, found.other, found.gain, found.personal, found.best_history]


TABLE: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]] | str] = {
    "personalisation.Report": (lambda _: never_apart(), ()),
    "policy_control.Personalisation": "shows personalisation.Report",
    "status.Gain": "shows personalisation.Report",
    "figures.Rating": (
        lambda _: [ratings().read([(True, None, 1.0, n, n, 0, 0.0)]).all for n in (1, 2, 30)],
        ("ratings", "people"),
    ),
    "figures.Estimate": (lambda _: certified(), ("rated",)),
    "figures.Fit": (lambda _: certified(), ("rated",)),
    "leaderboard.LeaderboardRow": (lambda _: ranked(("a",), *(alike(("a",)).ratings,) * 2), ()),
    "report.PersonalGain": (lambda _: [gains("a"), gains("b")], ()),
    "scores.Dimension": (
        lambda _: [predicted(*(Gaussian(np.array([m]), np.eye(1)),) * 2, np.ones(1)) for m in (-3.0, 0.5, 3.0)],
        (),
    ),
    "_ratings.Rating": "a score over HTTP: scores.Dimension",
    "deepeval.measure": "a score over HTTP: scores.Dimension",
    "rewardbench.Mean": (lambda _: [each for n in (1, 2, 30) for each in all_right(n)], ()),
    "satisfaction.Interval": (lambda _: people_alike(), ("people",)),
    "diagnosis.Rate": (lambda _: [rate(0, 0), rate(0, 1), rate(1, 1), rate(40, 40)], ("cases",)),
    "scores.MetricMean": (
        lambda _: [
            metric_means(("rm.a.score",), np.full((n, 1), 3.0), Gaussian(np.zeros(1), np.eye(1))) for n in (1, 2, 30)
        ],
        ("answers",),
    ),
    "results.ModelResult": (suite_of_one, ("answers",)),
    "beliefs.ModelFit": (lambda _: believed(), ()),
    "quality.Estimate": (
        lambda _: savings([("a", 0.5, ["a", "b"], [1.0, 2.0], [], 1.0)] * LEAST, "b").usd._asdict(),  # type: ignore[union-attr]
        (),
    ),
    "results.TurnsResult": "made by what makes results.ModelResult: Runner._turns, of the same resampling",
    "models.calibration": (lambda _: calibrated(), ("ratings", "people")),
    "overview._change": (lambda _: changed(), ()),
    "_pages._Row": "what leaderboard.LeaderboardRow expects",
    "_people._listed": "what leaderboard.LeaderboardRow expects",
    "estimate.replayed": "rows of a replay",
    "settings.Setting": "bounds of what may be set, no interval",
    "swaps.Range": "lowest and highest of the audit's twenty people, no interval",
    "values.Value": "names of the ends of a value",
    "values.Contrast": "names of the ends of a value",
    **dict.fromkeys(
        ("_protocol.Result", "_protocol.Paired", "choices._interval", "choices._twins", "personal_pool._mean"),
        "a benchmark's bootstrap over its own data",
    ),
    **dict.fromkeys(
        (
            *("learning.RejectionResult", "evaluation._in_range", "gate.SequenceLevel", "gate._Gain"),
            *("intervals.Interval", "sequences.Sequence", "report.PolicyEstimate", "report.Band"),
            *("report.Diagnostics", "report.UserSatisfaction", "_plots._Row"),
        ),
        "a replay's, whose laws are in tests/replay",
    ),
    **dict.fromkeys(
        ("_svg.Axis", "outcomes.MetricOutcomes", "pseudo_outcomes.PseudoOutcomes"),
        "ends of a scale, no interval",
    ),
}
"""Class or function → its results at the least evidence, with what must stand beside an interval; or why not."""


def test_every_interval_is_in_the_table() -> None:
    """Nothing shows an interval without a row above."""
    assert sorted(set(with_intervals())) == sorted(TABLE)


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if not isinstance(row, str)])
def test_intervals_at_the_least_evidence(name: str, tmp_path: Path) -> None:
    """Every interval has a width and lies on its scale, or is left out; how much is known stands beside it."""
    make, evidence = cast("tuple[Callable[[Path], Any], tuple[str, ...]]", TABLE[name])
    found = msgspec.to_builtins(make(tmp_path))
    shown = [(low, high) for low, high in spans(found) if not math.isnan(low)]
    assert shown or name == "quality.Estimate"
    assert all(-1.0 <= low < high for low, high in shown)
    text = str(found)
    assert all(f"'{each}': " in text for each in evidence)


def test_an_audit_that_nobody_answers_claims_nothing() -> None:
    """Without an answer there is no range, and the audit has not passed; its people and questions are counted."""

    async def nobody(person: int, probe: Any) -> Any:
        raise OSError("down")

    found = asyncio.run(audited(nobody, role="cook", registry="1", ts=0.0, drills=(), probes=PROBES[:3]))
    assert (found.passed, found.answered, found.ranges) == (False, 0, ())
    assert (found.swap.people, found.swap.probes) == (20, 3)
    assert f"0 of {found.asked} requests were answered" in found.reasons[0]
    assert ranges({}) == ()
