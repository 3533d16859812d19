"""What every surface says of a day is what the ledger of the day says."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.acceptance.company import Upstream, settings
from tests.acceptance.day import Day
from tests.acceptance.installation import Installation
from tests.acceptance.ledger import Ledger, figures
from tests.acceptance.surfaces import Surfaces

QUESTIONS: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("questions.yaml").read_text())


class Lived:
    """An installation that has lived through the day, and its books."""

    def __init__(self, surfaces: Surfaces, books: Ledger) -> None:
        self.surfaces, self.books, self.figures = surfaces, books, figures(books)


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lived]:
    """One worker on SQLite."""
    folder = tmp_path_factory.mktemp("day")
    upstream = Upstream()
    with upstream.serving():
        installation = Installation(folder, settings(str(folder / "data"), upstream.url))
        try:
            installation.start()
            books = Day(installation.url, upstream).live()
            books.check()
            installation.rest()
            yield Lived(Surfaces(installation, books), books)
        finally:
            installation.kill()


@pytest.mark.parametrize("question", QUESTIONS)
def test_surfaces_say_what_the_ledger_says(sqlite: Lived, question: str) -> None:
    """Every surface that answers a question gives the ledger's figure."""
    wrong = {}
    for surface in QUESTIONS[question]["figure"]:
        said = sqlite.surfaces.of(surface)[question]
        if not equal(said, sqlite.figures[question]):
            wrong[surface] = said
    assert not wrong, f"{QUESTIONS[question]['asks']} {sqlite.figures[question]}"


def equal(said: Any, known: Any) -> bool:
    """Whether two figures are the same, but for rounding of sums."""
    if isinstance(known, dict):
        return isinstance(said, dict) and said.keys() == known.keys() and all(equal(said[k], known[k]) for k in known)
    if isinstance(known, tuple | list):
        return isinstance(said, tuple | list) and len(said) == len(known) and all(map(equal, said, known))
    if isinstance(known, float) and isinstance(said, int | float):
        return math.isclose(said, known, rel_tol=1e-9, abs_tol=1e-12)
    return bool(said == known)
