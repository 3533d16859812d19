"""Log filters: secrets are masked, and floods of one message that a client can cause are limited."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable

from fitrouter.errors import masked

_MOST = 20
"""Records of one kind within `_WINDOW_S`."""
_WINDOW_S = 60.0
_KINDS = 256


class MaskingFormatter(logging.Formatter):
    """Masks secrets in everything that another formatter writes, tracebacks included."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        """Format a record, with secrets masked."""
        return masked(self._inner.format(record))


class FloodFilter(logging.Filter):
    """Passes twenty records of a kind per minute, then one record with the number of suppressed ones.

    A kind is a logger, a level and a message without its arguments.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: OrderedDict[tuple[str, int, str], tuple[float, int]] = OrderedDict()
        """Kind → (begin of its window, records in it)."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is to be written."""
        kind = (record.name, record.levelno, str(record.msg)[:200])
        now = self._clock()
        begun, count = self._seen.pop(kind, (now, 0))
        if now - begun >= _WINDOW_S:
            if count > _MOST:
                record.msg = f"{record.msg} [{count - _MOST} more like this were not logged]"
            begun, count = now, 0
        self._seen[kind] = (begun, count + 1)
        if len(self._seen) > _KINDS:
            self._seen.popitem(last=False)
        return count < _MOST


def protect_logs() -> None:
    """Mask secrets and limit repetition in all handlers of the root logger."""
    for handler in logging.getLogger().handlers:
        if not isinstance(handler.formatter, MaskingFormatter):
            handler.setFormatter(MaskingFormatter(handler.formatter or logging.Formatter()))
            handler.addFilter(FloodFilter())
