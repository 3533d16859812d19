"""Files that are unlinked or replaced while a gateway has them open: nothing is acknowledged that would be lost."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.kits.gateway import chat, client, make_router, serving, wait_for
from tests.stores.test_journal import decision, done

from fitrouter.errors import StoreError
from fitrouter.hooks import Notice, Trouble
from fitrouter.serving.sweeper import Workers
from fitrouter.stores.identities import SqliteIdentities
from fitrouter.stores.journal import SqliteJournal


def unlink(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    shutil.copy(path, path.with_name("copy"))
    path.with_name("copy").rename(path)


@pytest.mark.parametrize("change", [unlink, replace])
@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
def test_no_entry_is_acknowledged_into_a_file_that_is_gone(
    tmp_path: Path, suffix: str, change: Callable[[Path], None]
) -> None:
    """The journal, its log or its index: whichever is gone, `fault` names it and `append` fails from then on."""
    journal = SqliteJournal(tmp_path / "j.db")
    done(journal.append(decision(1)))
    assert journal.fault() == ""
    change(tmp_path / f"j.db{suffix}")
    assert f"j.db{suffix}' was" in journal.fault()
    with pytest.raises(StoreError, match=r"deleted|replaced"):
        done(journal.append(decision(2)))
    journal.close()
    assert journal.fault() == ""


def test_a_closed_connection_of_another_process_is_no_fault(tmp_path: Path) -> None:
    """Checkpoints, and other connections that come and go, leave the files where they are."""
    journal = SqliteJournal(tmp_path / "j.db")
    for n in range(5):
        done(journal.append(decision(n)))
        other = SqliteJournal(tmp_path / "j.db")
        done(other.append(decision(100 + n)))
        other.close()
        writer = sqlite3.connect(tmp_path / "j.db")
        writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        writer.close()
        assert journal.fault() == ""
    done(journal.append(decision(200)))
    journal.close()


def test_the_lease_of_a_deleted_folder_is_never_the_new_ones(tmp_path: Path) -> None:
    """A gateway whose folder was deleted does not keep the next gateway in the same place from scoring."""
    old = SqliteJournal(tmp_path / "data" / "j.db")
    lease = old.lease("scorer")
    assert lease.held()
    shutil.rmtree(tmp_path / "data")
    new = SqliteJournal(tmp_path / "data" / "j.db")
    assert not lease.held()
    assert new.lease("scorer").held()
    assert not lease.held()
    old.close()
    new.close()


def test_a_process_whose_journal_is_gone_gets_no_number(tmp_path: Path) -> None:
    """The search for a free number of a worker process ends with an error, and takes no memory for ever."""
    journal = SqliteJournal(tmp_path / "data" / "j.db")
    first, second = Workers(journal), Workers(journal)
    first.join()
    second.join()
    assert (first.own, second.own) == (0, 1)
    shutil.rmtree(tmp_path / "data")
    with pytest.raises(StoreError, match="deleted or replaced"):
        second.join()
    journal.close()


def test_the_locks_of_open_identities_stay(tmp_path: Path) -> None:
    """Though their index is mapped, and another store of the same file is closed: no other process truncates it."""
    path = tmp_path / "identities.db"
    first, second = SqliteIdentities(path), SqliteIdentities(path)
    first.subject("t", "ann")
    takes = f"import fcntl; fcntl.lockf(open({str(path) + '-shm'!r}, 'rb+'), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 128)"
    for store in (first, second):
        said = subprocess.run([sys.executable, "-c", takes], capture_output=True, text=True, check=False).stderr
        assert "BlockingIOError" in said, "the lock that SQLite keeps while a file is open (UNIX_SHM_DMS)"
        store.close()
    assert not path.with_name("identities.db-shm").exists()


def test_a_failing_disk_is_a_fault_until_it_works_again(tmp_path: Path) -> None:
    """The writer tries by itself, since a gateway that is not ready may get no requests."""
    failing: list[bool] = []

    def fault(step: str) -> None:
        if failing and step == "commit":
            raise OSError(28, "No space left on device")

    journal = SqliteJournal(tmp_path / "j.db", fault=fault)
    done(journal.append(decision(1)))
    failing.append(True)
    with pytest.raises(StoreError, match="No space"):
        done(journal.append(decision(2)))
    assert "No space" in journal.fault()
    failing.clear()
    wait_for(lambda: journal.fault() == "")
    done(journal.append(decision(2)))
    assert journal.head() == 2
    journal.close()


@pytest.mark.parametrize("name", ["journal.db", "journal.db-wal", "identities.db"])
def test_readyz_turns_and_feedback_is_refused(tmp_path: Path, name: str) -> None:
    """Requests are still answered, unlogged; /readyz names the file, a hook is told, and feedback answers 503."""
    seen: list[Notice] = []
    journal = SqliteJournal(tmp_path / "journal.db")
    router = make_router(tmp_path, journal=journal, hook=seen.append)
    part = name.partition(".")[0].replace("identities", "identities")
    with serving(router) as url, client(url) as http:
        assert http.get("/readyz").status_code == 200
        asked: dict[str, Any] = http.post("/v1/chat/completions", json=chat(user="ann")).json()["fitrouter"]
        (tmp_path / name).unlink()
        report = http.get("/readyz")
        assert (report.status_code, report.json()["status"]) == (200, "degraded"), "no other process would do better"
        assert http.get("/readyz?strict").status_code == 503
        assert name in report.json()["reasons"][part]
        wait_for(lambda: Trouble(part, "StoreError") in seen)
        vote = {"decision_id": asked["decision_id"], "kind": "thumb", "value": "up", "user": "ann"}
        if part == "journal":
            reply = http.post("/v1/feedback", json=vote)
            assert reply.status_code == 503
        reply = http.post("/v1/chat/completions", json=chat(user="bob"))
        assert reply.status_code == 200


def test_no_subject_is_written_into_a_file_that_is_gone(tmp_path: Path) -> None:
    """A new user of an unlinked identity store has no subject; a known one keeps theirs."""
    identities = SqliteIdentities(tmp_path / "identities.db")
    ann = identities.subject("t", "ann")
    (tmp_path / "identities.db").unlink()
    assert "deleted" in identities.fault()
    with pytest.raises(StoreError, match="deleted"):
        identities.subject("t", "bob")
    assert identities.subject("t", "ann") == ann
    identities.close()
