"""What keys with a limit per day spend: booked once, and the same after a restart."""

from __future__ import annotations

import math

import pytest

from fitrouter.state import accounts as accounts_module
from fitrouter.state.accounts import DAY_S, Accounts, day_left_s
from fitrouter.state.budgets import BudgetParams
from fitrouter.state.projections import ProjectionParams, Projections
from fitrouter.types import Payer

KEY = Payer(name="k", usd_per_day=1.0)


def test_a_day_ends_and_late_events_count_for_theirs() -> None:
    """Spending ends at midnight (UTC); an answer of yesterday is booked there."""
    accounts = Accounts()
    accounts.observe("k", DAY_S + 5.0, 0.25)
    accounts.observe("k", DAY_S - 5.0, 0.5)
    assert (accounts.left(KEY, DAY_S + 6.0), accounts.left(KEY, DAY_S - 4.0)) == (0.75, 0.5)
    assert accounts.spent("k", DAY_S + 6.0) == 0.25
    assert day_left_s(DAY_S - 10.0) == 10.0


@pytest.mark.parametrize(
    ("budget", "spent", "by_key", "left_s"),
    [
        (None, 0.999, True, DAY_S - 10.0),  # something is left, but not enough
        (None, 1.0, True, DAY_S - 10.0),
        (BudgetParams(usd_per_period=5.0, period_s=10 * DAY_S), 0.999, True, DAY_S - 10.0),
        (BudgetParams(usd_per_period=1.0, period_s=3600.0), 0.5, True, 3590.0),
        (BudgetParams(usd_per_period=1.0, period_s=3600.0), 0.5, False, 3590.0),
        (BudgetParams(usd_per_period=0.1, period_s=10 * DAY_S), 0.05, True, 10 * DAY_S - 10.0),
        (BudgetParams(usd_per_period=0.1, period_s=10 * DAY_S, hard=False), 0.999, True, DAY_S - 10.0),
        (BudgetParams(usd_per_request=0.1), 0.999, True, DAY_S - 10.0),
    ],
)
def test_a_refusal_says_when_the_limit_that_is_used_up_ends(
    budget: BudgetParams | None, spent: float, by_key: bool, left_s: float
) -> None:
    """That of the day of a key, or of the period of its tenant: that of which the least is left."""
    projections, now = Projections(ProjectionParams(budget=budget)), 10.0
    projections.accounts.observe("k", now, spent)
    projections.budgets.observe("default", now, spent)
    assert projections.wait_s("default", KEY if by_key else None, now) == left_s


def test_the_state_is_bounded_and_survives() -> None:
    """The last keys and days are kept; damaged states are refused; requests without a limit are free."""
    accounts = Accounts()
    for n in range(accounts_module.KEYS + 5):
        accounts.observe(f"k{n}", 1.0, 1.0)
    for day in range(5):
        accounts.observe("k", day * DAY_S, 0.5)
    again = Accounts()
    assert again.load(accounts.dump())
    assert again.dump() == accounts.dump()
    assert len(again._days) == accounts_module.KEYS
    assert again.left(KEY, 4.0 * DAY_S) == 0.5
    assert again.left(KEY, 0.0) == 1.0
    assert again.left(None, 0.0) == math.inf
    assert not again._restore({"k": [(0, math.nan)]})


def test_a_cost_below_zero_gives_nothing_back() -> None:
    """What a journal may not hold is booked as nothing, also without the journal's own check."""
    accounts = Accounts()
    accounts.observe("k", 1.0, 0.75)
    accounts.observe("k", 2.0, -0.5)
    assert accounts.left(KEY, 3.0) == 0.25
