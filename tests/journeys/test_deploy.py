"""The page on deployment, followed to its end, with the journal of an earlier version in the data folder."""

from __future__ import annotations

import json
import lzma
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.kits.fake_openai import FakeOpenAI, in_a_thread
from tests.kits.pages import ROOT, blocks

from .conftest import PAGES, Create, Journey, _free_port

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("nginx", "openssl", "curl"))), reason="nginx, openssl or curl is not installed"
)
KEY = "sk-the-key-of-your-provider"


@contextmanager
def site(create: Create, folder: Path) -> Iterator[Journey]:
    """An empty folder, a model server, and free ports; whatever still runs at the end is stopped."""
    with in_a_thread(FakeOpenAI(models=("small", "large"))) as models:
        places = {"http://127.0.0.1:8000/v1": models.base_url, "8443": str(_free_port())}
        if os.getuid() == 0:  # nginx would give its workers to another user, who cannot enter the folder
            places["pid nginx/pid;"] = "user root; pid nginx/pid;"
        with Journey(create("gateway", "otel"), folder, {"MAIN_API_KEY": KEY}, places) as journey:
            try:
                yield journey
            finally:
                for file in ("gateway.pid", "nginx/pid"):
                    with suppress(OSError, ValueError):
                        os.kill(int((folder / file).read_text()), signal.SIGTERM)


def lines(text: str) -> str:
    """A block without the lines that make the environment, which exists already."""
    return "\n".join(
        line for line in text.splitlines() if not line.startswith(("python -m venv", "pip install", "export "))
    )


def test_the_page_as_it_stands(environment: Create, tmp_path: Path) -> None:
    """Install, keys, TLS, answers, refusals, backup, restore, upgrade and erasure; no key is in any log.

    An old journal is there from the beginning: its answers are still listed at the end.
    """
    with site(environment, tmp_path) as journey:
        (tmp_path / "fitrouter-data").mkdir(mode=0o700)
        with lzma.open(ROOT / "tests" / "data" / "journal_0.1.db.xz") as packed:
            (tmp_path / "fitrouter-data" / "journal.db").write_bytes(packed.read())
        printed = [journey.run(lines(block.text)) for block in blocks(PAGES / "deploy.md", "bash")]
        told = "".join(each.stdout + each.stderr for each in printed)
        assert "faults: 0" in told
        assert "faults: 1" not in told
        assert "terse" in told
        answer = json.loads((tmp_path / "answer.json").read_text())
        assert answer["choices"][0]["message"]["content"].endswith("answers: Why is the sky blue?")
        assert told.count("all sound") == 3, "before a gateway and beside two"
        assert sum("sound events" in each.stdout for each in printed) == 1
        secrets = [KEY, *((tmp_path / "keys" / name).read_text().strip() for name in ("shop", "helpdesk", "ops"))]
        logged = (tmp_path / "gateway.log").read_text()
        assert not any(secret in text for secret in secrets for text in (told, logged))
        assert '"path":"/v1/feedback"' in logged
        assert not (tmp_path / "lost").exists()
        known = (tmp_path / "fitrouter-data" / "identities.db.copy").read_text()
        assert r"[\"shop\", \"ann\"]" not in known
        assert r"[\"helpdesk\", \"ann\"]" in known, "another tenant's"
