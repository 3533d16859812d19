"""The pages of report and audit in a real browser: no request, no script, nothing serious for axe."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.personal.test_audit import CLOSED, PASSED, verdicts
from tests.personal.test_report import HOSTILE, report_of

from fitrouter_evaluators.personal import page
from fitrouter_evaluators.personal.audit.page import audit_page
from fitrouter_evaluators.personal.audit.swaps import Audit, Range, identity_swap_test

sync_api = pytest.importorskip("playwright.sync_api", reason="needs the packages playwright and axe-playwright-python")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs the program chromium (apt-get install chromium)")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files with a report and an audit, whose names and texts are hostile."""
    folder = tmp_path_factory.mktemp("pages")
    report = report_of(folder)
    [first, *others] = report.board.models
    board = msgspec.structs.replace(
        report.board, user=HOSTILE, models=(msgspec.structs.replace(first, model=HOSTILE), *others)
    )
    audit = Audit(
        role=HOSTILE,
        registry="r",
        ts=1.8e9,
        passed=False,
        reasons=(HOSTILE,),
        swap=identity_swap_test(verdicts(0, noise=0.0, leaking=2), CLOSED),
        ranges=(Range(dimension="length", low=-2.0, high=1.0), Range(dimension="warmth", low=0.0, high=0.0)),
        drills=tuple(PASSED),
        asked=10,
        answered=10,
    )
    found = {"report": page(msgspec.structs.replace(report, board=board)), "audit": audit_page(audit, "k")}
    for name, html in found.items():
        (folder / f"{name}.html").write_text(html, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in found}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as player:
        opened = player.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.mark.parametrize("name", ["report", "audit"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_in_a_browser(name: str, scheme: str, pages: dict[str, Path], browser: Any) -> None:
    """On a desk and on a phone: the file alone is asked for, the console stays silent, axe finds nothing serious."""
    axe = Path(pytest.importorskip("axe_playwright_python.base").AXE_FILE_PATH).read_text(encoding="utf-8")
    for width in (1440, 390):
        shown, faults = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme), list[str]()
        address = pages[name].as_uri()
        shown.on("request", lambda asked: None if asked.url == address else faults.append(asked.url))  # noqa: B023
        shown.on("console", lambda message: faults.append(message.text))  # noqa: B023
        shown.on("dialog", lambda dialog: (faults.append(dialog.message), dialog.dismiss()))  # noqa: B023
        shown.goto(address)
        assert shown.locator("h1").count() == 1
        assert shown.locator("script, img, iframe, link").count() == 0
        wide = shown.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{wide} px wider than {width}"
        shown.evaluate(axe)
        found = shown.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
        serious = [
            (fault["id"], fault["nodes"][0]["html"], fault["nodes"][0]["failureSummary"])
            for fault in found
            if fault["impact"] in {"serious", "critical"}
        ]
        assert serious == []
        assert faults == []
        shown.close()
