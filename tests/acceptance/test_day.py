"""What every surface says of a day is what the ledger of the day says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.acceptance.installation import ENVIRONMENT
from tests.acceptance.mutants import COLUMNS, READS, TOGETHER, UNREAD_COLUMNS, UNREAD_READS, reads
from tests.acceptance.places import ASKED_ONCE, CASES, PLACES, QUESTIONS, Houses, first_wrong, surfaces_of, wrong
from tests.acceptance.surfaces import CALLED, METRICS, READERS, Surfaces
from tests.kits.gateway import config, make_router

from fitrouter_dashboards.metrics import Metrics
from fitrouter_integrations import cli
from fitrouter_integrations.gateway import create_app

OTHERS: dict[str, list[str]] = yaml.safe_load(Path(__file__).with_name("others.yaml").read_text())


@pytest.fixture(scope="module")
def houses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Houses]:
    found = Houses(tmp_path_factory.mktemp)
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
    """A table or a view that is in neither of the two files fails; so does a column that `mutants.yaml` has not."""
    tables = {f"duckdb {name}" for (name,) in lived.sql("SELECT DISTINCT table_name FROM information_schema.tables")}
    columns = lived.sql("""
        SELECT table_name || '.' || column_name FROM information_schema.columns
        WHERE table_name NOT IN (SELECT view_name FROM duckdb_views())
    """)
    assert {name for (name,) in columns} == COLUMNS | UNREAD_COLUMNS
    assert tables - READERS.keys() - {surface for some in OTHERS.values() for surface in some} == set()


def test_every_read_of_the_stores_is_listed() -> None:
    """A method that reads a store and is in no list of `mutants.yaml` fails, as does one that is in two."""
    needed = READS.union(*TOGETHER)
    assert reads().keys() == needed | UNREAD_READS
    assert not needed & UNREAD_READS
    assert not COLUMNS & UNREAD_COLUMNS


@pytest.mark.parametrize(
    ("lived", "question"),
    [
        pytest.param(case, each, id=f"{'-'.join(case)}-{each}")
        for case in CASES
        for each in QUESTIONS
        if surfaces_of(each, *case)
    ],
    indirect=["lived"],
)
def test_surfaces_say_what_the_ledger_says(lived: Surfaces, question: str, request: pytest.FixtureRequest) -> None:
    """Every surface that answers a question gives the ledger's figure; one that is known to be wrong is wrong."""
    asked = surfaces_of(question, *request.node.callspec.params["lived"])
    assert not wrong(lived, question, asked), QUESTIONS[question]["asks"]


def test_later_phases_ask_every_question() -> None:
    """After a restart, only what a process counts since its start is not asked, and all that reads the warehouse is.

    Every question is asked everywhere.
    """
    assert all(surfaces_of(each, place) for each in QUESTIONS for place in PLACES)
    left = {each for each in QUESTIONS if not surfaces_of(each, phase="restart")}
    assert all(QUESTIONS[each]["figure"] == ["GET /metrics"] for each in left)
    assert not {each for each in ASKED_ONCE if each.startswith("duckdb ")}


def test_every_surface_is_asked(tmp_path: Path) -> None:
    """A route, a command or a table that is in neither of the two files fails, as does a reader that nobody asks."""
    asked = {surface for each in QUESTIONS.values() for surface in (*each["figure"], *each.get("mismatch", {}))}
    assert asked == READERS.keys()
    app = create_app(make_router(tmp_path), config())
    routes = {f"{method} {route.path}" for route in app.routes for method in route.methods - {"HEAD"}}  # type: ignore[attr-defined]
    commands = {f"fitrouter {CALLED.get(each, each)}" for each in cli.MODULES}
    listed = asked | {surface for some in OTHERS.values() for surface in some}
    assert (routes | commands) - listed == set()


@pytest.mark.parametrize(
    ("gone", "surface"),
    [
        ({"columns": ["scores.schema"]}, "GET /v1/leaderboard"),
        ({"reads": ["journal._sqlite:SqliteJournal.of"]}, "GET /v1/decisions"),
    ],
    ids=["column", "read"],
)
def test_what_is_gone_is_noticed(houses: Houses, gone: dict[str, list[str]], surface: str) -> None:
    """A surface is wrong without a column or a read; `benchmarks.mutants.day` tries all of `mutants.yaml`."""
    with houses.copied("sqlite", **gone) as lived:
        assert first_wrong(lived, [surface])
