"""Files of a worker's samples: `PROMETHEUS_MULTIPROC_DIR` on a disk that may be full."""

from __future__ import annotations

import logging
import os
from functools import cache
from typing import Any, cast

from prometheus_client import multiprocess, values
from prometheus_client.mmap_dict import MmapedDict

_SAMPLES_BYTES = 2**16
_KINDS = ("counter", "summary", "histogram", "gauge_livemax", "gauge_livesum")
_log = logging.getLogger(__name__)


class _Reserved(MmapedDict):
    """File of samples with reserved blocks: on a full disk, writing into a hole of a mapped file kills the process."""

    def __init__(self, filename: str, read_mode: bool = False) -> None:
        if not read_mode:
            _reserve(filename, _SAMPLES_BYTES)
        super().__init__(filename, read_mode)  # type: ignore[no-untyped-call]

    def _init_value(self, key: str) -> None:
        size = self._capacity
        while self._used + len(key.encode()) + 64 > size:
            size *= 2
        if size > self._capacity:
            _reserve(self._fname, size)
        super()._init_value(key)  # type: ignore[no-untyped-call]

    def read_value(self, key: str) -> tuple[float, float]:
        try:
            found: tuple[float, float] = super().read_value(key)  # type: ignore[no-untyped-call]
        except OSError as error:  # no room for another series: it is counted once there is
            _no_room(str(error))
            return 0.0, 0.0
        return found

    def write_value(self, key: str, value: float, timestamp: float) -> None:
        try:
            super().write_value(key, value, timestamp)  # type: ignore[no-untyped-call]
        except OSError as error:
            _no_room(str(error))


@cache
def _no_room(error: str) -> None:
    """Log once that metrics are missing."""
    _log.error("metrics are missing until there is room for them: %s", error)


def _reserve(path: str, size: int) -> None:
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(file, 0, size)
    finally:
        os.close(file)


def reserve_samples() -> None:
    """Reserve the files of this process's samples; without room for them, it counts only for itself, in memory."""
    folder, chosen = os.environ.get("PROMETHEUS_MULTIPROC_DIR"), cast("Any", values)
    if folder is None:
        return
    chosen.MmapedDict = _Reserved
    try:
        for kind in _KINDS:
            _reserve(f"{folder}/{kind}_{os.getpid()}.db", _SAMPLES_BYTES)
    except OSError as error:
        _log.warning("the workers' metrics are not summed: %s has no room for them: %s", folder, error)
        chosen.ValueClass = chosen.MutexValue
        del os.environ["PROMETHEUS_MULTIPROC_DIR"]


def worker_ended(pid: int) -> None:
    """Drop the gauges of a dead worker; its counters remain."""
    mark: Any = multiprocess.mark_process_dead
    mark(pid)
