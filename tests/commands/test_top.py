"""`fitrouter top` with a gateway: once, as JSON, with keys, and again and again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kits.gateway import Echo, cards, chat, client, config, make_router, serving, wait_for
from typer.testing import CliRunner, Result

from fitrouter.errors import NotAuthorized
from fitrouter.stores.journal import MemoryJournal
from fitrouter.stores.warehouse import Warehouse, WarehouseFeed
from fitrouter_integrations import cli
from fitrouter_integrations._http import KEY_ENV, NoGateway
from fitrouter_integrations.commands.running import top

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


def test_a_tenants_key_shows_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a key the message says which variable holds it."""
    monkeypatch.setenv("KEY_A", "aaaa-secret-of-tenant-a")
    keys = [{"name": "team-a", "tenant": "a", "key_env": "KEY_A"}]
    monkeypatch.delenv(KEY_ENV, raising=False)
    with serving(make_router(tmp_path), config(keys=keys).model_copy(update={"data": tmp_path})) as url:
        assert isinstance(run("--once", "--url", url).exception, NotAuthorized)
