"""Report of the services process: a file of the data folder, from which the gateway's workers complete their status."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from fitrouter.errors import StoreError, in_words
from fitrouter.serving.services import ModelHealth
from fitrouter.serving.status import RouterStatus

FILE = "services.json"
FRESH_S = 10.0
"""Age from which the process counts as gone; it writes twice a second."""


class ServicesReport(msgspec.Struct, frozen=True, kw_only=True):
    """Status known only to the process that scores answers and feeds the warehouse."""

    pid: int
    at: float
    """Seconds since the epoch."""
    leases: Mapping[str, bool]
    warehouse_events: int
    warehouse_seconds: float
    reward_models: Mapping[str, ModelHealth]


def write_report(folder: Path, status: RouterStatus, now: float) -> None:
    """Replace the report; on a full disk the old one stays."""
    report = ServicesReport(
        pid=os.getpid(),
        at=now,
        leases=status.leases,
        warehouse_events=status.lag.warehouse_events,
        warehouse_seconds=status.lag.warehouse_seconds,
        reward_models=status.reward_models,
    )
    with suppress(OSError):
        new = folder / f"{FILE}.new"
        new.write_bytes(msgspec.json.encode(report))
        new.replace(folder / FILE)


def remove_report(folder: Path) -> None:
    """Remove the report of a process that has ended."""
    with suppress(OSError):
        (folder / FILE).unlink(missing_ok=True)


def completed(status: RouterStatus, folder: Path, now: float) -> RouterStatus:
    """Fill a worker's status with leases, lags and reward models from the services process, if there is one.

    While that is down, no lease is held, and the warehouse is late by the age of the report.

    Raises:
        StoreError: there is a report that cannot be read.
    """
    try:
        report = msgspec.json.decode((folder / FILE).read_bytes(), type=ServicesReport)
    except FileNotFoundError:
        return status
    except (OSError, msgspec.DecodeError) as error:
        raise StoreError(f"the report of the services is not readable now: {in_words(error)}") from error
    age = max(0.0, now - report.at)
    lives = age < FRESH_S
    late = report.warehouse_seconds + (0.0 if lives else age)
    lag = msgspec.structs.replace(status.lag, warehouse_events=report.warehouse_events, warehouse_seconds=late)
    return msgspec.structs.replace(
        status,
        lag=lag,
        leases=report.leases if lives else dict.fromkeys(report.leases, False),
        reward_models=report.reward_models,
        services=report.pid if lives else None,
    )
