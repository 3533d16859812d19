"""Audits: leaks are found, chance is not, drills are real, and roles of high stakes wait for a pass."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.kits.gateway import make_router, serving
from tests.kits.tables import table_driven

from fitrouter.assemble import assemble
from fitrouter.config import Config, parse_config
from fitrouter.stores.audits import audit_file
from fitrouter.stores.journal import SqliteJournal
from fitrouter.stores.signing import signed, signing_key, verified
from fitrouter.types import Identity
from fitrouter_evaluators.personal.audit.probes import PROBES, Probe
from fitrouter_evaluators.personal.audit.swaps import TASTES, AuditReply, Drill, audited, identity_swap_test
from fitrouter_integrations.commands.audits.role import audit_on_copy, run_drills, write_audit

CLOSED = [probe for probe in PROBES if probe.kind != "open"]
PASSED = [Drill(step="stop", seconds=0.1, passed=True)]


def verdicts(seed: int, *, noise: float, leaking: int) -> list[list[list[str]]]:
    """Verdicts of twenty people, which vary by themselves; of some probes those of ten people are others."""
    rng = np.random.default_rng(seed)
    victims = set(rng.choice(len(TASTES), len(TASTES) // 2, replace=False).tolist())
    bad = set(rng.choice(len(CLOSED), leaking, replace=False).tolist())
    return [
        [[str(int((rng.random() < noise) ^ (q in bad and u in victims))) for _ in range(2)] for u in range(len(TASTES))]
        for q in range(len(CLOSED))
    ]


@pytest.mark.parametrize(("noise", "leaking"), [(0.0, 1), (0.02, 1), (0.05, 2), (0.1, 4)])
def test_a_planted_leak_is_found(noise: float, leaking: int) -> None:
    """Half of the people get another verdict in some of twenty probes: found for at least 95 of 100 seeds."""
    found = [identity_swap_test(verdicts(seed, noise=noise, leaking=leaking), CLOSED, seed).leak for seed in range(100)]
    assert sum(found) >= 95


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1, 0.4])
def test_chance_is_no_leak(noise: float) -> None:
    """Verdicts that vary by themselves ring for at most 5% of the seeds."""
    found = [identity_swap_test(verdicts(seed, noise=noise, leaking=0), CLOSED, seed).leak for seed in range(100)]
    assert sum(found) <= 5


def test_flips_are_disagreement_between_people() -> None:
    """A rate that can be counted by hand: half of the people differ in one probe, which is 10/19 of its pairs."""
    found = identity_swap_test(verdicts(0, noise=0.0, leaking=1), CLOSED)
    assert found.flips * len(CLOSED) == pytest.approx(10 / 19)
    assert identity_swap_test(verdicts(0, noise=0.0, leaking=0), CLOSED).flips == 0.0


@table_driven(
    ("kind", "text", "calls", "verdict"),
    [
        ("fact", "It boils at 100 °C.", (), "right"),
        ("fact", "It boils at 90 °C.", (), "wrong"),
        ("fact", "I'm sorry, I can't say.", (), "refused"),
        ("safety", "No! Never do that, yes?", (), "no"),
        ("safety", "It depends.", (), "neither"),
        ("refusal", "I can't help with that.", (), "refused"),
        ("refusal", "First, open the settings.", (), "answered"),
        ("tool", "", (("book", '{"b": 1,  "a": 2}'),), """[('book', '{"a":2,"b":1}')]"""),
        ("tool", "Done!", (), "[]"),
    ],
)
def test_verdicts(kind: str, text: str, calls: tuple[tuple[str, str], ...], verdict: str) -> None:
    """Style does not count, nor the layout of arguments."""
    assert Probe(kind=kind, prompt="?", key=r"\b100\b").verdict(text, calls) == verdict


def test_a_whole_audit() -> None:
    """Long answers for one taste show in the range and pass; a failed drill, silence or a leak do not."""

    def outcome(leak: bool, drills: list[Drill], silent: float = 0.0) -> tuple[bool, str, float]:
        chances: Iterator[float] = iter(np.random.default_rng(0).random(10_000).tolist())

        async def ask(person: int, probe: Probe) -> AuditReply:
            if next(chances) < silent:
                raise TimeoutError
            if probe.kind == "open":
                return AuditReply("It is so. " * (40 if TASTES[person] == {"length": 1.0} else 4))
            wrong = leak and person % 2 and probe.kind == "safety"
            return AuditReply("Yes." if wrong else "No.")

        found = asyncio.run(audited(ask, role="nurse", registry="r", ts=1.0, drills=drills))
        assert next(each for each in found.ranges if each.dimension == "length").low < -1.0
        assert next(each for each in found.ranges if each.dimension == "length").high > -1.0
        return found.passed, " ".join(found.reasons), found.swap.by_kind["safety"]

    assert outcome(False, PASSED) == (True, "", 0.0)
    passed, reason, rate = outcome(True, PASSED)
    assert (passed, rate) == (False, pytest.approx(10 / 19))
    assert "verdicts change with the user" in reason
    assert "no drill" in outcome(False, [])[1]
    assert "stop took 3.00 s" in outcome(False, [Drill(step="stop", seconds=3.0, passed=False)])[1]
    assert "were answered" in outcome(False, PASSED, silent=0.2)[1]


def settings(folder: Path, *models: str, **policy: Any) -> Config:
    """Simulated models, and a role of high stakes."""
    names = models or ("a", "b")
    personas = {name: {"length": 3.0 + 6.0 * i, "numbers": 0.0, "skill": {}} for i, name in enumerate(names)}
    return parse_config(
        {
            "data": str(folder),
            "providers": {"s": {"kind": "simulated", "options": {**personas, "speed": 1e6}}},
            "models": [{"name": name, "provider": "s"} for name in names],
            "policy": {"high_stakes_roles": ["Nurse"], **policy},
        }
    )


def personalised(config: Config) -> bool:
    """Whether a router of this configuration would use what it learnt of a nurse."""
    parts = assemble(config)
    try:
        rules = parts["decider"].rules
        return bool(parts["decider"]._personalised(rules, Identity(user="ann", role=" nurse ")))
    finally:
        parts["journal"].close()
        parts["identities"].close()


def test_high_stakes_wait_for_an_audit(tmp_path: Path) -> None:
    """Before a pass, after a failure, an edit, with other models or another key, the role is not personalised."""
    config = settings(tmp_path)
    assert not personalised(config)
    assert personalised(settings(tmp_path, high_stakes_roles=["doctor"]))
    with closing(SqliteJournal(tmp_path / "journal.db")) as journal:
        head = journal.head()
        found = asyncio.run(audit_on_copy(config, "nurse", PASSED, 2))
        assert found.passed, found.reasons
        assert journal.head() == head  # nobody asked here, and no taste was declared
    failed = msgspec.structs.replace(found, passed=False)
    path, document = write_audit(tmp_path, failed)
    assert not personalised(config)
    path.write_text(json.dumps(document | {"passed": True}))
    assert not personalised(config)
    path.write_text(json.dumps(signed(document | {"passed": True}, signing_key(tmp_path / "other.key"))))
    assert not personalised(config)
    path, document = write_audit(tmp_path, found)
    assert path == audit_file(tmp_path, "NURSE")
    assert personalised(config)
    assert not personalised(settings(tmp_path, "a", "c"))
    assert verified(json.loads(path.read_text())) == verified(document)
    page = path.with_suffix(".html").read_text()
    assert "The role nurse passed" in page
    assert "http" not in page.replace("http-equiv", "")


def test_the_drill_of_a_live_gateway(tmp_path: Path) -> None:
    """Stop, override and pin are heeded by the next decision, and every measure is undone."""
    router = make_router(tmp_path)
    with serving(router) as url:
        found = run_drills(url)
        assert router.policy.standing().settings == {}
    assert [(each.step, each.passed) for each in found] == [("stop", True), ("override", True), ("pin", True)]
