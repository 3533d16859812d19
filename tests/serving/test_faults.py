"""Laws of the router under faults, over 200 seeds of `tests.kits.fault_simulation`; `make bench-faults` runs 10,000."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.kits import fault_simulation as faults

from fitrouter.routing.breakers import Breakers
from fitrouter.serving import attempts
from fitrouter.serving.recorder import Recorder
from fitrouter.serving.slots import Slots
from fitrouter.serving.spending import Spending

SEEDS = 200
PARTS = 2


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> faults.Identified:
    return faults.Identified(tmp_path_factory.mktemp("identities") / "identities.db")


@pytest.mark.parametrize("part", range(PARTS))
def test_the_laws_hold_whatever_fails(identities: faults.Identified, part: int) -> None:
    """Typed errors in time, nothing lost or doubled, budgets, propensities, breakers, and nothing left behind."""
    found: dict[int, list[str]] = {}
    outcomes: Counter[str] = Counter()
    for seed in range(part, SEEDS, PARTS):
        result = faults.simulate(seed, identities, faults.script_of(seed, 10), refold=seed % 10 == 0)
        outcomes += result.outcomes
        if result.violations:
            found[seed] = result.violations[:3]
    assert not found
    for outcome in ("ok", "streamed", "planned", "closed", "left", "AllModelsFailed", "Unavailable", "BudgetExhausted"):
        assert outcomes[outcome], f"no seed had {outcome}"


def test_a_seed_replays(identities: faults.Identified) -> None:
    """All events of a seed, and what each client got, are the same bytes again; those of another seed are not."""
    digests = [faults.simulate(seed, identities).digest for seed in range(10)]
    assert digests == [faults.simulate(seed, identities).digest for seed in range(10)]
    assert len(set(digests)) == 10


@pytest.mark.parametrize(
    ("owner", "name", "broken", "law"),
    [
        (Breakers, "_reason", lambda *_: "", "Retry-After"),
        (Breakers, "confirm", lambda *_: None, "breaker is open"),
        (Spending, "accounts", lambda *_: [], "beyond its budget"),
        (Slots, "free", lambda *_: None, "not given back"),
        (Recorder, "append_outcome", lambda *_: None, "does not know"),
        (attempts, "draw_next", lambda found, tried: (found.eligible[-1], 0.5) if len(tried) < 9 else None, "replay"),
        (attempts, "close", lambda _: faults.nothing(), "still open"),
    ],
)
def test_a_broken_law_is_seen(
    identities: faults.Identified,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    broken: Callable[..., Any],
    law: str,
) -> None:
    """A router without one of its parts violates a law within a few hundred seeds."""
    monkeypatch.setattr(owner, name, broken)
    found = (faults.simulate(seed, identities).violations for seed in range(300))
    assert any(law in violation for violation in itertools.chain.from_iterable(found))
