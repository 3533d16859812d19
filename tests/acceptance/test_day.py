"""What every surface says of a day is what the ledger of the day says."""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from tests.acceptance.company import PEOPLE, Upstream, settings
from tests.acceptance.day import Day
from tests.acceptance.installation import ENVIRONMENT, Installation
from tests.acceptance.ledger import Ledger, figures
from tests.acceptance.surfaces import METRICS, READERS, SAMPLE, SAMPLED, Surfaces
from tests.kits.gateway import config, make_router

from fitrouter_dashboards.metrics import Metrics
from fitrouter_integrations import cli
from fitrouter_integrations.gateway import create_app

QUESTIONS: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("questions.yaml").read_text())
OTHERS: dict[str, list[str]] = yaml.safe_load(Path(__file__).with_name("others.yaml").read_text())
DROP = "FITROUTER_DAY_DROP"
"""Variable that names one of `MUTANTS`, as table.column: it is not there when the surfaces are read."""
MUTANTS = tuple(
    f"{table}.{column}"
    for table, columns in {
        "decisions": "decision_id tenant user role ts chosen mode asked",
        "executions": "decision_id tenant status served_by cost_usd prompt_tokens completion_tokens attempts",
        "scores": "decision_id tenant status mean h",
        "feedback": "decision_id tenant user kind dimension y other",
        "remarks": "decision_id tenant user kind",
        "profiles": "tenant user declared",
        "models": "name input_usd_per_million output_usd_per_million price_known",
        "refusals": "tenant n",
    }.items()
    for column in columns.split()
)
"""Columns of the warehouse that surfaces read; benchmarks can run the day without each of them in turn."""


class Place(NamedTuple):
    """What an installation runs on, and what becomes of it after the day."""

    phases: tuple[str, ...] = ()
    """Methods of the installation; after each of them the surfaces are asked again."""


PLACES = {
    "sqlite": Place(phases=("restart", "rebuild")),
}
ASKED_ONCE = SAMPLED - {"GET /console/api/people"} | {
    *("fitrouter satisfaction", "fitrouter exposure", "GET /console/api/decisions/{decision_id}"),
    "GET /metrics",  # counts since the start
}
"""Surfaces that later phases are not asked about: each takes seconds, or reads the same as another one."""
CASES = [(place, phase) for place, what in PLACES.items() for phase in ("day", *what.phases)]
if DROP in os.environ:
    del CASES[1:]  # a mutant needs one day


def surfaces_of(question: str, phase: str = "day") -> list[str]:
    """The surfaces that answer a question, and are asked in a phase."""
    asked = QUESTIONS[question]
    found = [*asked["figure"], *asked.get("mismatch", ())]
    return [each for each in found if phase == "day" or each not in ASKED_ONCE]


@contextmanager
def living(folder: Path) -> Iterator[tuple[Installation, Ledger]]:
    """An installation that has lived through the day, and the books of it."""
    upstream = Upstream()
    with ExitStack() as stack:
        stack.enter_context(upstream.serving())
        installation = Installation(folder, settings(str(folder / "data"), upstream.url))
        stack.callback(installation.kill)
        installation.start()
        books = Day(installation.url, upstream).live()
        books.check()
        installation.rest()
        if column := os.environ.get(DROP):
            installation.drop(*column.split("."))
        yield installation, books


