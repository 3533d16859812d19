"""Figures of the console's views of people and of learning equal what is counted event by event."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

from fitrouter.stores.journal import Row
from fitrouter.stores.warehouse import Warehouse
from fitrouter.types import CHOSEN, Decision, Execution, Feedback, FeedbackKind, Identity, Mode, PolicyVersion
from fitrouter_dashboards.console import Reads
from fitrouter_dashboards.console.models import label_rates
from fitrouter_dashboards.console.people import PERSONS, ROLES, listed, roles


def test_people_of_a_role_are_counted(tmp_path: Path) -> None:
    """Each once, however many they are: an estimate of their number is no figure."""
    warehouse = Warehouse(tmp_path / "warehouse.duckdb")
    events = [
        Execution(
            id=f"end of {role}-{person}-{n}",
            ts=1.0,
            decision_id=f"{role}-{person}-{n}",
            identity=Identity(user=f"0198-{role}-{person}", role=f"role {role}"),
            chosen="a",
            served_by="a",
            status="ok",
        )
        for role in range(1, ROLES + 1)
        for person in range(role)
        for n in range(2)
    ]
    warehouse.ingest([Row(seq, event) for seq, event in enumerate(events, 1)])
    reads = Reads(warehouse)
    found = {each["role"]: (each["people"], each["requests"]) for each in roles(reads, None, 0.0)}
    reads.close()
    assert found == {f"role {role}": (role, 2 * role) for role in range(1, ROLES + 1)}


def test_people_with_the_most_requests_come_first(tmp_path: Path) -> None:
    """Each on one page, with their requests, most frequent model and latest role, as counted one by one."""
    rng, warehouse = random.Random(1), Warehouse(tmp_path / "warehouse.duckdb")
    events = [
        Execution(
            id=f"end of {n}",
            ts=float(n),
            decision_id=str(n),
            identity=Identity(
                tenant=rng.choice("ab"), user=f"u{min(rng.randrange(60), rng.randrange(60))}", role=f"role {n % 7}"
            ),
            chosen="a",
            served_by=rng.choice("aab"),
            status="ok",
        )
        for n in range(900)
    ]
    warehouse.ingest([Row(seq, event) for seq, event in enumerate(events, 1)])
    reads = Reads(warehouse)
    for tenant in (None, "a"):
        asked: dict[tuple[str, str], list[Execution]] = {}
        for each in events:
            if each.ts >= 100.0 and tenant in {None, each.identity.tenant}:
                asked.setdefault((each.identity.tenant, str(each.identity.user)), []).append(each)
        skip, found = 0, list[dict[str, Any]]()
        while True:
            page = listed(reads, tenant, 100.0, satisfied=False, skip=skip)
            assert len(page["listed"]) <= PERSONS
            found += page["listed"]
            if page["next"] is None:
                break
            skip = page["next"]
        assert {(each["tenant"], each["subject"]): each["requests"] for each in found} == {
            who: len(own) for who, own in asked.items()
        }
        assert len(found) == len(asked)
        counts = [each["requests"] for each in found]
        assert counts == sorted(counts, reverse=True)
        for each in found:
            own = asked[each["tenant"], each["subject"]]
            models = Counter(one.served_by for one in own)
            assert models[each["model"]] == max(models.values())
            assert each["role"] == own[-1].identity.role
    reads.close()


def test_rates_of_labels_are_counted_one_by_one(tmp_path: Path) -> None:
    """Decisions but declined ones; those asked about, and rated, but by votes that the router asked for."""
    rng, events = random.Random(2), list[Any]()
    counts = Counter[str]()
    for n in range(600):
        who, ts, made = Identity(tenant=rng.choice("ab")), float(n), f"d{n}"
        status = rng.choice(("ok", "ok", "failed", "declined", ""))
        asked, votes = rng.random() < 0.4, rng.choice((0, 0, 1, 2))
        source = rng.choice(("user", CHOSEN))
        events.append(
            Decision(
                id=made,
                ts=ts,
                identity=who,
                draw_id=made,
                mode=Mode.ONLINE,
                eligible=("a",),
                probs=(1.0,),
                chosen="a",
                propensity=1.0,
                policy=PolicyVersion(algorithm="squarecb"),
                asked=asked,
            )
        )
        if status:
            served = "a" if status == "ok" else None
            events.append(
                Execution(
                    id=f"e{n}", ts=ts, decision_id=made, identity=who, chosen="a", served_by=served, status=status
                )
            )
        for vote in range(votes):
            given = {"kind": FeedbackKind.THUMB, "value": 1.0, "source": source}
            events.append(Feedback(id=f"f{n}.{vote}", ts=ts, decision_id=made, identity=who, **given))
        if who.tenant == "a" and ts >= 50.0 and status != "declined":
            rated = votes > 0 and source != CHOSEN
            counts["decisions"] += 1
            counts["asked"] += asked and status == "ok"
            counts["answered"] += asked and rated
            counts["rated"] += rated
    warehouse = Warehouse(tmp_path / "warehouse.duckdb")
    warehouse.ingest([Row(seq, event) for seq, event in enumerate(events, 1)])
    reads = Reads(warehouse)
    assert label_rates(reads, "a", 50.0) == dict(counts)
    assert label_rates(reads, "c", 50.0) == dict.fromkeys(counts, 0)
    reads.close()
