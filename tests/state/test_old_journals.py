"""Journals of earlier versions load: a journal recorded before the modules moved into rooms, and its folded state.

`tests/data/journal_0.1.db.xz` was recorded by commit 6843095 with simulated models: users, roles, tenants, kinds of
feedback, a declared profile, a policy change, role texts, and a snapshot. `journal_0.1.json` holds what that commit
folded it to, as far as later changes of the model are meant to keep it.
"""

from __future__ import annotations

import json
import lzma
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fitrouter import Request, Router, parse_config
from fitrouter.state.follower import catch_up
from fitrouter.state.learner import Learner
from fitrouter.stores.journal import SqliteJournal
from fitrouter.types import Decision

DATA = Path(__file__).parents[1] / "data"
EXPECTED: dict[str, Any] = json.loads((DATA / "journal_0.1.json").read_text(encoding="utf-8"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with lzma.open(DATA / "journal_0.1.db.xz") as packed:
        (tmp_path / "journal.db").write_bytes(packed.read())
    return tmp_path


def fold(folder: Path) -> tuple[Learner, list[Any], int]:
    """A learner of all tenants, folded from zero; the events; the position of the stored snapshot.

    The old version folded all tenants into one state. The tenants' own states hold the same people and labels.
    """
    config = parse_config(
        {
            "data": str(folder),
            "providers": {"local": {"kind": "simulated", "options": {"terse": {"length": 2}}}},
            "models": [{"name": "terse", "provider": "local"}],
        }
    )
    with Router.offline(config) as router:
        learner = router._learner.blank()
        catch_up(learner, router._journal, router._journal.head())
        assert learner.digest() == router._learner.digest(), "an old snapshot changes nothing"
        rows = router._journal.tail(0, 10**6)
        pooled = learner.part(None)
        catch_up(pooled, router._journal, router._journal.head())
        assert sum(part.fit.labels for part in learner.parts()) == pooled.fit.labels
        assert sorted(user for part in learner.parts() for user in part.users) == sorted(pooled.users)
        assert set(learner.dimensions()) == set(pooled.dimensions())
        assert learner.projections.policy_settings.settings == pooled.projections.policy_settings.settings
        return pooled, [row.event for row in rows], router._journal.snapshot().seq


def test_an_old_journal_folds_to_the_same_state(folder: Path) -> None:
    """Events, counts, users, roles, settings and response profiles are those that the old version folded."""
    learner, events, snapshot = fold(folder)
    fit, arms = learner.fit, learner.fit.arms
    assert snapshot == EXPECTED["snapshot"]
    assert learner.seq == EXPECTED["events"]
    assert Counter(type(event).__name__ for event in events) == EXPECTED["kinds"]
    assert fit.labels == EXPECTED["labels"]
    assert sorted(fit.tastes.users) == EXPECTED["users"]
    assert set(EXPECTED["dimensions"]) == set(learner.dimensions())
    assert learner.projections.arm_counts.counts == EXPECTED["calls"]
    assert learner.projections.arm_counts.labels == EXPECTED["judged"]
    assert learner.projections.policy_settings.settings == EXPECTED["settings"]
    for name, count in EXPECTED["responses"].items():
        row = arms.names[name]
        assert arms.responses[row] == count
        assert (arms.profile[row] ** 2).sum() == pytest.approx(EXPECTED["profile_norm"][name], rel=1e-9)


async def test_a_router_continues_an_old_journal(folder: Path) -> None:
    """A router over the old journal starts, explains its decisions and answers requests."""
    journal = SqliteJournal(folder / "journal.db")
    decision = next(row.event for row in journal.tail(0, 10**6) if isinstance(row.event, Decision))
    journal.close()
    models = sorted({name.split("@")[0] for name in EXPECTED["calls"]})
    config = parse_config(
        {
            "data": str(folder),
            "providers": {"local": {"kind": "simulated", "options": {name: {"length": 2} for name in models}}},
            "models": [{"name": name, "provider": "local"} for name in models],
        }
    )
    async with Router.from_config(config) as router:
        explanation = await router.explain(decision.id, tenant=None)
        assert explanation.chosen == decision.chosen
        answer = await router.complete(Request(messages=({"role": "user", "content": "Hello"},)))
        assert answer.served_by in models
