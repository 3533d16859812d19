"""Where the day is lived, what becomes of the installation, and whether its surfaces say what the books say."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import httpx
import pytest
import yaml
from tests.acceptance.company import PEOPLE, Upstream, settings
from tests.acceptance.day import Day
from tests.acceptance.installation import Installation
from tests.acceptance.ledger import Ledger, figures
from tests.acceptance.mutants import blanked, drop
from tests.acceptance.surfaces import READERS, SAMPLE, SAMPLED, Surfaces
from tests.kits import postgres

from fitrouter.errors import FitrouterError

__all__ = [
    *("ASKED_ONCE", "CASES", "PLACES", "QUESTIONS", "Houses", "Place"),
    *("first_wrong", "living", "questions_of", "surfaces_of", "wrong"),
]

QUESTIONS: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("questions.yaml").read_text())


class Place(NamedTuple):
    """What an installation runs on, and what becomes of it after the day."""

    workers: int = 1
    postgres: bool = False
    cold: bool = False
    left: frozenset[str] = frozenset()
    """Surfaces that are not asked, as they read the same as others here, or as elsewhere."""
    phases: tuple[str, ...] = ()
    """Methods of the installation; after each of them the surfaces are asked again."""


REPEATED = frozenset({"GET /v1/report", "GET /v1/decisions/{decision_id}"})
"""Surfaces of the same functions as pages of the console."""
ALONE = frozenset({f"fitrouter {each}" for each in ("top", "audit-log", "explain", "replay")})
"""Commands that answer questions that no route answers, or ask a gateway."""
PLACES = {
    "sqlite": Place(phases=("restart", "rebuild")),
    "workers": Place(
        workers=2,
        cold=True,
        # Commands read the files, whoever wrote them.
        left=frozenset({each for each in READERS if each.startswith("fitrouter ")} - ALONE | REPEATED),
        phases=("cold_store",),
    ),
    "postgres": Place(postgres=True, left=REPEATED | {"fitrouter report"}),
}
ASKED_ONCE = SAMPLED - {"GET /console/api/people"} | {
    "GET /v1/leaderboard",
    *("fitrouter satisfaction", "fitrouter exposure", "GET /console/api/decisions/{decision_id}"),
    "GET /metrics",  # counts since the start
}
"""Surfaces that later phases are not asked about: each takes seconds, or reads the same as another one."""
RESTARTED = frozenset({"GET /v1/leaderboard", "GET /v1/report", "GET /v1/certificate"})
"""Those of them that are asked again after a restart: what they claim is folded again."""
BROKEN = (
    *(AssertionError, LookupError, TypeError, ValueError, AttributeError),  # it is not there, or something else
    *(duckdb.Error, httpx.HTTPError, FitrouterError),
)
"""What reading a surface of a harmed installation raises."""
CASES = [(place, phase) for place, what in PLACES.items() for phase in ("day", *what.phases)]


def surfaces_of(question: str, place: str = "sqlite", phase: str = "day") -> list[str]:
    """The surfaces that answer a question, and are asked at a place in a phase."""
    asked, left = QUESTIONS[question], PLACES[place].left
    found = [each for each in (*asked["figure"], *asked.get("mismatch", ())) if each not in left]
    if phase == "cold_store":
        return [each for each in found if each.startswith("duckdb ")]
    once = ASKED_ONCE - RESTARTED if phase == "restart" else ASKED_ONCE
    return [each for each in found if phase == "day" or each not in once]


def questions_of(surface: str) -> list[str]:
    """The questions that a surface answers."""
    return [each for each in QUESTIONS if surface in surfaces_of(each)]


@contextmanager
def living(name: str, folder: Path) -> Iterator[tuple[Installation, Ledger]]:
    """An installation that has lived through the day, and the books of it."""
    place, upstream = PLACES[name], Upstream()
    with ExitStack() as stack:
        data, more = str(folder / "data"), dict[str, Any]()
        if place.postgres:
            if postgres.binaries() is None:
                pytest.skip(postgres.MISSING)
            server = stack.enter_context(postgres.serving())
            data, more = server.url(server.database()), {"folder": data}
        if place.cold:
            more |= {"cold": {"place": str(folder / "cold"), "every_s": 1.0}}
        stack.enter_context(upstream.serving())
        installation = Installation(folder, settings(data, upstream.url, **more), place.workers)
        stack.callback(installation.kill)
        installation.start()
        books = Day(installation.url, upstream).live()
        books.check()
        installation.rest()
        yield installation, books


class Houses:
    """The installation that runs; its day is lived once, whatever phases follow.

    Args:
        folder: makes a folder of a name.
    """

    def __init__(self, folder: Callable[[str], Path]) -> None:
        self._folder, self._stack, self._name = folder, ExitStack(), ""
        self._lived: dict[str, tuple[Installation, Ledger]] = {}
        self._reached = -1
        self._surfaces: Surfaces | None = None

    def surfaces(self, name: str, phase: str) -> Surfaces:
        """The surfaces of an installation when it has come to a phase."""
        number = ("day", *PLACES[name].phases).index(phase)
        if self._surfaces is not None and (name, number) == (self._name, self._reached):
            return self._surfaces
        began = time.monotonic()
        if name != self._name or number < self._reached:
            self.close()
            self._lived[name] = self._stack.enter_context(living(name, self._folder(name)))
            self._name, self._reached = name, 0
        installation, books = self._lived[name]
        for each in PLACES[name].phases[self._reached : number]:
            getattr(installation, each)()
        self._reached, self._surfaces = number, Surfaces(installation, books)
        sys.stdout.write(f"\n{name}, {phase}: ready after {time.monotonic() - began:.0f} s\n")
        return self._surfaces

    @contextmanager
    def copied(self, name: str, *, columns: Iterable[str] = (), reads: Iterable[str] = ()) -> Iterator[Surfaces]:
        """The surfaces of a copy of an installation that has lived, without some columns, and with reads of nothing."""
        if name not in self._lived:
            self.surfaces(name, "day")
        self.close()
        installation, books = self._lived[name]
        copy = installation.copied(self._folder("copy"))
        drop(copy.tables, columns)
        copy.blank = tuple(reads)
        with blanked(reads):
            try:
                copy.start()
                yield Surfaces(copy, books)
            finally:
                copy.kill()

    def close(self) -> None:
        """End the installation; what it has stored stays."""
        self._stack.close()
        self._stack, self._name, self._reached, self._surfaces = ExitStack(), "", -1, None


def first_wrong(lived: Surfaces, surfaces: Iterable[str]) -> str:
    """The first of some surfaces that is wrong or fails, and how; empty if none is."""
    for surface in surfaces:
        try:
            found = [each for each in questions_of(surface) if wrong(lived, each, [surface])]
        except httpx.TimeoutException:
            raise
        except BROKEN as error:
            found = [f"{type(error).__name__}: {error}".replace("\n", " ")[:120]]
        if found:
            return f"{surface}: {found[0]}"
    return ""


def wrong(lived: Surfaces, question: str, surfaces: list[str]) -> dict[str, Any]:
    """Which of the surfaces do not give the ledger's figure, and where they differ from it.

    One that is known to be wrong is wrong where it gives the figure.
    """
    known, mismatch = figures(lived.books)[question], QUESTIONS[question].get("mismatch", {})
    found = {}
    for surface in surfaces:
        said, due = lived.of(surface)[question], of_sample(known) if surface in SAMPLED else known
        if equal(said, due) is (surface in mismatch):
            found[surface] = apart(said, due)
            if question in {"first", "claimed"}:
                found[surface] = found[surface], lived.of(surface)["chances"]
    return found


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
