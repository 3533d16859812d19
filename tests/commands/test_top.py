"""`fitrouter top` with a gateway: once, as JSON, with keys, and again and again."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from tests.kits.gateway import Echo, cards, chat, client, config, make_router, serving, wait_for
from typer.testing import CliRunner, Result

from fitrouter.errors import NotAuthorized, StoreError
from fitrouter.stores.figures import OUTCOMES
from fitrouter.stores.journal import MemoryJournal
from fitrouter.stores.warehouse import Warehouse, WarehouseFeed
from fitrouter_integrations import cli
from fitrouter_integrations._http import KEY_ENV, NoGateway
from fitrouter_integrations.commands.running import top

NAMES = ("anthropic/claude-sonnet-4-5-20250929", "openrouter/meta-llama/llama-3.3-70b-instruct", "brief")
ROLE = "[red]\u202e<b>"


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    journal = MemoryJournal()
    feed = WarehouseFeed(journal, Warehouse(tmp_path / "fitrouter.duckdb"))
    router = make_router(tmp_path, {"echo": Echo()}, models=cards(["alpha", "[b]eta"]), journal=journal, feed=feed)
    with serving(router, config().model_copy(update={"data": tmp_path})) as address:
        with client(address) as http:
            for i in range(6):
                made = http.post("/v1/chat/completions", json=chat(user=f"u{i}", metadata={"role": ROLE}))
                vote = {"decision_id": made.headers["x-fitrouter-decision"], "kind": "thumb", "value": "up"}
                assert http.post("/v1/feedback", json={**vote, "user": f"u{i}"}).status_code == 200
        wait_for(lambda: feed.step() == 0 and feed.lag == 0)
        yield address


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, ["top", *arguments])


def test_once_it_says_what_the_console_says(url: str) -> None:
    """Text and JSON have the figures of the API; names from outside are neither markup nor control characters."""
    found = json.loads(run("--json", "--url", url).output)
    assert (found["now"]["totals"]["requests"], found["now"]["totals"]["reward"]["mean"]) == (6, 1.0)
    said = run("--once", "--url", url).output
    assert "no alarm" in said
    assert "[b]eta" in said
    assert "[red]" in said
    assert "\u202e" not in said
    assert "1.000" in said
    assert run("--url", url).output.count("no alarm") == 1, "a pipe gets it once"


def screen(width: int) -> list[str]:
    """The lines of a terminal of this width that shows long names, an alarm, and an answer without a price."""
    series = [{"point": i, "requests": i, "cost_usd": 0.1 * i, "p50_ms": 100.0 + i} for i in range(24)]
    totals = {"requests": 12345, "reward": {"mean": 0.712, "low": 0.701, "high": 0.723, "ratings": 4321}}
    totals |= dict(zip(OUTCOMES, (12000, 300, 45, 3, 1, 0), strict=True)) | {"p50_ms": 1234.0, "p95_ms": 5678.0}
    totals |= {"cost": {"usd": 12.3456, "unpriced": 123, "each": 0.00123}}
    now = {"window": "24h", "totals": totals, "series": series, "points": 24, "ratings": [{"point": 0, "mean": 0.5}]}
    now["alarms"] = [{"level": "bad", "text": f"{NAMES[0]} is not called for the moment: it fails again and again"}]
    now["personalisation"] = {"": {"gain": 0.021, "low": 0.003, "high": 0.04, "labels": 4321}}
    now["flows"] = [{"role": "engineer of the platform team, on call", "model": NAMES[0], "requests": 800}]
    figures = {"requests": 1000, "reward": totals["reward"], "cost": {"each": 0.00123}, "p50_ms": 1234}
    known = {"figures": figures, "availability": 0.99, "unanswered": None, "out": "circuit open"}
    models = [{"name": name, **known} for name in NAMES]
    console = Console(width=width, highlight=False, record=True, file=io.StringIO())
    found = {"now": now, "models": {"models": models, "paused": ["brief"], "force": None}}
    console.print(top._screen(found, "http://127.0.0.1:8484", console.width))
    return console.export_text().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_it_is_laid_out_for_the_terminals_width(width: int) -> None:
    """No line is wider, no figure, name or state is cut or broken over lines, and figures stand below their titles."""
    lines = screen(width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "…" not in text
    for figure in ("12,345", "12,000 answered", "at least $12.35", "$0.0012 per request", "0.701 to 0.723 (95%)"):
        assert figure in text
    (head,) = [line for line in lines if line.startswith("model (7 days)")]
    for title, figure in (("share", "33.3%"), ("rating", "0.712"), ("$/request", "$0.0012"), ("latency", "1.2 s")):
        ends = {line.find(figure) + len(figure) for line in lines[lines.index(head) + 1 :] if figure in line}
        assert ends == {head.index(title) + len(title)}
    assert "99%" in text
    assert text.count("circuit open") == 2
    assert "paused" in text
    assert ("95%" in head) is (width > 100)
    for name in NAMES:
        assert name in "".join(line.split()[0] for line in lines[lines.index(head) :] if line.strip())


def test_it_goes_on_until_it_is_stopped(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that does not answer for a moment is waited for."""
    looks = []

    def wait(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            monkeypatch.setattr(top, "call", fail)
        if len(looks) == 4:
            raise KeyboardInterrupt

    def fail(*_: object) -> None:
        raise NoGateway("nobody answers")

    monkeypatch.setattr(top.time, "sleep", wait)
    monkeypatch.setattr(top.Console, "is_terminal", True)
    result = run("--every", "3", "--url", url)
    assert result.exit_code == 0
    assert looks == [3.0] * 4
    assert "nobody answers" in result.output


def test_it_waits_for_the_first_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a terminal a gateway that has no figures yet is watched until it has; once, that is an error."""
    journal, file = MemoryJournal(), tmp_path / "fitrouter.duckdb"
    feed = WarehouseFeed(journal, Warehouse(file))
    router = make_router(tmp_path, {"echo": Echo()}, models=cards(["alpha"]), journal=journal, feed=feed)
    looks: list[float] = []

    def wait(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            raise KeyboardInterrupt
        feed.step()

    with serving(router, config().model_copy(update={"data": tmp_path})) as url:
        once = run("--once", "--url", url)
        assert isinstance(once.exception, StoreError)
        monkeypatch.setattr(top.time, "sleep", wait)
        monkeypatch.setattr(top.Console, "is_terminal", True)
        watched = run("--url", url)
        assert watched.exit_code == 0
        assert watched.output.index("there are no figures yet") < watched.output.index("no alarm")


def test_a_tenants_key_shows_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a key the message says which variable holds it."""
    monkeypatch.setenv("KEY_A", "aaaa-secret-of-tenant-a")
    keys = [{"name": "team-a", "tenant": "a", "key_env": "KEY_A"}]
    monkeypatch.delenv(KEY_ENV, raising=False)
    with serving(make_router(tmp_path), config(keys=keys).model_copy(update={"data": tmp_path})) as url:
        assert isinstance(run("--once", "--url", url).exception, NotAuthorized)
