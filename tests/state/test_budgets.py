"""Budgets: spending stays within the limit in every window, recovers from a shock, and the state round-trips."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fitrouter.errors import InvalidRequest
from fitrouter.state.budgets import HIGHEST, LIMITS, LOWEST, BudgetParams, Budgets, _StoredBudget, check_limit, over_cap
from fitrouter.types import Floats, PolicyChange

WINDOW = 500


def spend(
    ceiling: float,
    *,
    seed: int = 0,
    requests: int = 2500,
    shock: int | None = None,
    delay: int = 0,
    means: tuple[float, ...] = (3e-5, 5e-4, 9e-4, 1.5e-2),
) -> Floats:
    """Costs of a stream of choices by utility; more expensive models are better, ratings and costs are noisy."""
    rng = np.random.default_rng(seed)
    worth = np.array([0.79, 0.925, 0.929, 0.936])[: len(means)]
    budgets = Budgets(BudgetParams(usd_per_request=ceiling))
    names = [str(k) for k in range(len(means))]
    costs, waiting = np.empty(requests), []
    for t in range(requests):
        expected = np.array(means) * rng.lognormal(-0.08, 0.4, len(means))
        actual = expected * rng.lognormal(-0.05, 0.3, len(means)) * (10.0 if shock is not None and t >= shock else 1.0)
        out = {name for name, _ in over_cap(names, expected, budgets.cap("t", float(t)))}
        utility = worth + 0.05 * rng.standard_normal(len(means))
        utility -= budgets.weight("t", float(t)) * expected / budgets.unit("t", float(t))
        left = [k for k, name in enumerate(names) if name not in out]
        kept = expected[left]
        k = left[int(utility[left].argmax())]
        if rng.random() < budgets.floor("t", kept, 0.05, float(t)):
            k = int(rng.choice(left))
        costs[t] = actual[k]
        budgets.observe_decision("t", float(t), float(expected[k]), str(t))
        waiting.append((float(t), costs[t], str(t)))
        if len(waiting) > delay:
            budgets.observe("t", *waiting.pop(0))
    return costs


def windows(costs: Floats, after: int) -> Floats:
    """Mean cost of every window of `WINDOW` requests that begins after `after` requests."""
    total = np.concatenate([[0.0], np.cumsum(costs[after:])])
    means: Floats = (total[WINDOW:] - total[:-WINDOW]) / WINDOW
    return means


def test_every_window_of_500_stays_within_two_percent_of_the_limit(subtests: pytest.Subtests) -> None:
    """Including the floor's spending, after the first 200 requests; and the budget is used."""
    for seed in range(3):
        for ceiling in (
            2e-4,
            6e-4,
            2e-3,
            5e-3,
        ):
            with subtests.test(ceiling=ceiling, seed=seed):
                costs = spend(ceiling, seed=seed)
                assert windows(costs, 200).max() <= 1.02 * ceiling
                assert costs[200:].mean() >= 0.85 * ceiling


def test_a_limit_that_is_never_reached_changes_nothing() -> None:
    """If even the most expensive model costs less than the limit, λ falls to its minimum and the floor is unreduced."""
    budgets = Budgets(BudgetParams(usd_per_request=1.0))
    for t in range(300):
        budgets.observe("t", float(t), 0.01)
    assert budgets.weight("t", 300.0) == pytest.approx(1e-4)
    assert budgets.floor("t", np.array([0.01, 0.02]), 0.05) == 0.05
    assert over_cap(("a", "b"), np.array([0.01, 0.02]), budgets.cap("t", 300.0)) == []


@pytest.mark.parametrize("ceiling", [1e-3, 4e-3])
def test_recovery_from_a_tenfold_price_shock_within_200_requests(ceiling: float) -> None:
    """All real costs rise tenfold at once, while expected costs stay as they were."""
    costs = spend(ceiling, shock=1200, requests=2600)
    assert windows(costs, 1400).max() <= 1.02 * ceiling
    assert costs[1400:].mean() >= 0.7 * ceiling


