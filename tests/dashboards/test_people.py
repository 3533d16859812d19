"""Roles that the console's view of people offers."""

from __future__ import annotations

from pathlib import Path

from fitrouter.stores.journal import Row
from fitrouter.stores.warehouse import Warehouse
from fitrouter.types import Execution, Identity
from fitrouter_dashboards.console import Reads
from fitrouter_dashboards.console.people import ROLES, roles


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
