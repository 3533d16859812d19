"""Journey: a person's taste, declared, voted, explained, exported and erased (docs/feedback.md, explain.md)."""

from __future__ import annotations

import json
import shutil
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.kits.fake_openai import FakeOpenAI, in_a_thread

from fitrouter.stores.journal import SqliteJournal

from .conftest import PATIENCE_S, Create, Journey

STYLES = {
    "llama-3.1-8b": "Vaccines train the immune system.",
    "qwen3-8b": "Here is an overview:\n" + "\n".join(f"- point {i} of the matter" for i in range(12)),
}


def ask(journey: Journey, model: str = "fitrouter/auto") -> dict[str, Any]:
    body = {"model": model, "user": "ann", "messages": [{"role": "user", "content": "How do vaccines work?"}]}
    reply = httpx.post(f"{journey.url}/v1/chat/completions", json=body, timeout=120)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def wait_until_folded(journey: Journey) -> None:
    """Return when the gateway's state contains all events that are in the journal now."""
    with closing(SqliteJournal(journey.folder / "fitrouter-data" / "journal.db")) as journal:
        head = journal.head()
    deadline = time.monotonic() + PATIENCE_S
    while httpx.get(f"{journey.url}/readyz", timeout=120).json()["seq"] < head:
        assert time.monotonic() < deadline, f"the state does not reach event {head}"
        time.sleep(0.05)


@pytest.mark.skipif(shutil.which("curl") is None, reason="install curl")
def test_a_taste_is_declared_voted_explained_exported_and_erased(environment: Create, tmp_path: Path) -> None:
    """Ann dislikes bullet points, rates what she gets, sees why, takes her profile along, and is erased."""
    models = FakeOpenAI(models=list(STYLES), answer=lambda body: STYLES[body["model"]])
    with in_a_thread(models), Journey(environment("gateway"), tmp_path) as journey:
        journey.run(f"fitrouter init --base-url {models.base_url}")
        journey.serve()
        declared = json.loads(journey.run(journey.block("feedback.md", "bash", 2)).stdout)
        assert declared["declared"]["structure"] < 0
        assert declared["declared"]["warmth"] == -0.5
        for number in range(8):
            answer = ask(journey, model=list(STYLES)[number % 2])
            liked = answer["model"] == "llama-3.1-8b"
            if number < 2:
                journey.run(f"fitrouter rate {answer['id']} {'up' if liked else 'down'}")
                continue
            vote = {"decision_id": answer["id"], "user": "ann", "kind": "thumb", "value": "up" if liked else "down"}
            assert httpx.post(f"{journey.url}/v1/feedback", json=vote, timeout=120).status_code == 200
        voted = journey.block("feedback.md", "bash").replace("…", ask(journey)["id"])
        assert json.loads(journey.run(voted).stdout)["object"] == "fitrouter.feedback"

        wait_until_folded(journey)  # an explanation counts the votes that its decision knew
        ask(journey)
        said = journey.run("fitrouter explain --last --user ann").stdout
        assert "was drawn with probability" in said
        assert "4 of 4 answers of qwen3-8b down" in " ".join(said.split())
        found = json.loads(journey.run("fitrouter decisions --user ann --json").stdout)
        assert len(found) == 10
        assert [one["votes"] for one in found[2:]] == [
            {"thumb": float(one["model"] != "qwen3-8b")} for one in found[2:]
        ]
        known = json.loads(journey.run("fitrouter users show --user ann --json").stdout)
        assert (known["requests"], known["votes"]) == (10, 9)
        assert known["declared"] == declared["declared"]
        rows = journey.python(ROWS.replace("SUBJECT", known["subject"])).stdout
        assert rows.split()[0] == "10"

        for line in journey.block("personal.md", "bash", under="Take it along").splitlines():
            if "work.json" in line:
                shutil.copy(tmp_path / "ann.json", tmp_path / "work.json")
            command = line.split("#")[0].replace("ada", "ann").replace("DECISION", answer["id"])
            journey.run(command + " --yes" if "approve" in command else command)  # nobody is asked here
        assert json.loads((tmp_path / "both.json").read_text())["priorities"] == {"evidence": 3.0}
        taken = json.loads((tmp_path / "ann.json").read_text())
        assert taken["declared"] == declared["declared"]
        assert taken["learnt"]["structure"]["mean"] < 0
        journey.run("fitrouter users export all.json --user ann")
        everything = json.loads((tmp_path / "all.json").read_text())
        assert (len(everything["answers"]), len(everything["feedback"])) == (10, 9)

        assert "erased ann" in journey.run("fitrouter users erase --user ann --yes").stdout
        assert "no users yet" in journey.run("fitrouter users").stdout
        assert journey.run("fitrouter users show --user ann", code=1).stderr.startswith(
            "fitrouter: user: there is no user 'ann'"
        )
        gone = journey.python(ROWS.replace("SUBJECT", known["subject"]).replace("10", "0")).stdout
        assert gone.split()[0] == "0"


ROWS = """
import time

from fitrouter.stores.warehouse import Warehouse

warehouse = Warehouse("fitrouter-data/fitrouter.duckdb")
for _ in range(2400):
    (count,) = warehouse.query("SELECT count(*) FROM answers WHERE who = 'SUBJECT'")[0]
    if count == 10:
        break
    time.sleep(0.05)
print(count)
"""
