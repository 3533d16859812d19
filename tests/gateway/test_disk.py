"""Full and read-only disks: requests are answered, nothing is acknowledged that is lost, nobody dies."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.kits.gateway import chat, client, serving, wait_for

from fitrouter.config import Config, parse_config
from fitrouter.errors import StoreError
from fitrouter.hooks import Hooks, Notice, Trouble
from fitrouter.router import Router
from fitrouter.stores.identities import SqliteIdentities
from fitrouter.stores.journal import SqliteJournal, UnloggedJournal
from fitrouter.types import Decision
from fitrouter_integrations.gateway import _serve


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk."""
    place = tmp_path / "disk"
    place.mkdir()
    mount("-t", "tmpfs", "-o", "size=16m", "tmpfs", str(place))
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def mount(*arguments: str) -> None:
    try:
        subprocess.run(["mount", *arguments], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("file systems cannot be mounted here")


def fill(place: Path) -> None:
    with (place / "filler").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(512))


def settings(data: Path) -> Config:
    return parse_config(
        {
            "data": str(data),
            "scorer": {"encoder": "none"},
            "providers": {"s": {"kind": "simulated", "options": {"m": {"latency_s": 0.0}}}},
            "models": [{"name": "m", "provider": "s"}],
        }
    )


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_a_start_without_a_writable_disk_serves_unlogged(disk: Path, how: str) -> None:
    """What was learnt and who is who is read; /readyz and a hook say why, and feedback is refused.

    With room again, answers are logged again without a restart, and those who came meanwhile keep their subjects.
    """
    seen: list[Notice] = []
    with serving(Router.from_config(settings(disk))) as url, client(url) as http:
        first = http.post("/v1/chat/completions", json=chat(user="ann")).json()["fitrouter"]
    ann = SqliteIdentities(disk / "identities.db")
    known = ann.subject("default", "ann")
    ann.close()
    if how == "full":
        fill(disk)
    else:
        mount("-o", "remount,ro", str(disk))
    router = Router.from_config(settings(disk), hooks=Hooks(seen.append))
    assert router._identities.subject("default", "ann") == known
    assert router._journal.of(first["decision_id"])
    with serving(router) as url, client(url) as http:
        reply = http.post("/v1/chat/completions", json=chat(user="ann"))
        assert reply.status_code == 200
        assert reply.headers["x-fitrouter-logged"] == "false"
        vote = {"decision_id": first["decision_id"], "kind": "thumb", "value": "up", "user": "ann"}
        assert http.post("/v1/feedback", json=vote).status_code == 503
        report = http.get("/readyz")
        assert (report.status_code, report.json()["status"]) == (200, "degraded")
        if how == "read-only":  # a full disk may be found full at the start or at the first write
            assert "nothing is logged or learnt" in report.json()["reasons"]["journal"]
        assert report.json()["reasons"]["journal"]
        wait_for(lambda: Trouble("journal", "StoreError") in seen)
        http.post("/v1/chat/completions", json=chat(user="bob"))
        bob = router._identities.subject("default", "bob")
        if how == "full":
            (disk / "filler").unlink()
        else:
            mount("-o", "remount,rw", str(disk))
        wait_for(lambda: http.get("/readyz?strict").status_code == 200)
        assert router._identities.folder == disk
        again = http.post("/v1/chat/completions", json=chat(user="bob"))
        assert again.headers["x-fitrouter-logged"] == "true"
        assert http.post("/v1/feedback", json=vote).status_code == 200
    journal = SqliteJournal(disk / "journal.db")
    (logged,) = [
        row.event for row in journal.of(again.json()["fitrouter"]["decision_id"]) if isinstance(row.event, Decision)
    ]
    journal.close()
    assert logged.identity.user == bob


def test_a_journal_that_was_never_there_is_empty(tmp_path: Path) -> None:
    """A first start on a read-only disk finds nothing and refuses everything."""
    journal = UnloggedJournal(tmp_path / "none.db", "the disk is read-only")
    assert (journal.head(), journal.tail(0), journal.snapshot().seq) == (0, [], 0)
    assert not journal.lease("scorer").held()
    with pytest.raises(StoreError, match="read-only"):
        journal.append()
    journal.close()


def test_a_mistake_is_no_full_disk(tmp_path: Path) -> None:
    """A journal of a later version is still refused at the start."""
    journal = SqliteJournal(tmp_path / "journal.db")
    with journal._reader() as connection:
        connection.execute("PRAGMA user_version = 99")
    journal.close()
    with pytest.raises(StoreError, match="99"):
        Router.from_config(settings(tmp_path))


def test_a_disk_that_fills_up_kills_nothing_and_recovers(disk: Path) -> None:
    """Feedback answers 503 while it is full; with room, it is taken again without a restart."""
    router = Router.from_config(settings(disk))
    with serving(router) as url, client(url) as http:
        first = http.post("/v1/chat/completions", json=chat(user="ann")).json()["fitrouter"]
        vote = {"decision_id": first["decision_id"], "kind": "rating", "value": 0.5, "user": "ann"}
        assert http.post("/v1/feedback", json=vote).status_code == 200
        fill(disk)
        codes = {http.post("/v1/feedback", json=vote).status_code for _ in range(100)}
        assert 503 in codes
        report = http.get("/readyz")
        assert (report.status_code, report.json()["status"]) == (200, "degraded"), "the only pod must not be taken away"
        assert "full" in report.json()["reasons"]["journal"]
        assert http.get("/readyz?strict").status_code == 503
        assert http.post("/v1/chat/completions", json=chat(user="ann")).status_code == 200
        (disk / "filler").unlink()
        wait_for(lambda: http.get("/readyz?strict").status_code == 200)
        assert http.post("/v1/feedback", json=vote).status_code == 200
        again = http.post("/v1/chat/completions", json=chat(user="ann"))
        assert again.headers["x-fitrouter-logged"] == "true"


METRICS = """
import os, sys
from fitrouter_dashboards.metrics import Metrics
from fitrouter.hooks import Trouble
metrics = Metrics()
metrics(Trouble("a", "b"))
with open(os.path.dirname(sys.argv[1]) + "/filler", "wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(512))
    except OSError:
        pass
for n in range(2000):
    metrics(Trouble(f"part {n}", "b"))
for _ in range(1000):
    metrics(Trouble("a", "b"))
    metrics.refused("e")
assert 'part="part 1999"' not in metrics.render().decode()
print("alive", 'trouble_total{part="a"} 1001.0' in metrics.render().decode())
"""


def test_counting_on_a_full_disk_kills_no_worker(disk: Path) -> None:
    """The files of the samples have their blocks: a full disk costs new series, and no process."""
    folder = disk / "metrics"
    folder.mkdir()
    run = subprocess.run(
        [sys.executable, "-c", METRICS, str(folder)],
        env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, (run.returncode, run.stderr)
    assert "alive True" in run.stdout


def test_metrics_are_elsewhere_if_the_data_folder_is_full(disk: Path) -> None:
    """The workers' samples are where there is room, and in memory where there is none at all."""
    fill(disk)
    folder = _serve._metrics_folder(disk)
    assert folder is not None
    assert disk not in folder.parents
    folder.rmdir()
    run = subprocess.run(
        [sys.executable, "-c", "from fitrouter_dashboards.metrics import Metrics; Metrics(); print('alive')"],
        env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(disk)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, "alive\n"), run.stderr