def test_late_executions_out_of_order_stay_within_the_limit() -> None:
    """With twenty pending answers at all times, the limit still holds."""
    costs = spend(1e-3, delay=20)
    assert windows(costs, 200).max() <= 1.02e-3
    assert costs[200:].mean() >= 0.85e-3


def test_pending_decisions_count_as_spent() -> None:
    """A decision lowers the cap of the next one before its answer has ended; its real cost then replaces it."""
    budgets = Budgets(BudgetParams(usd_per_request=1e-3))
    before = budgets.cap("t", 0.0)
    budgets.observe_decision("t", 0.0, 0.005, "a")
    assert budgets.cap("t", 0.0) == pytest.approx(before - 0.005 + 0.98e-3)
    assert budgets.weight("t", 0.0) > 0.01
    budgets.observe("t", 1.0, 0.002, "a")
    assert budgets.cap("t", 1.0) == pytest.approx(before - 0.002 + 0.98e-3)


def test_expected_costs_are_corrected_by_real_ones() -> None:
    """If every answer costs ten times the expected, the cap falls to a tenth."""
    budgets = Budgets(BudgetParams(usd_per_request=1e-3))
    for t in range(200):
        budgets.observe_decision("t", float(t), 0.5e-3, str(t))
        budgets.observe("t", float(t), 5e-3, str(t))
    assert budgets.cap("t", 200.0) < 2e-3 / 7


def test_numbers_that_a_journal_may_not_hold_change_nothing() -> None:
    """Neither times and costs that are not finite nor costs below zero, also without the journal's own check."""
    budgets = Budgets(BudgetParams(usd_per_request=1e-3, usd_per_period=5.0, period_s=100.0))
    budgets.observe("t", 1.0, 0.5, "a")
    before = budgets.dump()
    for ts, usd in ((math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan), (1.0, math.inf)):
        budgets.observe_decision("t", ts, usd, "b")
        budgets.observe("t", ts, usd, "b")
        assert budgets.dump() == before
    budgets.observe_decision("t", 2.0, -1.0, "c")
    budgets.observe("t", 2.0, -1.0, "c")
    assert budgets.spent("t", 2.0) == 0.5


def test_a_tenant_without_a_budget_has_no_cost_weight() -> None:
    """No λ, no cap, no state."""
    budgets = Budgets(None, {"paying": BudgetParams(usd_per_request=1e-3)})
    budgets.observe("other", 1.0, 5.0)
    assert budgets.weight("other", 1.0) == 0.0
    assert budgets.cap("other", 1.0) == math.inf
    assert budgets.unit("other", 1.0) == math.inf
    assert budgets.floor("other", np.array([1.0, 2.0]), 0.05) == 0.05
    assert budgets.dump() == Budgets(None, budgets.tenants).dump()


def test_tenants_are_independent() -> None:
    """One tenant's spending does not change another's λ."""
    params = BudgetParams(usd_per_request=1e-3)
    budgets = Budgets(params)
    for t in range(50):
        budgets.observe("a", float(t), 0.1)
    assert budgets.weight("a", 50.0) > 2 * params.start
    assert budgets.weight("b", 50.0) == params.start


def test_the_floor_spends_at_most_its_share_of_the_limit() -> None:
    """Floor · mean cost ≤ floor_share · unit, whatever the costs."""
    budgets = Budgets(BudgetParams(usd_per_request=2e-4))
    costs = np.array([3e-5, 5e-4, 1.5e-2])
    floor = budgets.floor("t", costs, 0.05)
    assert floor * costs.mean() == pytest.approx(0.05 * 2e-4)


