"""Kill -9 of the gateway under load: criterion 5 of the first issue, four kills (`make bench-crash` does fifty)."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.gateway.crash import run
from benchmarks.gateway.process import RESPONSES, Gateway, alive, kill_9, wait_for

from fitrouter_integrations.commands.setup.init import render


@pytest.mark.skipif(not RESPONSES.is_file(), reason="the recorded responses are not here")
@pytest.mark.parametrize(("workers", "kills"), [(1, 1), (2, 3)])
def test_nothing_acknowledged_is_lost_or_doubled_by_kill_9(tmp_path: Path, workers: int, kills: int) -> None:
    """Acknowledged events are in the journal exactly once, and the state is the fold of the journal, bit for bit."""
    result = run(tmp_path, kills=kills, workers=workers)  # of two workers, each first and third kill takes one
    assert result["decisions"] >= kills
    assert result["passed"], repr(result)


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    """After kill -9 of the parent no worker and no services process keeps the port, the journal or a lease."""
    file = tmp_path / "fitrouter.yaml"
    file.write_text(render(()))
    with Gateway(file, workers=2) as gateway:
        wait_for(lambda: gateway.reports() and len(gateway.pids) == 3)
        children = set(gateway.pids)
        kill_9(gateway.parent)
        wait_for(lambda: not any(alive(pid) for pid in children))
