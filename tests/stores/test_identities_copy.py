"""The copy of the identity store: what is restored from it, and that it holds nobody who was erased."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.kits.gateway import chat, client, make_router, serving, wait_for

from fitrouter.errors import StoreError
from fitrouter.hooks import Notice, Trouble
from fitrouter.stores.identities import SqliteIdentities, UnknownSubject


def people(path: Path, n: int = 50) -> dict[str, tuple[str, bytes]]:
    """User → subject and key, written to a new store."""
    identities = SqliteIdentities(path)
    found = {}
    for name in (f"user {i}" for i in range(n)):
        subject = identities.subject("t", name)
        found[name] = subject, identities.key(subject)
    identities.close()
    return found


def damaged(path: Path, damage: str) -> None:
    data = bytearray(path.read_bytes())
    if damage == "garbage":
        data = bytearray(b"not a database" * 999)
    else:
        data[4096:8192] = b"\xff" * 4096
    path.write_bytes(data)


@pytest.mark.parametrize("damage", ["garbage", "page"])
def test_a_damaged_store_is_restored(tmp_path: Path, damage: str) -> None:
    """Everybody keeps their subject and key, and the next start says nothing any more."""
    path = tmp_path / "identities.db"
    expected = people(path)
    before = SqliteIdentities(path)
    before.close()
    damaged(path, damage)
    for incident in (True, False):
        identities = SqliteIdentities(path, clock=lambda: 12.0)
        for name, (subject, key) in expected.items():
            assert identities.subject("t", name) == subject
            assert identities.key(subject) == key
        assert identities.salt == before.salt
        assert bool(identities.incident) is incident
        identities.close()
    assert (tmp_path / "identities.db.corrupt-12").exists()


def test_a_store_of_an_earlier_version_gets_a_copy(tmp_path: Path) -> None:
    """So does one whose copy lacks lines, has a damaged one, or somebody who is not in the store."""
    path = tmp_path / "identities.db"
    expected = people(path, 3)
    copy = tmp_path / "identities.db.copy"
    whole = copy.read_bytes()
    for text in (None, b"", whole[:-20], b"x" + whole[1:], whole + whole.splitlines(keepends=True)[0][:9] + b"[1]\n"):
        copy.unlink() if text is None else copy.write_bytes(text)
        SqliteIdentities(path).close()
        damaged(path, "garbage")
        identities = SqliteIdentities(path)
        assert {name: identities.subject("t", name) for name in expected} == {n: s for n, (s, _) in expected.items()}
        identities.close()
        assert copy.stat().st_mode & 0o777 == 0o600


def test_an_erased_user_is_in_no_file(tmp_path: Path) -> None:
    """Neither the store nor its copy has their name, subject or key; nobody brings them back."""
    path = tmp_path / "identities.db"
    expected = people(path, 20)
    identities = SqliteIdentities(path)
    identities.erase("t", "user 7")
    identities.close()
    subject, key = expected["user 7"]
    for file in tmp_path.iterdir():
        data = file.read_bytes()
        assert not any(text in data for text in (b'user 7"', subject.encode(), key, key.hex().encode())), file
    damaged(path, "garbage")
    identities = SqliteIdentities(path)
    assert identities.subject("t", "user 7") != subject
    assert identities.subject("t", "user 8") == expected["user 8"][0]
    with pytest.raises(UnknownSubject):
        identities.key(subject)
    identities.close()


def test_an_erasure_whose_copy_cannot_be_written_leaves_no_copy(tmp_path: Path) -> None:
    """Rather no precaution than an erased user in it; the next start makes one."""
    path = tmp_path / "identities.db"
    people(path, 5)
    identities = SqliteIdentities(path)
    with patch("fitrouter.stores.identities._lines._write", side_effect=OSError(28, "No space left on device")):
        identities.erase("t", "user 1")
    assert not (tmp_path / "identities.db.copy").exists()
    identities.close()
    SqliteIdentities(path).close()
    assert (tmp_path / "identities.db.copy").exists()


def test_without_a_copy_the_loss_is_reported(tmp_path: Path) -> None:
    """A damaged store is never silent: the hook, and /readyz with what to do."""
    path = tmp_path / "identities.db"
    people(path, 5)
    (tmp_path / "identities.db.copy").unlink()
    damaged(path, "garbage")
    seen: list[Notice] = []
    with serving(make_router(tmp_path, hook=seen.append)) as url, client(url) as http:
        wait_for(lambda: Trouble("identities", "StoreError") in seen)
        report = http.get("/readyz")
        assert report.status_code == 200
        assert "all users are new. Restore a backup" in report.json()["incidents"]["identities"]
        assert http.post("/v1/chat/completions", json=chat(user="ann")).status_code == 200


def test_damage_while_it_is_open_is_a_fault(tmp_path: Path) -> None:
    """Pages that go bad under a running gateway turn /readyz; a restart restores them."""
    path = tmp_path / "identities.db"
    people(path, 1)
    writer = sqlite3.connect(path)
    rows = [(f"{n:032x}", json.dumps(["t", f"user {n}"]), bytes(32)) for n in range(1, 40_000)]  # more than is cached
    writer.executemany("INSERT INTO subjects (subject, who, key) VALUES (?, ?, ?)", rows)
    writer.commit()
    writer.close()
    identities = SqliteIdentities(path)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    raised = 0
    for n in range(1, 40_000, 400):
        try:
            identities.subject("t", f"user {n}")
        except StoreError:
            raised += 1
    assert raised
    assert "restart the gateway" in identities.fault()
    identities.close()
    identities = SqliteIdentities(path)
    assert identities.subject("t", "user 3") == f"{3:032x}"
    identities.close()
