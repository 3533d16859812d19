"""Laws of the identity store: one subject for each user, one key for each subject, nothing left after an erasure."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from tests.kits.identity_stores import Store, heard

from fitrouter.errors import StoreError
from fitrouter.stores.identities import Identities, SqliteIdentities, UnknownSubject
from fitrouter.stores.identities._rows import Offer, who_is

ROOT = Path(__file__).resolve().parents[2]
TEXT = st.text(st.characters(codec=None))  # lone surrogates and NUL too
SHARED = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def identities(store: Store) -> Iterator[Identities]:
    with closing(Identities(store.rows())) as found:
        yield found


@pytest.fixture
def other(store: Store, identities: Identities) -> Iterator[Identities]:
    """The same store in another process."""
    with closing(Identities(store.rows())) as found:
        yield found


def test_a_user_keeps_the_subject(identities: Identities, other: Identities, store: Store) -> None:
    """A user keeps the subject in this process, in others, and after a restart; it reveals nothing."""
    token = identities.subject("acme", "ann@example.org")
    assert identities.subject("acme", "ann@example.org") == token
    for each in (other, Identities(store.rows())):
        assert each.subject("acme", "ann@example.org") == token
        assert each.existing("acme", "ann@example.org") == token
        assert each.existing("acme", "bob@example.org") is None
        assert each.key(token) == identities.key(token)
        assert each.reveal(token) == ("acme", "ann@example.org")
        assert each.salt == identities.salt
    each.close()
    assert len(identities.key(token)) == 32
    assert "ann" not in token


def test_concurrent_first_calls_agree(identities: Identities, other: Identities) -> None:
    """Concurrent first calls for a user return the same subject."""
    found: list[str] = []
    start = threading.Barrier(8)

    def look(who: Identities) -> None:
        start.wait(300.0)
        found.extend(who.subject("acme", f"user-{n}") for n in range(20))

    threads = [threading.Thread(target=look, args=((identities, other)[n % 2],)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 160
    assert len(set(found)) == 20


@given(a=st.tuples(TEXT, st.none() | TEXT), b=st.tuples(TEXT, st.none() | TEXT))
@SHARED
def test_users_share_no_subject(identities: Identities, a: tuple[str, str | None], b: tuple[str, str | None]) -> None:
    """Distinct (tenant, user) never share a token or a key, whatever their texts, and each leads back to its own."""
    one, two = identities.subject(*a), identities.subject(*b)
    assert (one == two) == (a == b)
    assert (identities.key(one) == identities.key(two)) == (a == b)
    assert (identities.reveal(one), identities.reveal(two)) == (a, b)


def test_texts_that_join_alike(identities: Identities) -> None:
    """Tenant and user are not simply joined, and no user is not the user 'None' nor the empty one."""
    pairs = [("a", "bc"), ("ab", "c"), ("abc", ""), ("", "abc"), ("a", None), ("a", "None"), ("a", "null"), ("a", "")]
    assert len({identities.subject(*pair) for pair in pairs}) == len(pairs)


@given(text=TEXT, user=st.sampled_from(["ann", "bob", None]))
@SHARED
def test_round_trip(identities: Identities, text: str, user: str | None) -> None:
    """Any text, lone surrogates too, comes back as it was, and never looks the same twice."""
    token = None if user is None else identities.subject("acme", user)
    blob = identities.encrypt(token, text, "acme")
    assert identities.decrypt(blob) == text
    assert identities.encrypt(token, text, "acme") != blob


def test_anonymous_texts_lie_under_their_tenant(identities: Identities) -> None:
    """The text of an unknown user is encrypted under the anonymous subject of the tenant."""
    blob = identities.encrypt(None, "hello", "acme")
    identities.erase("other", None)
    assert identities.decrypt(blob) == "hello"
    assert len(identities.erase("acme", None)) == 1
    with pytest.raises(UnknownSubject):
        identities.decrypt(blob)


@given(data=st.data())
@SHARED
def test_changed_blobs_are_refused(identities: Identities, data: st.DataObject) -> None:
    """A blob that was changed or cut anywhere is refused; it never gives another text."""
    blob = bytearray(identities.encrypt(identities.subject("acme", "ann"), "secret"))
    if data.draw(st.booleans()):
        blob[data.draw(st.integers(0, len(blob) - 1))] ^= data.draw(st.integers(1, 255))
    else:
        del blob[data.draw(st.integers(0, len(blob) - 1)) :]
    with pytest.raises((ValueError, UnknownSubject)):
        identities.decrypt(bytes(blob))


def test_a_blob_without_a_text_is_told_as_truncated(identities: Identities) -> None:
    """Not as the text of somebody who was erased."""
    blob = identities.encrypt(identities.subject("acme", "ann"), "secret")
    for size in (0, 1, 5, 34, 46):
        with pytest.raises(ValueError, match="truncated, or of another version"):
            identities.decrypt(blob[:size])


def test_blob_of_another_subject(identities: Identities) -> None:
    """Text cannot be moved from one subject to another."""
    ann, bob = identities.subject("acme", "ann"), identities.subject("acme", "bob")
    blob = identities.encrypt(ann, "secret")
    with pytest.raises(ValueError, match="cannot be decrypted"):
        identities.decrypt(blob.replace(ann.encode(), bob.encode()))


def test_erase(identities: Identities, other: Identities, store: Store) -> None:
    """After an erasure no byte of user, subject or key is in any file, texts are unreadable, other users stay."""
    people = [identities.subject("acme", f"somebody-{n}@example.org") for n in range(300)]
    token, key = people[150], other.key(people[150])
    blob, kept = other.encrypt(token, "secret"), other.encrypt(people[151], "kept")
    assert identities.erase("acme", "somebody-150@example.org") == (token,)
    heard(identities, other)
    data = store.data()
    for trace in (b"somebody-150@", token.encode(), key):
        assert trace not in data
    assert b"somebody-151@" in data
    for one in (identities, other):
        with pytest.raises(UnknownSubject, match=token):
            one.decrypt(blob)
        with pytest.raises(UnknownSubject):
            one.key(token)
        assert one.reveal(token) is None
        assert one.decrypt(kept) == "kept"
    assert identities.erase("acme", "somebody-150@example.org") == ()
    assert other.subject("acme", "somebody-150@example.org") != token


def test_who_is_known_stands_for_their_subject_without_the_store(
    identities: Identities, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vote is taken while the store cannot be read; whoever else may be meant is looked up."""

    def broken(subject: str) -> str | None:
        raise StoreError("not now")

    subject = identities.subject("t", "ann")
    monkeypatch.setattr(identities.rows, "owner", broken)
    monkeypatch.setattr(identities.rows, "glance", lambda who: None)
    assert identities.known("t", "ann") == identities.mint("t", "ann") == subject
    assert identities.stands_for(subject, "t", "ann")
    with pytest.raises(StoreError):
        identities.stands_for("other", "t", "ann")