def test_the_rest_of_a_period_is_divided_among_the_expected_requests() -> None:
    """The unit is the rest of the budget over the expected number of requests at the rate so far."""
    day = BudgetParams(usd_per_period=10.0, period_s=1000.0)
    budgets = Budgets(day)
    for n in range(1000):  # the first period teaches the rate: one request a second
        budgets.observe("t", float(n), 0.001)
    assert budgets.unit("t", 1000.0) == pytest.approx(10.0 / 1000, rel=0.01)
    for n in range(1000, 1250):
        budgets.observe("t", float(n), 1 / 64)
    assert budgets.spent("t", 1250.0) == pytest.approx(250 / 64)
    assert budgets.unit("t", 1250.0) == pytest.approx((10.0 - 250 / 64) / 750, rel=0.02)
    budgets.observe("t", 1250.0, 6.5)
    assert budgets.cap("t", 1250.0) == 0.0


def test_late_executions_count_in_their_period() -> None:
    """The time of an Execution decides, not its position."""
    budgets = Budgets(BudgetParams(usd_per_period=1.0, period_s=100.0))
    for ts, cost in ((90.0, 0.1), (101.0, 0.2), (99.0, 0.3)):
        budgets.observe("t", ts, cost)
    assert budgets.spent("t", 99.0) == pytest.approx(0.4)
    assert budgets.spent("t", 150.0) == pytest.approx(0.2)


def test_the_hard_cap_keeps_the_cheapest_model() -> None:
    """Models that are expected to cost more are excluded with a reason; one always remains."""
    budgets = Budgets(BudgetParams(usd_per_request_max=0.001))
    cap = budgets.cap("t", 0.0)
    assert over_cap(("a", "b", "c"), np.array([0.01, 0.0005, 0.002]), cap) == [
        ("a", "budget: expected to cost 0.01 USD, allowed is 0.001"),
        ("c", "budget: expected to cost 0.002 USD, allowed is 0.001"),
    ]
    assert over_cap(("a", "b"), np.array([0.01, 0.02]), cap) == [
        ("b", "budget: expected to cost 0.02 USD, allowed is 0.001")
    ]
    assert budgets.weight("t", 0.0) == 0.0


def test_one_dear_answer_is_one_step_of_the_price() -> None:
    """However deep a debt is, the slow part of λ moves by one step a request, and the fast part is bounded."""
    params = BudgetParams(usd_per_request=1e-3)
    debts = [Budgets(params), Budgets(params)]
    for budgets, usd in zip(debts, (0.1, 1000.0), strict=True):
        budgets.observe("t", 0.0, usd)
        assert budgets._accounts["t"].log_weight == pytest.approx(math.log(params.start) + params.slow)
        assert budgets.weight("t") == pytest.approx(params.start * math.exp(params.slow + params.fast * 3.0))


def test_the_price_of_cost_stays_within_its_bounds() -> None:
    """In debt that it has been in for long, or with a bucket that stays full."""
    dear, free = (Budgets(BudgetParams(usd_per_request=1e-3, start=start)) for start in (HIGHEST, LOWEST))
    for n in range(100):
        dear.observe("t", float(n), 1.0)
        free.observe("t", float(n), 0.0)
    assert (dear.weight("t"), free.weight("t")) == (HIGHEST, LOWEST)


def test_a_modest_model_stays_within_reach() -> None:
    """It may cost two units, a third of that in any debt, and no more where answers are cheaper than expected."""
    params = BudgetParams(usd_per_request=1e-3)
    for usd, cap in ((6.5e-3 + 0.98e-3, 2e-3), (1.0, 2e-3 / 3), (1e3, 2e-3 / 3)):
        budgets = Budgets(params)
        budgets.observe("t", 0.0, usd)
        assert budgets.cap("t", 0.0) == pytest.approx(cap), usd
    cheap = Budgets(params)
    for t in range(200):
        cheap.observe_decision("t", float(t), 5e-3, str(t))
        cheap.observe("t", float(t), 0.9e-3, str(t))
    assert cheap.cap("t", 200.0) == pytest.approx(cheap._accounts["t"].level * 1e-3)


