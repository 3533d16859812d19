"""Fit reports: the page holds no markup of users or models, numbers are finite, and the terminal's lines fit."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import numpy as np
import pytest
from tests.kits.quiz import install
from tests.personal.test_quizzes import ANN, finish, logged, played

from fitrouter.config import Config
from fitrouter.errors import InvalidRequest
from fitrouter.posterior.gaussian import Gaussian
from fitrouter.posterior.heads import HINGES
from fitrouter.router import Router
from fitrouter.types import Identity, Score
from fitrouter_evaluators.personal import FitReport, Quizzes, Reports, page, worth_words
from fitrouter_integrations.commands.personal.report import text

HOSTILE = "<script>alert(1)</script><img src=x onerror=y>\"'&</style></svg>\x1b[31m\u202e\x00"


class Page(HTMLParser):
    """Tags and attributes of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


def report_of(folder: Path) -> FitReport:
    found: list[FitReport] = []

    async def test(router: Router, quizzes: Quizzes, config: Config) -> None:
        await finish(quizzes, await quizzes.start(ANN))
        await router.settled()
        events = [event.id for event in logged(router) if not isinstance(event, Score)]
        reports = Reports(router, config)
        found.append(await reports.of(ANN))
        assert [event.id for event in logged(router) if not isinstance(event, Score)] == events
        with pytest.raises(InvalidRequest, match="no user and no role"):
            await reports.of(Identity())

    played(install(folder), test)
    return found[0]


def test_a_report_is_complete_and_finite(tmp_path: Path) -> None:
    """Every model has its quotes and intervals; all numbers are finite; terminal lines have at most 80 columns."""
    report = report_of(tmp_path)
    assert [each.model for each in report.models] == [each.model for each in report.board.models]
    for model in report.models:
        assert {quote.best for quote in model.quotes} == {True, False}
        assert model.dimensions["overall"].low <= model.dimensions["overall"].high
    assert report.change
    assert worth_words(report)

    def numbers(value: object) -> None:
        if isinstance(value, float):
            assert math.isfinite(value)
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            numbers(each)

    numbers(msgspec.to_builtins(report))
    assert all(len(line) <= 80 for line in text(report))
    assert msgspec.convert(msgspec.to_builtins(report), FitReport) == report


def test_hostile_texts_never_become_html(tmp_path: Path) -> None:
    """Names, prompts, answers and words are text on the page, which loads nothing and runs nothing."""
    report = report_of(tmp_path)
    plain = Page(page(report))

    def poisoned(value: object, name: str = "") -> object:
        if isinstance(value, dict):
            return {key: poisoned(each, key) for key, each in value.items()}
        if isinstance(value, list):
            return [poisoned(each, name) for each in value]
        return HOSTILE if isinstance(value, str) else value

    raw = poisoned(msgspec.to_builtins(report))
    bad = msgspec.convert(raw, FitReport)
    html = page(bad)
    found = Page(html)
    assert set(found.tags) == set(plain.tags)
    assert not {"script", "img", "link", "iframe", "object", "form", "a"} & set(found.tags)
    assert not [name for name, _ in found.attributes if name.startswith("on") or name in {"src", "href", "style"}]
    assert not {"\x1b", "\x00", "\u202e"} & set(html)
    assert not re.search(r"url\(|@import|https?:", html)
    assert "default-src 'none'" in html
    assert not {"\x1b", "\x00"} & set("".join(text(bad)))


def test_a_taste_that_is_known_for_certain_is_told() -> None:
    """A feature whose deviation is 0 is liked or disliked for sure; one that is not known at all is not told."""
    reports = object.__new__(Reports)
    reports.router = cast("Router", SimpleNamespace(people=SimpleNamespace(features=("length", "structure", "g"))))
    found = reports._likes(Gaussian(np.array([-0.5, 0.01, 0.0]), np.diag([0.0, 1.0, 0.0])))
    assert [(each.feature, each.likes, each.sure) for each in found] == [("length", False, 1.0)]


def test_longer_is_liked_where_the_curve_of_length_rises() -> None:
    """What is told of length is the mean slope from one standard deviation below the average to one above."""
    reports = object.__new__(Reports)
    reports.router = cast("Router", SimpleNamespace(people=SimpleNamespace(features=("length", *HINGES))))
    flat = Gaussian(np.array([-0.5, 0.3, 0.4, -9.0]), np.zeros((4, 4)))
    assert reports._likes(flat) == ()
    rising = Gaussian(np.array([-0.5, 0.3, 0.6, -9.0]), np.diag([0.01, 0.0, 0.0, 9.0]))
    assert [(each.feature, each.likes) for each in reports._likes(rising)] == [("length", True)]
