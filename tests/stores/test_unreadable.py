"""What stores cannot read or lock is an error with the reason, or a note of an incident, never "nothing"."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fitrouter.errors import StoreError
from fitrouter.stores import audits
from fitrouter.stores.identities import SqliteIdentities
from fitrouter.stores.journal import UnloggedJournal
from fitrouter.stores.journal._lease import FileLease
from fitrouter.stores.signing import signed, signing_key


def test_a_lease_that_cannot_be_taken_is_not_anothers(tmp_path: Path) -> None:
    """Held by another it is not held; without its folder that is an error; one that was held is lost first."""
    mine, theirs = (FileLease(tmp_path / "d" / "scorer.lease") for _ in range(2))
    with pytest.raises(StoreError, match="cannot be taken"):
        mine.held()
    (tmp_path / "d").mkdir()
    assert (mine.held(), theirs.held()) == (True, False)
    shutil.rmtree(tmp_path / "d")
    assert not mine.held()
    with pytest.raises(StoreError, match="cannot be taken"):
        mine.held()


def test_an_audit_that_cannot_be_read_is_not_missing(tmp_path: Path) -> None:
    """Without an audit a role has not passed; a damaged, changed or unreadable one is an error that says what to do."""
    file = audits.audit_file(tmp_path, "nurse")
    assert not audits.has_passed(tmp_path, "nurse", "r")
    file.parent.mkdir()
    body = {"object": audits.OBJECT, "role": "nurse", "registry": "r", "passed": True}
    document = signed(body, signing_key(tmp_path / audits.KEY))
    file.write_text(json.dumps(document))
    assert audits.has_passed(tmp_path, "nurse", "r")
    assert not audits.has_passed(tmp_path, "nurse", "another registry")
    for damage in ("{", "[]", json.dumps(document | {"registry": "x"}), json.dumps(body)):
        file.write_text(damage)
        with pytest.raises(StoreError, match=r"not personalised.*fitrouter audits role"):
            audits.has_passed(tmp_path, "nurse", "r")
    file.unlink()
    file.mkdir()
    with pytest.raises(StoreError, match="cannot be read"):
        audits.has_passed(tmp_path, "nurse", "r")


def test_a_copy_that_cannot_be_written_is_an_incident(tmp_path: Path) -> None:
    """Users are met although the copy of their file cannot be extended; the incident says so."""
    store = SqliteIdentities(tmp_path / "identities.db")
    store.subject("one", "ann")
    assert not store.incident
    (tmp_path / "identities.db.copy").unlink()
    (tmp_path / "identities.db.copy").mkdir()
    assert store.subject("one", "bob")
    assert "copy" in store.incident
    assert "not complete" in store.incident
    store.close()


def test_a_journal_that_cannot_be_copied_is_not_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk a journal with a write-ahead log is read from a copy; without room for it, reading fails."""

    def full(_path: Path) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "journal.db"
    empty = UnloggedJournal(path, "full")
    assert empty.head() == 0
    empty.close()
    path.write_bytes(b"")
    path.with_name("journal.db-wal").write_bytes(b"x")
    monkeypatch.setattr("fitrouter.stores.journal._unlogged.copied_aside", full)
    journal = UnloggedJournal(path, "full")
    with pytest.raises(StoreError, match="No space left"):
        journal.head()
    journal.close()
