"""Rows that do not fit into memory: read back as written, and gone with the process."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fitrouter.stores.spill import Spill


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.none() | st.binary(max_size=20)), max_size=40))
def test_reads_what_was_written_last(writes: list[tuple[str, bytes | None]]) -> None:
    """For any writes and removals."""
    spill, kept = Spill(), dict[str, bytes]()
    for key, value in writes:
        if value is None:
            spill.write([], gone=[key])
            kept.pop(key, None)
        else:
            spill.write([(key, value)])
            kept[key] = value
    assert list(spill.keys()) == sorted(kept)
    assert {key: spill.read(key) for key in "abcdefgh"} == {key: kept.get(key) for key in "abcdefgh"}


def test_has_no_file(tmp_path: Path) -> None:
    """The folder stays empty, so that nothing is left after a crash; many rows are read in order."""
    spill = Spill(tmp_path / "new")
    spill.write((f"{k:05}", b"x" * 100) for k in range(10_000))
    assert list(spill.keys()) == [f"{k:05}" for k in range(10_000)]
    assert not list((tmp_path / "new").iterdir())


def test_a_failing_write_leaves_the_rows_before() -> None:
    """The group of rows that fails is not written; the spill stays usable."""
    spill = Spill()
    spill.write([("a", b"1")])
    with pytest.raises(Exception, match=r"type|bind|support"):
        spill.write([("a", b"2"), ("b", object())])  # type: ignore[list-item]
    assert spill.read("a") == b"1"
    spill.write([("b", b"3")])
    assert list(spill.keys()) == ["a", "b"]
