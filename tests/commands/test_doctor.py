"""`fitrouter doctor`: a sound installation passes; each thing that is wrong is named, with what to do."""

from __future__ import annotations

import json
import shutil
import time
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.kits.gateway import chat, client, serving
from tests.stores.test_journal import decision, done
from typer.testing import CliRunner

from fitrouter.config import Config, load_config
from fitrouter.router import Router
from fitrouter.stores.cold_feed import ColdFeed
from fitrouter.stores.journal import SqliteJournal
from fitrouter.stores.warehouse import Warehouse, WarehouseFeed
from fitrouter_integrations import cli
from fitrouter_integrations.commands.setup import check

CONFIG = """\
encoder: hashing
scorer: {{encoder: none}}
data: {data}
providers:
  s: {{kind: simulated, options: {{small: {{latency_s: 0.0}}}}}}
  p: {{kind: openai_compatible, base_url: "http://127.0.0.1:1/v1", api_key_env: OPS_KEY}}
models: [{{name: small, provider: s}}, {{name: big, provider: p, prices: {{input: 1, output: 2}}}}]
default_model: small
"""
KEY = "sk-canary-1234567890abcdef"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A configuration in the current folder, whose gateway is not at the usual address."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPS_KEY", KEY)
    monkeypatch.setenv("COLUMNS", "400")
    Path("fitrouter.yaml").write_text(CONFIG.format(data=tmp_path / "data"))
    return load_config(Path("fitrouter.yaml"))


