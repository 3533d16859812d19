"""What the examples share: simulated models, simulated people, and what was learnt about them."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

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

from fitrouter import Decision, Router, parse_config
from fitrouter_integrations.client import connect

Taste = Callable[[str], float]
"""A text → how satisfied somebody is with it, from 0 to 1."""

MODELS = {
    "terse": {"length": 2, "warmth": 0.0},
    "warm": {"length": 9, "warmth": 1.0, "formality": 0.0, "examples": 0.5},
    "orderly": {"length": 6, "warmth": 0.0, "bullets": 1.0, "headings": 1.0, "formality": 0.9, "numbers": 0.6},
}
"""Simulated models and how they write; see `fitrouter.providers.Persona`."""


def short(text: str) -> float:
    """Wants few words: 1 up to twenty, 0 from eighty."""
    return _between(80, 20, len(text.split()))


def long_and_warm(text: str) -> float:
    """Wants to be spoken to, and at some length."""
    return min(_between(10, 60, len(text.split())), _between(0, 2, text.count("!")))


def structured(text: str) -> float:
    """Wants headings and lists."""
    return _between(0, 4, len(re.findall(r"^(?:- |#+ )", text, re.MULTILINE)))


def _between(low: float, high: float, value: float) -> float:
    return min(1.0, max(0.0, (value - low) / (high - low)))


def stars(satisfaction: float) -> float:
    """What somebody gives who is so satisfied, 1 to 5."""
    return 1.0 + round(4.0 * satisfaction)


@contextmanager
def simulated_router() -> Iterator[Router]:
    """A router in this process over `MODELS`, in a folder that goes with it."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CREWAI_STORAGE_DIR"] = str(Path(folder) / "crewai")
        config = {
            "data": folder,
            "providers": {"simulated": {"kind": "simulated", "options": {"speed": 1e6, **MODELS}}},
            "models": [{"name": name, "provider": "simulated"} for name in MODELS],
            # The pool is new and the example short: it explores more than a service would (`squarecb`, 0.05).
            "policy": {"algorithm": "linear_thompson", "floor": 0.2},
            # A day's work is done here in seconds, by a handful of people: none of their votes is one too many.
            "feedback": {"votes_per_day": 1000},
        }
        router = Router.from_config(parse_config(config))
        with connect(router):
            yield router


Shares = Mapping[str, Mapping[str, float]]
"""Who asks → model → mean probability."""


def shares(router: Router, who: Callable[[Decision], str | None], first: int, last: int) -> tuple[Shares, Shares]:
    """What the router would have answered with, early and late: mean probabilities out of its log.

    Args:
        router: whose journal is read.
        who: groups decisions.
        first: so many decisions of each are early.
        last: and so many late.
    """
    made: dict[str, list[Decision]] = {}
    for row in router.journal.tail(0, 1_000_000):
        if isinstance(row.event, Decision) and row.event.probs and (name := who(row.event)) is not None:
            made.setdefault(name, []).append(row.event)
    early = {name: _mean(decisions[:first]) for name, decisions in made.items()}
    late = {name: _mean(decisions[-last:]) for name, decisions in made.items()}
    return early, late


def _mean(decisions: list[Decision]) -> dict[str, float]:
    total = dict.fromkeys(MODELS, 0.0)
    for decision in decisions:
        for model, probability in zip(decision.eligible, decision.probs, strict=True):
            total[model] += probability / len(decisions)
    return total


def best(of: Mapping[str, float]) -> str:
    """The most probable model."""
    return max(of, key=of.__getitem__)


def tell(early: Shares, late: Shares) -> None:
    """Print what was learnt."""
    print(f"{'':12}{'before':36}after")
    for name in late:
        before, after = (", ".join(f"{model} {share:.0%}" for model, share in of[name].items()) for of in (early, late))
        print(f"{name:12}{before:36}{after}  → {best(late[name])}")
