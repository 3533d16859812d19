"""Logs: secrets are masked, floods of one message that a client can cause are limited, and no write waits."""

from __future__ import annotations

import io
import logging
import os
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.util import Finalize
from typing import Protocol

from fitrouter.errors import masked

_MOST = 20
"""Records of one kind within `_WINDOW_S`."""
_WINDOW_S = 60.0
_KINDS = 256
_WAITING = 1_000
"""Lines that wait for whoever reads them; more are counted."""
_PAUSE_S = 0.05
_LAST_S = 1.0
"""For which the end of a process waits for its last lines to be read."""


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


class Stream(Protocol):
    """What a handler of logs writes to."""

    def write(self, text: str, /) -> object:
        """Write a line."""
        ...

    def flush(self) -> object:
        """Called after each line."""
        ...


class _ThreadedStream:
    """Stream whose writes do not wait: a thread writes them to a file descriptor.

    A pipe or terminal that nobody reads blocks whoever writes to it. On the event loop that would be all requests.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._lost = descriptor, 0
        self._lines = queue.Queue[str](_WAITING)
        threading.Thread(target=self._run, name="fitrouter-log", daemon=True).start()
        Finalize(None, self._finish, exitpriority=0)  # processes of multiprocessing run nothing of `atexit`

    def write(self, text: str) -> None:
        try:
            self._lines.put_nowait(text)
        except queue.Full:
            self._lost += 1

    def flush(self) -> None:
        """Nothing: the thread writes as soon as it can."""

    def _run(self) -> None:
        while True:
            text = self._lines.get()
            if lost := self._lost:
                self._lost -= lost
                text = f"{lost} lines were not logged: nobody read what was written\n{text}"
            left = text.encode("utf-8", "backslashreplace")
            with suppress(BrokenPipeError):
                while left:
                    left = self._rest(left)
            self._lines.task_done()

    def _rest(self, line: bytes) -> bytes:
        try:
            return line[os.write(self._descriptor, line) :]
        except BlockingIOError:  # whoever shares the descriptor has made it so
            time.sleep(_PAUSE_S)
            return line

    def _finish(self) -> None:
        with self._lines.all_tasks_done:
            self._lines.all_tasks_done.wait_for(lambda: not self._lines.unfinished_tasks, _LAST_S)


def unblocked(stream: io.TextIOBase | Stream) -> Stream:
    """Return a stream that writes to the same file, without waiting; a stream without a file as it is."""
    try:
        return _ThreadedStream(stream.fileno())  # type: ignore[union-attr]
    except (AttributeError, io.UnsupportedOperation):
        return stream


def protect_logs() -> None:
    """Mask secrets and limit repetition in all handlers of the root logger; those of a stream do not wait for it."""
    for handler in logging.getLogger().handlers:
        if not isinstance(handler.formatter, MaskingFormatter):
            handler.setFormatter(MaskingFormatter(handler.formatter or logging.Formatter()))
            handler.addFilter(FloodFilter())
            if type(handler) is logging.StreamHandler:
                handler.setStream(unblocked(handler.stream))
