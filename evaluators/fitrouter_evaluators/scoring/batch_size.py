"""Adaptive batch size of the scorer."""

from __future__ import annotations

_FIRST = 16


class Pace:
    """Adaptive batch size that keeps steps short, and grows while answers queue.

    `size` doubles after a full step that took less than half of `step_s`, shrinks in proportion after one that took
    longer than `step_s`, and is reset once nothing waits. A step never waits for a batch to fill.

    >>> pace = Pace(most=64, step_s=0.1)
    >>> pace.size, pace.took(16, 0.02), pace.took(32, 0.04), pace.took(64, 0.4), pace.took(3, 0.01)
    (16, 32, 64, 16, 16)

    Args:
        most: maximum answers of a step.
        step_s: target duration of a step in seconds.
    """

    def __init__(self, most: int, step_s: float = 0.1) -> None:
        if most < 1 or not step_s > 0.0:
            raise ValueError(f"most is {most} and step_s {step_s}; a step takes at least 1 answer and some time")
        self.most = most
        self.step_s = step_s
        self.size = min(_FIRST, most)
        """Maximum answers of the next step."""

    def took(self, answers: int, seconds: float) -> int:
        """Record a step's number of answers and its duration; return the size of the next batch."""
        if seconds > self.step_s:
            self.size = max(1, int(answers * self.step_s / seconds))
        elif answers < self.size:
            self.size = min(self.size, _FIRST)
        elif seconds < self.step_s / 2:
            self.size = min(2 * self.size, self.most)
        return self.size