def test_the_unit_of_a_period_before_its_first_request() -> None:
    """A time before the first request, as of a clock that was set back, has the unit of the period's start."""
    idle = Budgets(BudgetParams(usd_per_period=1.0, period_s=100.0))
    idle.observe("t", 50.0, 0.0)
    assert idle.unit("t", 0.0) == pytest.approx(1.0 / 1050)


def test_requests_before_there_was_a_limit_count_for_nothing() -> None:
    """A limit that is set at run time begins with the first λ and half a bucket, whatever came before."""
    budgets = Budgets(BudgetParams(usd_per_request_max=1.0))
    for n in range(100):
        budgets.observe("t", float(n), 0.5)
    budgets.observe_change(changed("t", 10.0))
    fresh = Budgets(BudgetParams(usd_per_request_max=1.0, usd_per_period=10.0))
    account = budgets._accounts["t"]
    assert (account.level, account.log_weight) == (0.5 * fresh.default.bucket, math.log(fresh.default.start))


def test_a_cost_that_is_any_number_of_times_the_limit_leaves_a_state_that_can_be_read() -> None:
    """A limit may be as small as it likes."""
    budgets = Budgets(BudgetParams(usd_per_request=1e-305))
    budgets.observe_decision("t", 0.0, 1e6, "d")
    budgets.observe("t", 0.0, 1e6, "d")
    assert budgets.load(budgets.dump())
    assert budgets.weight("t") > budgets.weight("other")


def test_settings_that_cannot_be_kept_are_refused(subtests: pytest.Subtests) -> None:
    """The message names the value and what is allowed."""
    for wrong in (
        {"usd_per_request": 0.0},
        {"usd_per_period": math.nan},
        {"usd_per_request_max": -1.0},
        {"period_s": math.inf},
        {"aim": 1.1},
        {"bucket": 0.5},
        {"start": 0.0},
    ):
        with subtests.test(wrong=wrong), pytest.raises(ValueError, match=r"allowed is|give a finite number above 0"):
            BudgetParams(**wrong)


_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.floats(0.0, 1e6),
        st.one_of(st.floats(0.0, 10.0), st.sampled_from([math.nan, math.inf, -1.0])),
    ),
    max_size=60,
)


@settings(max_examples=30)
@given(_EVENTS, _EVENTS, st.booleans())
def test_the_state_is_restored_exactly(before: list[Any], after: list[Any], period: bool) -> None:
    """A restored state continues bit for bit; λ and units stay finite and positive."""
    params = BudgetParams(usd_per_request=1e-3, usd_per_period=5.0 if period else None, period_s=1000.0, bucket=5.0)
    first, second = Budgets(params), Budgets(params)
    for event in before:
        first.observe(*event)
    assert second.load(first.dump())
    for budgets in (first, second):
        for event in after:
            budgets.observe(*event)
    assert first.dump() == second.dump()
    for tenant, ts, _ in before + after:
        assert 1e-4 * (1 - 1e-9) <= first.weight(tenant, ts) <= 10.0 * (1 + 1e-9)
        assert 0.0 < first.unit(tenant, ts) <= 1e-3
        assert 0.0 <= first.cap(tenant, ts) < math.inf


@settings(max_examples=20)
@given(st.integers(0, 400), st.binary(min_size=1, max_size=8))
def test_invalid_bytes_change_nothing(at: int, noise: bytes) -> None:
    """Any bytes are either rejected or give a state that can be dumped and used."""
    params = BudgetParams(usd_per_request=1e-3, usd_per_period=5.0, bucket=5.0)
    budgets = Budgets(params)
    for t in range(30):
        budgets.observe("a", float(t), 0.001 * t)
    sound = budgets.dump()
    broken = sound[: at % len(sound)] + noise + sound[at % len(sound) + len(noise) :]
    if budgets.load(broken):
        assert math.isfinite(budgets.weight("a", 31.0))
        assert 0.0 <= budgets.cap("a", 31.0) < math.inf
    else:
        assert budgets.dump() == sound


