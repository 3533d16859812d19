"""Where the public sets are, and what the tests of several modules make of them."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[3] / "shared/data"


def folder(name: str) -> Path:
    """The folder of a public set; the test is skipped where it is missing."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"the public set {name!r} is not in ../shared/data")
    return path
