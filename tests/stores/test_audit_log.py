"""The audit log: who did what is chained by hash, so that no line is changed, removed or inserted unnoticed."""

from __future__ import annotations

import json
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from tests.kits.gateway import client, config, make_router, serving
from tests.kits.tables import table_driven
from typer.testing import CliRunner

from fitrouter.errors import StoreError
from fitrouter.stores.audit_log import FILE, NOTHING, Act, AuditLog
from fitrouter_integrations.commands.running import keys
from fitrouter_integrations.commands.setup import log as audit_log

CONFIG = """
data: data
providers: {s: {kind: simulated}}
models: [{name: m, provider: s}]
"""


def noted(folder: Path, n: int, by: str = "ops") -> list[str]:
    """Hashes of n new acts."""
    return [
        AuditLog(folder).note(Act(ts=float(k), act="policy set", by=by, about={"share": f"0.{k}"})) for k in range(n)
    ]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "fitrouter.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "data"


def test_each_line_follows_the_one_before(tmp_path: Path) -> None:
    """Acts come back in order; the head is the hash of the last, and any earlier hash is known."""
    log = AuditLog(tmp_path / "new")
    assert log.verify().head == NOTHING
    hashes = noted(tmp_path / "new", 5)
    found = log.verify(hashes[2])
    assert (found.acts, found.head, found.broken, found.known) == (5, hashes[-1], None, True)
    assert [act.previous for act in log.acts()] == [NOTHING, *hashes[:-1]]
    assert [act.about for act in log.acts()] == [{"share": f"0.{k}"} for k in range(5)]
    assert log.path.stat().st_mode & 0o777 == 0o600


@table_driven("line", range(4))
@table_driven("how", ["changed", "removed", "inserted", "swapped", "no json"])
def test_tampering_breaks_the_chain(tmp_path: Path, how: str, line: int) -> None:
    """Whatever is done to a line that others follow is found at that line or the next."""
    noted(tmp_path, 6)
    lines = (tmp_path / FILE).read_text().splitlines()
    if how == "changed":
        lines[line] = lines[line].replace('"by":"ops"', '"by":"eve"')
    elif how == "removed":
        del lines[line]
    elif how == "inserted":
        lines.insert(line, lines[line])
    elif how == "swapped":
        lines[line], lines[line + 1] = lines[line + 1], lines[line]
    else:
        lines[line] = "{"
    (tmp_path / FILE).write_text("\n".join(lines) + "\n")
    assert AuditLog(tmp_path).verify().broken in {line + 1, line + 2}


def test_a_cut_end_needs_a_hash_kept_elsewhere(tmp_path: Path) -> None:
    """A shorter log is sound in itself, and so is one written anew: only the known hash tells."""
    head = noted(tmp_path, 4)[-1]
    lines = (tmp_path / FILE).read_text().splitlines()
    (tmp_path / FILE).write_text("\n".join(lines[:2]) + "\n")
    assert AuditLog(tmp_path).verify().broken is None
    assert not AuditLog(tmp_path).verify(head).known
    noted(tmp_path, 2, by="eve")
    assert not AuditLog(tmp_path).verify(head).known


@pytest.mark.parametrize("torn", [b"{", b'{"ts":1.0,"act":"pol' + b"x" * 200_000])
def test_a_line_that_a_crash_cut_short_is_dropped(tmp_path: Path, torn: bytes) -> None:
    """The next act follows the last whole line; texts are cut to a length that keeps lines small."""
    noted(tmp_path, 3)
    with (tmp_path / FILE).open("ab") as file:
        file.write(torn)
    assert AuditLog(tmp_path).verify().acts == 3
    AuditLog(tmp_path).note(Act(ts=9.0, act="policy set", by="ops", about={"force": "y" * 10**6}))
    found = AuditLog(tmp_path).verify()
    assert (found.acts, found.broken) == (4, None)
    assert (tmp_path / FILE).stat().st_size < 2_000


