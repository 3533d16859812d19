"""What every store does with a file that it cannot read: set it aside, and never delete it."""

from __future__ import annotations

import logging
from pathlib import Path

__all__ = ["quarantine"]

_log = logging.getLogger(__name__)


def quarantine(path: Path, now: float, companions: tuple[str, ...] = (), reason: str = "is damaged") -> Path:
    """Rename a damaged file to `<name>.corrupt-<seconds>` and say so in the log.

    Args:
        path: the file.
        now: seconds since the epoch, for the name.
        companions: suffixes of files that belong to it, such as a write-ahead log; they move along where they exist.
        reason: what is wrong with it, for the log.

    Returns:
        Where the file is now.
    """
    target = path.with_name(f"{path.name}.corrupt-{int(now)}")
    n = 1
    while target.exists():
        target = path.with_name(f"{path.name}.corrupt-{int(now)}-{n}")
        n += 1
    for suffix in companions:
        companion = path.with_name(path.name + suffix)
        if companion.exists():
            companion.rename(target.with_name(target.name + suffix))
    path.rename(target)
    _log.warning("%s %s; it was moved to %s and an empty one takes its place", path, reason, target)
    return target
