"""The main job end to end, in processes: criterion 2 of the first issue, in small (`make bench-acceptance`: whole)."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from benchmarks.gateway.acceptance import run
from benchmarks.gateway.process import RESPONSES, Gateway

from fitrouter_integrations.commands.setup.init import render


@pytest.mark.skipif(not RESPONSES.is_file(), reason="the recorded responses are not here")
def test_the_openai_client_with_eleven_recorded_models(tmp_path: Path) -> None:
    """Answers are the recorded texts of the models they name; the warehouse has each decision, execution, score once.

    Sums, floors and replayed draws hold; decisions explain themselves; at rest all workers are at one position with one
    digest; one holds each lease, and when the scorer's holder is killed another has it.
    """
    result = run(tmp_path, requests=200, users=20, workers=2)
    assert result["passed"], result


def test_metrics_cover_all_workers(tmp_path: Path) -> None:
    """Each scrape counts the requests of every worker; the metrics folder of a killed parent is removed."""
    file = tmp_path / "fitrouter.yaml"
    file.write_text(render(()))
    left = tmp_path / "fitrouter-data" / "metrics" / "4194305"  # no process id is that large
    left.mkdir(parents=True)
    with Gateway(file, workers=2) as gateway:
        assert not left.exists()
        for i in range(6):
            body = {"model": "brief", "messages": [{"role": "user", "content": f"Say {i}."}]}
            assert httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=300.0).status_code == 200
        for _ in range(8):
            text = httpx.get(f"{gateway.url}/metrics", timeout=300.0).text
            assert 'fitrouter_requests_total{model="brief",role="none",status="ok"} 6.0' in text
        assert gateway.stop() == 0
    assert list(left.parent.iterdir()) == []