def test_a_long_log_is_read_from_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An act needs the last line only, however long it and the log are; the file is read in blocks."""
    read: list[int] = []
    pread = os.pread

    def counted(file: int, length: int, at: int) -> bytes:
        read.append(length)
        return pread(file, length, at)

    monkeypatch.setattr(os, "pread", counted)
    for by in ("a" * 300_000, "b", "c" * 300_000, "d", "e"):
        noted(tmp_path, 2, by=by)
    assert max(read) == 65_536
    assert len(read) < 40
    assert (AuditLog(tmp_path).verify().acts, AuditLog(tmp_path).verify().broken) == (10, None)


def test_several_processes_write_one_chain(tmp_path: Path) -> None:
    """No line is lost or broken."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        list(pool.map(noted, [tmp_path] * 4, [25] * 4))
    found = AuditLog(tmp_path).verify()
    assert (found.acts, found.broken) == (100, None)


def test_what_cannot_be_noted_is_not_done(folder: Path) -> None:
    """Without a line there is no key."""
    folder.mkdir()
    (folder / FILE).mkdir()
    done = CliRunner().invoke(keys.app, ["create", "app"])
    assert isinstance(done.exception, StoreError)
    assert not (folder / "keys.json").exists()


def test_commands_of_keys_are_noted_and_shown(folder: Path) -> None:
    """Each change of a key is a line without its secret; `verify` prints the head, and fails after a change."""
    run = CliRunner().invoke
    secret = run(keys.app, ["create", "app", "--tenant", "a"]).stdout.strip()
    run(keys.app, ["rotate", "app"])
    run(keys.app, ["revoke", "app"])
    assert run(keys.app, ["revoke", "app"]).exit_code, "it was revoked"
    shown = json.loads(run(audit_log.app, ["show", "--json"]).stdout)
    assert [(act["act"], act["about"]["tenant"]) for act in shown] == [
        ("key create", "a"),
        ("key rotate", "a"),
        ("key revoke", "a"),
    ]
    assert secret.rpartition("-")[2] not in (folder / FILE).read_text()
    lines = run(audit_log.app, ["show", "--last", "2"]).stdout.splitlines()
    assert len(lines) == 2
    assert "key revoke  by uid " in lines[1]
    head = AuditLog(folder).verify().head
    done = run(audit_log.app, ["verify", "--head", head])
    assert (done.exit_code, done.stdout) == (0, f"3 sound entries, the last with the hash {head}\n")
    assert run(audit_log.app, ["verify", "--head", "0" * 63 + "1"]).exit_code == 1
    assert run(audit_log.app, ["verify", "--head", "xyz"]).exit_code != 0
    text = (folder / FILE).read_text()
    (folder / FILE).write_text(text.replace("key create", "key revoke"))
    done = run(audit_log.app, ["verify"])
    assert (done.exit_code, "broken at line 2" in done.stdout) == (1, True)


def test_changes_of_the_policy_are_noted(tmp_path: Path) -> None:
    """Each change that is valid, by the name of its key; none that is malformed."""
    folder = tmp_path / "data"
    with serving(make_router(tmp_path), config().model_copy(update={"data": folder})) as url, client(url) as http:
        change = {"action": "set", "settings": {"floor": 0.02}}
        assert http.post("/v1/policy", json=change).status_code == 200
        assert http.post("/v1/policy", json={"action": "set", "settings": {"floor": 7}}).status_code == 400
        assert http.post("/v1/policy", json={"action": "restore"}).status_code == 200
        assert [act.act for act in AuditLog(folder).acts()] == ["policy set", "policy restore"]
        (folder / FILE).unlink()
        (folder / FILE).mkdir()
        assert http.post("/v1/policy", json=change).status_code == 503
        (folder / FILE).rmdir()
        assert http.post("/v1/policy", json=change).status_code == 200
        (act,) = AuditLog(folder).acts()
    assert (act.act, act.by, act.about) == ("policy set", "a client without a key", {"floor": "0.02"})
