"""The main job end to end, in processes: criterion 2 of the first issue, in small (`make bench-acceptance`: whole)."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.acceptance import run
from benchmarks.gateway_process import RESPONSES


@pytest.mark.skipif(not RESPONSES.is_file(), reason="the recorded responses are not here")
@pytest.mark.parametrize("workers", [1, 2])
def test_the_openai_client_against_eleven_recorded_models(tmp_path: Path, workers: int) -> None:
    """Answers are the recorded texts of the models they name; the warehouse has each decision, execution, score once.

    Sums, floors and replayed draws hold; decisions explain themselves; at rest all workers are at one position with one
    digest; one holds each lease, and when the scorer's holder is killed another has it within 5 seconds.
    """
    result = run(tmp_path, requests=200, users=20, workers=workers)
    assert result["passed"], result
