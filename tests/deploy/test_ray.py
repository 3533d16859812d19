"""Ray Serve itself: kills and a rolling restart under load, in the benchmark's own words."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from benchmarks.gateway.ray import measure, whole

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is missing; `make ray` runs this")


def test_kills_and_a_restart_lose_no_request() -> None:
    """Each kind of replica is killed under load, then all are restarted.

    No request stays without an answer; the journal has each answered one once, with decision, execution and score; and
    the lag goes down again after every blow, for which the benchmark waits.
    """
    with tempfile.TemporaryDirectory(prefix="fr-") as folder:
        found = measure(Path(folder), clients=4, pause_s=0.0)
    assert found["failed"] == 0, found
    assert whole(found), found
