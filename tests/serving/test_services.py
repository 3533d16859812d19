"""Laws of background services."""

from __future__ import annotations

import subprocess
import sys
import threading

from fitrouter.hooks import Hooks, Notice
from fitrouter.serving.services import Service

LATE = """
import threading, time
from fitrouter.hooks import Hooks
from fitrouter.serving.services import Service

began = threading.Event()

def step():
    began.set()
    time.sleep(0.5)
    print("the step has ended", flush=True)
    return 0

service = Service("slow", step, Hooks(), idle_s=60.0)
service.start()
began.wait()
service.stop(timeout_s=0.0)
print("the program has ended", flush=True)
"""


def test_a_step_that_was_left_behind_ends_before_the_process() -> None:
    """A process whose service was stopped in the middle of a step waits for that step when it exits."""
    ran = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=300, check=True)
    assert ran.stdout.splitlines() == ["the program has ended", "the step has ended"]


def test_a_step_that_is_not_full_is_followed_by_a_pause() -> None:
    """Steps follow at once while they are full; after a smaller one the service waits for more."""
    results, ended = iter([5, 5, 2]), threading.Event()

    def step() -> int:
        count = next(results)  # a fourth step would be trouble
        if count < 5:
            ended.set()
        return count

    notices: list[Notice] = []

    def hook(notice: Notice) -> None:
        notices.append(notice)

    service = Service("batches", step, Hooks(hook), idle_s=60.0, full=5)
    service.start()
    assert ended.wait(60.0)
    service.stop()
    assert not notices
    assert next(results, None) is None
