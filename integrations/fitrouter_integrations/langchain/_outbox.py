"""Verdicts on their way: sent one after the other in a thread of their own, so that nothing waits for them."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor, wait

from fitrouter_integrations.client import Vote
from fitrouter_integrations.feedback import Speaker, send

LIMIT = 4096
"""Verdicts that wait; further ones are dropped, and the log says so."""

LAST_S = 10.0
"""How long a process that ends waits for verdicts on their way."""

_log = logging.getLogger(__name__)


class Outbox:
    """Sends verdicts in their order. What cannot be sent is logged; nothing is raised.

    Args:
        speaker: who carries them.
        patience_s: how long a verdict waits for a decision that is not in the log yet.
    """

    def __init__(self, speaker: Speaker, patience_s: float) -> None:
        self.speaker, self.patience_s = speaker, patience_s
        self._mutex = threading.Lock()
        self._thread: ThreadPoolExecutor | None = None
        self._pid = os.getpid()
        self._sending: set[Future[None]] = set()
        _outboxes.add(self)

    def send(self, vote: Vote) -> None:
        """Queue a verdict."""
        with self._mutex:
            if self._thread is None or self._pid != os.getpid():  # a fork leaves threads behind
                self._thread, self._pid = ThreadPoolExecutor(1, thread_name_prefix="fitrouter-feedback"), os.getpid()
                self._sending = set()
            if len(self._sending) >= LIMIT:
                _log.warning("feedback on %s was dropped: %d verdicts wait to be sent", vote.decision_id, LIMIT)
                return
            sending = self._thread.submit(self._deliver, vote)
            self._sending.add(sending)
        sending.add_done_callback(self._delivered)

    def flush(self, timeout_s: float | None) -> bool:
        """Wait until all is sent; whether that came to its end in time."""
        with self._mutex:
            sending = set(self._sending)
        return not wait(sending, timeout_s).not_done

    def _deliver(self, vote: Vote) -> None:
        try:
            send(self.speaker, vote, self.patience_s)
        except Exception as error:  # noqa: BLE001 - who said it has gone on
            kind = type(error).__name__
            _log.warning("%s of %s was not taken: %s: %s", vote.kind.value, vote.decision_id, kind, error)

    def _delivered(self, sending: Future[None]) -> None:
        with self._mutex:
            self._sending.discard(sending)


_outboxes: weakref.WeakSet[Outbox] = weakref.WeakSet()


def _flush_all() -> None:
    for outbox in list(_outboxes):
        outbox.flush(LAST_S)


# What is registered last comes first: before the clients close, which registered when they were imported.
getattr(threading, "_register_atexit", atexit.register)(_flush_all)
