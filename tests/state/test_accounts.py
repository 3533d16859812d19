"""What keys with a limit per day spend: reserved before each call, booked once, and the same after a restart."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from fitrouter.state import accounts as accounts_module
from fitrouter.state.accounts import DAY_S, Accounts, day_left_s
from fitrouter.types import Payer

KEY = Payer(name="k", usd_per_day=1.0)


@given(st.lists(st.tuples(st.floats(0.0, 0.7), st.floats(0.0, 1.0), st.sampled_from("rsb")), max_size=40))
def test_calls_at_once_cost_at_most_the_limit(steps: list[tuple[float, float, str]]) -> None:
    """What is allowed sums to the limit at most, in any order of reserving, settling and booking."""
    accounts, open_, paid = Accounts(), dict[str, float](), 0.0
    for n, (usd, share, what) in enumerate(steps):
        if what == "r" and accounts.reserve(KEY, 5.0, f"d{n}", usd, math.inf):
            open_[f"d{n}"] = usd
        elif open_:
            name, held = next(iter(open_.items()))
            if what == "s":
                accounts.settle("k", 6.0, name, held * share)
                open_[name] = held * share
            else:
                accounts.observe("k", 7.0, held, name)
                paid += open_.pop(name)
        assert paid + sum(open_.values()) <= 1.0 + 1e-9
        assert math.isclose(accounts.left(KEY, 8.0), 1.0 - paid - sum(open_.values()), abs_tol=1e-9)


def test_a_day_ends_and_late_events_count_for_theirs() -> None:
    """Spending and reservations end at midnight (UTC); an answer of yesterday is booked there."""
    accounts = Accounts()
    assert accounts.reserve(KEY, DAY_S - 10.0, "a", 1.0, math.inf)
    assert not accounts.reserve(KEY, DAY_S - 9.0, "b", 0.1, math.inf)
    assert accounts.left(KEY, DAY_S + 1.0) == 1.0
    accounts.observe("k", DAY_S + 5.0, 0.25, "c")
    accounts.observe("k", DAY_S - 5.0, 0.5, "a")
    assert (accounts.left(KEY, DAY_S + 6.0), accounts.left(KEY, DAY_S - 4.0)) == (0.75, 0.5)
    assert day_left_s(DAY_S - 10.0) == 10.0


def test_a_reservation_that_nobody_settles_ends() -> None:
    """Plans whose outcome is never reported hold nothing for ever."""
    accounts = Accounts()
    assert accounts.reserve(KEY, 0.0, "a", 1.0, 60.0)
    assert accounts.left(KEY, 59.0) == 0.0
    assert accounts.left(KEY, 61.0) == 1.0


def test_the_state_is_bounded_and_survives() -> None:
    """The last keys and days are kept; damaged states are refused; requests without a limit are free."""
    accounts = Accounts()
    for n in range(accounts_module.KEYS + 5):
        accounts.observe(f"k{n}", 1.0, 1.0, "d")
    for day in range(5):
        accounts.observe("k", day * DAY_S, 0.5, "d")
    again = Accounts()
    assert again.load(accounts.dump())
    assert again.dump() == accounts.dump()
    assert len(again._days) == accounts_module.KEYS
    assert again.left(KEY, 4.0 * DAY_S) == 0.5
    assert again.left(KEY, 0.0) == 1.0
    assert again.left(None, 0.0) == math.inf
    assert again.reserve(None, 0.0, "d", 1e9, math.inf)
    assert not again._restore({"k": [(0, math.nan)]})


def test_a_cost_below_zero_gives_nothing_back() -> None:
    """What a journal may not hold is booked as nothing, also without the journal's own check."""
    accounts = Accounts()
    accounts.observe("k", 1.0, 0.75, "a")
    accounts.observe("k", 2.0, -0.5, "b")
    assert accounts.left(KEY, 3.0) == 0.25