def doctor(*arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and name → check."""
    result = CliRunner().invoke(cli.app, ["doctor", "--json", *arguments])
    assert KEY not in result.output
    report = json.loads(result.output)
    found = {check["name"]: check for check in report["checks"]}
    assert all(check["do"] for check in found.values() if check["level"] not in {"ok", "open"})
    assert report["faults"] == sum(check["level"] == "fault" for check in report["checks"])
    assert (result.exit_code == 1) == bool(report["faults"])
    return result.exit_code, found


def wrong(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Name → level of what is not in order, but for what depends on the machine."""
    machine = {"limits", "disk", "file system"}
    return {
        name: check["level"]
        for name, check in found.items()
        if check["level"] not in {"ok", "open"} and name not in machine
    }


def test_sound_before_the_first_start_beside_a_gateway_and_after_it(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is wrong, nothing is changed before there is a folder, and the gateway's own report is read."""
    code, found = doctor()
    assert (code, wrong(found)) == (0, {}), wrong(found)
    assert "not asked: p" in found["reachable"]["text"]
    assert not config.data.exists()
    with serving(Router.from_config(config)) as url, client(url) as http:
        monkeypatch.setattr("fitrouter_integrations.commands.setup._health.url_of", lambda _config: url)
        assert http.post("/v1/chat/completions", json=chat(model="small", user="ann")).status_code == 200
        code, found = doctor()
        assert (code, wrong(found)) == (0, {}), wrong(found)
        assert url in found["gateway"]["text"]
        assert "1 user and a copy" in found["identities"]["text"]
    code, found = doctor()
    assert (code, wrong(found)) == (0, {}), wrong(found)
    assert "all sound" in found["journal"]["text"]
    assert "events behind the journal" in found["warehouse"]["text"]
    text = CliRunner().invoke(cli.app, ["doctor"]).output
    assert "faults: 0" in text
    assert KEY not in text


def test_reasons_of_a_gateway_that_is_not_ready(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that only the running process knows is told with its part."""
    with serving(Router.from_config(config)) as url:
        monkeypatch.setattr("fitrouter_integrations.commands.setup._health.url_of", lambda _config: url)
        monkeypatch.setattr(Router, "faults", lambda _self: {"identities": "was deleted"})
        code, found = doctor()
        assert code == 1
        assert found["gateway: identities"]["text"] == "was deleted"
        monkeypatch.setattr(
            "fitrouter_integrations.commands.setup._health.url_of", lambda _config: "http://127.0.0.1:9"
        )
        assert "no gateway answers" in doctor()[1]["gateway"]["text"]


def test_the_gateway_of_another_installation_is_not_this_one(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another installation's at the configured address is told, whatever it reports of itself."""
    other = config.model_copy(update={"data": tmp_path / "other"})
    with serving(Router.from_config(config)), serving(Router.from_config(other)) as url:
        monkeypatch.setattr("fitrouter_integrations.commands.setup._health.url_of", lambda _config: url)
        assert doctor()[1]["gateway"] == {
            "name": "gateway",
            "level": "warning",
            "text": f"the one at {url} is of another installation",
            "do": "stop it, or give this one another `server.port`; `--config` names the configuration that is meant",
        }


def test_what_is_wrong_is_named(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """No configuration, a missing key, an unreachable model, a clock that is behind, files that others may read."""
    assert doctor("--config", "none.yaml")[1]["config"]["level"] == "fault"
    code, found = doctor("--online")
    assert (code, wrong(found)) == (1, {"model big": "fault"})
    monkeypatch.delenv("OPS_KEY")
    assert "OPS_KEY is not set" in doctor()[1]["provider p"]["text"]
    monkeypatch.setenv("OPS_KEY", KEY)
    with closing(SqliteJournal(config.data / "journal.db")) as journal:
        done(journal.append(decision(1, ts=time.time() + 3600.0)))
    (config.data / "journal.db").chmod(0o644)
    config.data.chmod(0o755)
    (config.data / "audit.log").write_text("no act\n")
    (config.data / "journal.db.corrupt-1").touch()
    found = doctor()[1]
    expected = {"clock": "fault", "rights": "warning", "audit log": "fault", "damaged files": "warning"}
    assert wrong(found) == expected


def test_the_cold_store_is_looked_at(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How far it is behind the journal, what is missing, why it cannot be read, and what is not installed for it."""
    place = tmp_path / "cold"
    Path("fitrouter.yaml").write_text(CONFIG.format(data=config.data) + f"cold: {{place: {place}}}\n")
    with closing(SqliteJournal(config.data / "journal.db")) as journal:
        done(journal.append(*(decision(n) for n in range(8))))
        feed = ColdFeed(journal, str(place), config.data, every_s=0.0, events=2)
        feed.step(), feed.step(), feed.step()
    code, found = doctor()
    assert (code, found["cold store"]["level"]) == (0, "ok")
    assert f"{place}: 3 files, " in found["cold store"]["text"]
    assert "2 events behind the journal" in found["cold store"]["text"]
    next(place.glob("*-000000000003-*")).unlink()
    code, found = doctor()
    assert (code, found["cold store"]["level"]) == (1, "fault")
    assert "missing are the events 3–4" in found["cold store"]["text"]
    shutil.rmtree(place)
    place.write_text("")
    assert "cannot be listed" in doctor()[1]["cold store"]["text"]
    Path("fitrouter.yaml").write_text(CONFIG.format(data=config.data) + "cold: {place: 's3://bucket/x'}\n")
    monkeypatch.setattr(check, "find_spec", lambda name: None if name == "obstore" else find_spec(name))
    result = CliRunner().invoke(cli.app, ["config", "check"])
    assert result.exit_code == 2
    assert "fitrouter[s3]" in result.output


def test_a_damaged_journal_is_told_and_left_as_it_is(config: Config) -> None:
    """Opening it would replace it; the routing of the next start is not looked at then."""
    path = config.data / "journal.db"
    with closing(SqliteJournal(path)) as journal:
        done(journal.append(*(decision(n) for n in range(40))))
    data = bytearray(path.read_bytes())
    data[8192:8300] = b"x" * 108
    path.write_bytes(data)
    code, found = doctor()
    assert (code, found["journal"]["level"]) == (1, "fault")
    assert path.read_bytes() == data


def test_a_warehouse_beside_an_unreadable_journal(config: Config) -> None:
    """How far it is behind is not known then: it is not called up to date."""
    path = config.data / "journal.db"
    with closing(SqliteJournal(path)) as journal:
        done(journal.append(*(decision(n) for n in range(4))))
        feed = WarehouseFeed(journal, Warehouse(config.data / "fitrouter.duckdb"))
        while feed.step():
            pass
        feed.release()
    assert doctor()[1]["warehouse"]["text"].startswith("at event 4, 0 events behind the journal")
    path.write_bytes(b"x" * 8192)
    found = doctor()[1]["warehouse"]
    assert found["level"] == "warning"
    assert "how far it is behind is not known" in found["text"]
