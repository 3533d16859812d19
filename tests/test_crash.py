"""Kill -9 of the gateway under load: criterion 5 of the first issue, five kills (`make bench-crash` does fifty)."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.crash import run
from benchmarks.gateway_process import RESPONSES


@pytest.mark.skipif(not RESPONSES.is_file(), reason="the recorded responses are not here")
@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_acknowledged_is_lost_or_doubled_by_kill_9(tmp_path: Path, workers: int) -> None:
    """What was acknowledged is in the journal once, and the state is the fold of the journal, bit for bit."""
    result = run(tmp_path, kills=5, workers=workers)
    assert result["decisions"] >= 5
    assert result["passed"], result
