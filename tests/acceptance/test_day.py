"""What every surface says of a day is what the ledger of the day says."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.acceptance.company import PEOPLE, Upstream, settings
from tests.acceptance.day import Day
from tests.acceptance.installation import ENVIRONMENT, Installation
from tests.acceptance.ledger import figures
from tests.acceptance.surfaces import READERS, SAMPLE, SAMPLED, Surfaces
from tests.kits.gateway import config, make_router

from fitrouter_integrations import cli
from fitrouter_integrations.gateway import create_app

QUESTIONS: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("questions.yaml").read_text())
OTHERS: dict[str, list[str]] = yaml.safe_load(Path(__file__).with_name("others.yaml").read_text())
DROP = "FITROUTER_DAY_DROP"
"""Variable that names a column, as table.column, which is not there when the surfaces are read: see `mutants`."""


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Surfaces]:
    """The surfaces of an installation on SQLite, with one worker, that has lived through the day."""
    folder, upstream = tmp_path_factory.mktemp("day"), Upstream()
    with upstream.serving(), pytest.MonkeyPatch.context() as patched:
        for name, value in ENVIRONMENT.items():
            patched.setenv(name, value)
        installation = Installation(folder, settings(str(folder / "data"), upstream.url))
        try:
            installation.start()
            books = Day(installation.url, upstream).live()
            books.check()
            installation.rest()
            if column := os.environ.get(DROP):
                installation.drop(*column.split("."))
            yield Surfaces(installation, books)
        finally:
            installation.kill()


@pytest.mark.parametrize("question", QUESTIONS)
def test_surfaces_say_what_the_ledger_says(lived: Surfaces, question: str) -> None:
    """Every surface that answers a question gives the ledger's figure; one that is known to be wrong is wrong."""
    asked, known = QUESTIONS[question], figures(lived.books)[question]
    wrong = {}
    for surface in (*asked["figure"], *(mismatches := asked.get("mismatch", {}))):
        said, due = lived.of(surface)[question], of_sample(known) if surface in SAMPLED else known
        if equal(said, due) is (surface in mismatches):
            wrong[surface] = apart(said, due)
    assert not wrong, asked["asks"]


def test_every_surface_is_asked(tmp_path: Path) -> None:
    """A route, a command or a table that is in neither of the two files fails, as does a reader that nobody asks."""
    asked = {surface for each in QUESTIONS.values() for surface in (*each["figure"], *each.get("mismatch", {}))}
    assert asked == READERS.keys()
    app = create_app(make_router(tmp_path), config())
    routes = {f"{method} {route.path}" for route in app.routes for method in route.methods - {"HEAD"}}  # type: ignore[attr-defined]
    commands = {f"fitrouter {each.name}" for each in cli.app.registered_commands}
    listed = asked | {surface for some in OTHERS.values() for surface in some}
    assert (routes | commands) - listed == set()


def test_every_table_is_asked(lived: Surfaces) -> None:
    """A table or a view of the warehouse that is in neither of the two files fails."""
    tables = {f"duckdb {name}" for (name,) in lived.sql("SELECT DISTINCT table_name FROM information_schema.tables")}
    assert tables - READERS.keys() - {surface for some in OTHERS.values() for surface in some} == set()


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
