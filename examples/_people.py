"""Simulated users: their tastes and star ratings."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping

import numpy as np

# Quiet, and nothing leaves the machine.
os.environ.update(
    CREWAI_DISABLE_TELEMETRY="true",
    CREWAI_DISABLE_TRACKING="true",
    CREWAI_DISABLE_VERSION_CHECK="true",
    CREWAI_TRACING_ENABLED="false",
    CREWAI_TESTING="true",
    LITELLM_LOCAL_MODEL_COST_MAP="True",
    OTEL_SDK_DISABLED="true",
)

Taste = Callable[[str], float]
"""A text → how satisfied somebody is with it, from 0 to 1."""

NOISE = 0.15
"""Nobody gives the same text the same stars every day: the standard deviation of a satisfaction."""


def words(least: float, most: float) -> Taste:
    """Taste for a length: 0 at `least` words and 1 at `most`, or the reverse."""
    return lambda text: between(least, most, len(text.split()))


def plain_points(text: str) -> float:
    """Wants headings and lists, four will do, in plain text: eight pairs of asterisks, and nothing is left of it."""
    marks = re.findall(r"^\s*(?:[-*•]|#+|\d+[.)])\s", text, re.MULTILINE)
    return between(0, 4, len(marks)) * between(8, 0, text.count("**") / 2)


def between(low: float, high: float, value: float) -> float:
    """Position of a value between `low` (0) and `high` (1)."""
    return min(1.0, max(0.0, (value - low) / (high - low)))


class Readers:
    """The readers of each role, or users: they read, and give stars. Their moods are drawn from a seed.

    Args:
        tastes: role or user → what they like.
        seed: of their moods.
    """

    def __init__(self, tastes: Mapping[str, Taste], seed: int = 0) -> None:
        self.tastes = tastes
        self.satisfied: dict[str, list[float]] = {name: [] for name in tastes}
        """How satisfied they were with each text; nobody tells the router."""
        self._mood = np.random.default_rng(seed)

    def stars(self, name: str, text: str) -> float:
        """What the readers of a role give a text, 1 to 5."""
        satisfaction = self.tastes[name](text)
        self.satisfied[name].append(satisfaction)
        return 1.0 + round(4.0 * between(0, 1, self._mood.normal(satisfaction, NOISE)))