class Houses:
    """The installation that runs; its day is lived once, whatever phases follow."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory, self._stack, self._name = factory, ExitStack(), ""
        self._found: tuple[Installation, Ledger] | None = None
        self._reached = -1
        self._surfaces: Surfaces | None = None

    def surfaces(self, name: str, phase: str) -> Surfaces:
        """The surfaces of an installation when it has come to a phase."""
        number = ("day", *PLACES[name].phases).index(phase)
        if self._surfaces is not None and (name, number) == (self._name, self._reached):
            return self._surfaces
        began = time.monotonic()
        if name != self._name or self._found is None or number < self._reached:
            self.close()
            self._found = self._stack.enter_context(living(self._factory.mktemp(name)))
            self._name, self._reached = name, 0
        installation, books = self._found
        for each in PLACES[name].phases[self._reached : number]:
            getattr(installation, each)()
        self._reached, self._surfaces = number, Surfaces(installation, books)
        sys.stdout.write(f"\n{name}, {phase}: ready after {time.monotonic() - began:.0f} s\n")
        return self._surfaces

    def close(self) -> None:
        self._stack.close()
        self._stack, self._found, self._surfaces = ExitStack(), None, None


@pytest.fixture(scope="module")
def houses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Houses]:
    found = Houses(tmp_path_factory)
    with pytest.MonkeyPatch.context() as patched:
        for name, value in ENVIRONMENT.items():
            patched.setenv(name, value)
        yield found
    found.close()


@pytest.fixture
def lived(houses: Houses, request: pytest.FixtureRequest) -> Surfaces:
    """The surfaces of an installation in one of its phases."""
    return houses.surfaces(*request.param)


def test_every_metric_is_asked() -> None:
    """A family of metrics that is in neither of the two files fails, as does a reader of one that is not there."""
    families = {f"metric {each.name}" for each in Metrics().registry.collect()}
    asked = {f"metric fitrouter_{re.sub('_(total|count)$', '', name)}" for name, *_ in METRICS.values()}
    listed = {surface for some in OTHERS.values() for surface in some if surface.startswith("metric ")}
    assert families == asked | listed
    assert not asked & listed


@pytest.mark.parametrize("lived", CASES[:1], indirect=True, ids=["sqlite-day"])
def test_every_table_is_asked(lived: Surfaces) -> None:
    """A table or a view of the warehouse that is in neither of the two files fails."""
    tables = {f"duckdb {name}" for (name,) in lived.sql("SELECT DISTINCT table_name FROM information_schema.tables")}
    columns = {
        f"{table}.{column}"
        for table, column in lived.sql("SELECT table_name, column_name FROM information_schema.columns")
    }
    assert set(MUTANTS) - columns - {os.environ.get(DROP)} == set()
    assert tables - READERS.keys() - {surface for some in OTHERS.values() for surface in some} == set()


@pytest.mark.parametrize(
    ("lived", "question"),
    [
        pytest.param(case, each, id=f"{'-'.join(case)}-{each}")
        for case in CASES
        for each in QUESTIONS
        if surfaces_of(each, case[1])
    ],
    indirect=["lived"],
)
def test_surfaces_say_what_the_ledger_says(lived: Surfaces, question: str, request: pytest.FixtureRequest) -> None:
    """Every surface that answers a question gives the ledger's figure; one that is known to be wrong is wrong."""
    asked, known = QUESTIONS[question], figures(lived.books)[question]
    wrong = {}
    phase = request.node.callspec.params["lived"][1]
    for surface in surfaces_of(question, phase):
        said, due = lived.of(surface)[question], of_sample(known) if surface in SAMPLED else known
        if equal(said, due) is (surface in asked.get("mismatch", {})):
            wrong[surface] = apart(said, due)
    assert not wrong, asked["asks"]


def test_later_phases_ask_every_question() -> None:
    """After a restart, only what a process counts since its start is not asked, and all that reads the warehouse is."""
    left = {each for each in QUESTIONS if not surfaces_of(each, "restart")}
    assert all(QUESTIONS[each]["figure"] == ["GET /metrics"] for each in left)
    assert not {each for each in ASKED_ONCE if each.startswith("duckdb ")}


def test_every_surface_is_asked(tmp_path: Path) -> None:
    """A route, a command or a table that is in neither of the two files fails, as does a reader that nobody asks."""
    asked = {surface for each in QUESTIONS.values() for surface in (*each["figure"], *each.get("mismatch", {}))}
    assert asked == READERS.keys()
    app = create_app(make_router(tmp_path), config())
    routes = {f"{method} {route.path}" for route in app.routes for method in route.methods - {"HEAD"}}  # type: ignore[attr-defined]
    commands = {f"fitrouter {each.name}" for each in cli.app.registered_commands}
    listed = asked | {surface for some in OTHERS.values() for surface in some}
    assert (routes | commands) - listed == set()


def of_sample(known: Any) -> Any:
    """The part of a figure by person that is of the sample."""
    people = {(who.tenant, who.name) for who in PEOPLE}
    if not isinstance(known, dict):
        return known
    return {key: value for key, value in known.items() if key[:2] in SAMPLE or key[:2] not in people}


def equal(said: Any, known: Any) -> bool:
    """Whether two figures are the same, but for rounding of sums."""
    if isinstance(known, dict):
        return isinstance(said, dict) and said.keys() == known.keys() and all(equal(said[k], known[k]) for k in known)
    if isinstance(known, tuple | list):
        return isinstance(said, tuple | list) and len(said) == len(known) and all(map(equal, said, known))
    if isinstance(known, float) and isinstance(said, int | float):
        return math.isclose(said, known, rel_tol=1e-9, abs_tol=1e-12)
    return bool(said == known)


def apart(said: Any, known: Any) -> Any:
    """Where two figures differ: what is said, and what is known."""
    if isinstance(said, dict) and isinstance(known, dict):
        keys = [
            key for key in {*said, *known} if key not in said or key not in known or not equal(said[key], known[key])
        ]
        return {key: (said.get(key), known.get(key)) for key in keys}
    return said, known