def test_what_waited_on_the_disk_is_written_once(identities: Identities, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two subjects that dead processes left for one user, one is the user's and the other stands for it."""
    erasures = identities.rows.erasures()
    left = [Offer(who_is("t", "ann"), erasures, kept=True) for _ in range(2)]
    made: list[tuple[list[str], bool]] = []
    make, gone = identities.rows.make, list[str]()

    def recorded(offers: Sequence[Offer], *, aliases: bool = False) -> None:
        made.append(([offer.subject for offer in offers], aliases))
        make(offers, aliases=aliases)

    monkeypatch.setattr(identities.rows, "abandoned", lambda: left)
    monkeypatch.setattr(identities.rows, "make", recorded)
    monkeypatch.setattr(identities.rows, "unspool", gone.extend)
    identities.hand_in()
    canonical = identities.existing("t", "ann")
    (other,) = [offer.subject for offer in left if offer.subject != canonical]
    assert made == [([offer.subject for offer in left], False), ([other], True)]
    assert identities.subjects("t", "ann") == (canonical, other)
    assert sorted(gone) == sorted(offer.subject for offer in left)
    gone.clear()
    identities.subject("t", "bob")
    assert not gone, "what never waited is not looked for"


def test_lists(identities: Identities) -> None:
    """People are listed by tenant, the newest first; subjects are found by their digests; unknown ones are told."""
    tokens = {(tenant, user): identities.subject(tenant, user) for tenant in "ab" for user in ("ann", "bob\0, null]")}
    identities.subject("a", None)
    assert identities.people(-1) == [*reversed(tokens)]
    assert identities.people(1) == [("b", "bob\0, null]")]
    assert identities.people(-1, "a") == [("a", "bob\0, null]"), ("a", "ann")]
    assert identities.subjects("a", "ann") == (tokens["a", "ann"],)
    assert identities.erased([hashlib.sha256(tokens["b", "ann"].encode()).hexdigest()]) == {("b", "ann")}
    assert identities.unknown(["x", tokens["a", "ann"]]) == ["x"]
    assert identities.reveal("x\0") is None


def test_a_user_whose_name_is_long(identities: Identities, other: Identities) -> None:
    """A name may be longer than a key of an index."""
    name = "".join(chr(33 + n * n % 5000) for n in range(4000))
    token = identities.subject("acme", name)
    assert other.reveal(other.subject("acme", name)) == ("acme", name)
    assert identities.erase("acme", name) == (token,)


def test_erase_waits_for_readers(tmp_path: Path) -> None:
    """A reader in a transaction keeps old pages: erase raises, and succeeds when the reader has finished."""
    identities = SqliteIdentities(tmp_path / "identities.db", patience_s=0.2)
    token = identities.subject("acme", "ann")
    reader = sqlite3.connect(tmp_path / "identities.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM subjects").fetchone()
    with pytest.raises(StoreError, match="erase again"):
        identities.erase("acme", "ann")
    assert identities.reveal(token) is None
    reader.execute("COMMIT")
    reader.close()
    assert identities.erase("acme", "ann") == ()
    assert token.encode() not in b"".join(file.read_bytes() for file in tmp_path.iterdir())
    identities.close()


def test_only_the_owner_reads_it(tmp_path: Path) -> None:
    """The file and its log can be read by their owner only."""
    with closing(SqliteIdentities(tmp_path / "identities.db")) as identities:
        identities.subject("acme", "ann")
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert modes["identities.db"] == 0o600
    assert set(modes.values()) == {0o600}


def test_damaged_file_is_set_aside(tmp_path: Path) -> None:
    """A corrupt file is renamed, never deleted, and all users are new."""
    path = tmp_path / "identities.db"
    path.write_bytes(b"not a database " * 100)
    identities = SqliteIdentities(path, clock=lambda: 77.0)
    assert identities.rows.quarantined == tmp_path / "identities.db.corrupt-77"
    assert (tmp_path / "identities.db.corrupt-77").read_bytes() == b"not a database " * 100
    assert identities.reveal(identities.subject("acme", "ann")) == ("acme", "ann")
    identities.close()


def test_processes_that_make_the_file_together_wait_for_each_other(tmp_path: Path) -> None:
    """Several programs can start at the same moment; none fails because the file is locked."""
    code = (
        "import sys; from fitrouter.stores.identities import SqliteIdentities; "
        "print(SqliteIdentities(sys.argv[1]).subject('acme', 'ann'))"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "router")}
    for attempt in range(3):
        path = tmp_path / f"{attempt}.db"
        several = [
            subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE, text=True, env=environment)
            for _ in range(4)
        ]
        said = {process.communicate(timeout=300)[0] for process in several}
        assert [process.returncode for process in several] == [0] * 4
        assert len(said) == 1


def test_closed(identities: Identities, tmp_path: Path) -> None:
    """A store that cannot be used gives StoreError, whether it was closed or never opened."""
    identities.close()
    with pytest.raises(StoreError, match="identities"):
        identities.subject("acme", "ann")
    with pytest.raises(StoreError, match="cannot be opened"):
        SqliteIdentities(tmp_path)


def test_cryptography_is_lazy() -> None:
    """Importing the module imports no cryptography."""
    code = "import sys, fitrouter.stores.identities; sys.exit('cryptography' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": str(ROOT / "router")})