def test_numbers_that_folding_cannot_lead_to_are_refused(subtests: pytest.Subtests) -> None:
    """A corrupted state is not believed."""
    for change in (
        {"log_weight": 50.0},
        {"level": 21.0},
        {"level": -math.inf},
        {"pending": [("x", -1.0)]},
        {"periods": [(0, math.inf, 1)]},
        {"first": math.nan},
    ):
        with subtests.test(change=change):
            budgets = Budgets(BudgetParams(usd_per_request=1e-3))
            budgets.observe("a", 1.0, 0.001)
            before = budgets.dump()
            stored = msgspec.msgpack.decode(before, type=dict[str, _StoredBudget])
            stored["a"] = msgspec.structs.replace(stored["a"], **change)
            assert not budgets.load(msgspec.msgpack.encode(stored))
            assert budgets.dump() == before


def changed(tenant: object, usd: object, action: str = "budget") -> PolicyChange:
    return PolicyChange(id="c", ts=0.0, action=action, settings={"tenant": tenant, "usd_per_period": usd})


def test_a_limit_is_changed_and_taken_back() -> None:
    """The rest of the budget stays; without a configured one it begins to count; a new configuration drops it."""
    budgets = Budgets(None, {"paying": BudgetParams(usd_per_period=10.0, period_s=100.0, hard=False)})
    before = budgets.dump()
    assert budgets.trial("paying", 4.0).params("paying") == BudgetParams(usd_per_period=4.0, period_s=100.0, hard=False)
    assert budgets.dump() == before, "a trial changes nothing"
    budgets.observe("paying", 1.0, 1.0)
    budgets.observe_change(changed("paying", 4))
    budgets.observe_change(changed("other", 2.0))
    budgets.observe("other", 1.0, 0.5)
    assert budgets.unit("paying", 1.0) == pytest.approx(
        (4.0 - 1.0) / (10.0 - 1.0) * budgets.trial("paying", None).unit("paying", 1.0)
    )
    assert (budgets.spent("paying", 1.0), budgets.spent("other", 1.0)) == (1.0, 0.5)
    again = Budgets(None, budgets.tenants)
    assert again.load(budgets.dump())
    assert again.dump() == budgets.dump()
    assert again.limits == {"paying": 4.0, "other": 2.0}
    budgets.observe_change(changed("paying", None))
    assert budgets.params("paying") == budgets.tenants["paying"]
    budgets.observe_change(PolicyChange(id="n", ts=0.0, action="config"))
    assert budgets.params("other") is None
    assert again.load(budgets.dump()), "nobody's spending is kept who has no budget"


def test_limits_that_cannot_be_kept_are_refused() -> None:
    """By the control with an error that names the field, by the fold in silence; their number is bounded."""
    budgets, before = Budgets(), Budgets().dump()
    for tenant, usd in ((7, 1.0), ("", 1.0), ("x" * 201, 1.0), ("a\x1fb", 1.0), ("\u202ea", 1.0)):
        with pytest.raises(InvalidRequest, match="tenant: "):
            check_limit(tenant, usd)
        budgets.observe_change(changed(tenant, usd))
    for bad in (0, -1.0, math.nan, math.inf, True, "5", 1e300, 10**400):
        with pytest.raises(InvalidRequest, match="usd_per_period: "):
            check_limit("a", bad)
        budgets.observe_change(changed("a", bad))
    assert budgets.dump() == before
    for n in range(LIMITS + 5):
        budgets.observe_change(changed(f"t{n}", 1.0))
    assert len(budgets.limits) == LIMITS
    for damaged in ({"\x1flimits": {"a": -1.0}}, {"a": {"b": 1.0}}):
        assert not budgets.load(msgspec.msgpack.encode(damaged))
