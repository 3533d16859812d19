"""Candidates: a policy that is said in a file becomes the pmf that the router itself would have logged."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kits.gateway import Echo, cards, make_router
from tests.kits.pages import blocks
from tests.kits.replay import Town, log_of
from tests.kits.tables import table_driven

from fitrouter.config import CandidateConfig, parse_config
from fitrouter.errors import ConfigError, InvalidLog
from fitrouter.policies import EpsilonGreedy, LinearThompson, LinUCB, Policy, Softmax, SquareCB
from fitrouter.routing.decider import Decider, Rules
from fitrouter.state.budgets import BudgetParams
from fitrouter.state.projections import ProjectionParams
from fitrouter.types import FULL_SHARE, Decision, FeedbackKind, Floats, Identity, ModelCard, Prices, Request
from fitrouter_evaluators.replay.candidates._candidate_file import KINDS, parse_candidate, read_candidate
from fitrouter_evaluators.replay.candidates.load import Candidate, load_candidate
from fitrouter_evaluators.replay.log.log import DRAWN, MODES, Ints, Log

LIVE = Rules(
    floor=0.1,
    uniform_slice=0.05,
    share=0.8,
    default_arm="b",
    newcomer_pulls=3,
    newcomer_labels=30,
    cost_weight=0.2,
    latency_weight=0.1,
    consistency=0.05,
)
CONFIG = parse_config(
    {
        "providers": {"p": {"kind": "simulated"}},
        "models": [{"name": name, "provider": "p"} for name in "abc"],
        "default_model": "b",
        "share": 0.8,
        "policy": {"algorithm": "squarecb", "gamma": 20.0, "floor": 0.1, "uniform_slice": 0.05},
    }
)


def but(**changes: Any) -> Rules:
    """The live rules, but for these."""
    return msgspec.structs.replace(LIVE, **changes)


CHANGES: dict[str, tuple[dict[str, Any], Policy, Rules]] = {
    "sharper": ({"gamma": 90.0}, SquareCB(90.0), LIVE),
    "softmax": ({"algorithm": "softmax", "temperature": 0.05}, Softmax(0.05), LIVE),
    "greedy": ({"algorithm": "epsilon_greedy", "epsilon": 0.2}, EpsilonGreedy(0.2), LIVE),
    "thompson": ({"algorithm": "linear_thompson", "scale": 0.5}, LinearThompson(0.5), LIVE),
    "upper": ({"algorithm": "linucb", "alpha": 2.0}, LinUCB(2.0), LIVE),
    "dear": ({"latency_weight": 0.5}, SquareCB(20.0), but(latency_weight=0.5)),
    "free": ({"cost_weight": 0.0}, SquareCB(20.0), but(cost_weight=0.0)),
    "floor": ({"floor": 0.02}, SquareCB(20.0), but(floor=0.02)),
    "slice": ({"uniform_slice": 0.3}, SquareCB(20.0), but(uniform_slice=0.3)),
    "share": ({"share": 0.3}, SquareCB(20.0), but(share=0.3)),
    "moved": ({"share": 0.5, "default_model": "a"}, SquareCB(20.0), but(share=0.5, default_arm="a")),
    "everything": (
        {"algorithm": "softmax", "temperature": 0.1, "share": 1.0, "floor": 0.3, "uniform_slice": 0.1},
        Softmax(0.1),
        but(share=1.0, floor=0.3, uniform_slice=0.1),
    ),
}
"""What candidate.yaml says, and the policy and rules that a router would have been started with instead."""


@cache
def town() -> Town:
    """400 requests: sessions drawn again, newcomers twice, a budget, a uniform slice, a default with a fifth."""
    made = Town(
        rules=LIVE,
        projections=ProjectionParams(budget=BudgetParams(usd_per_request=2e-3)),
        others={name: (policy, rules) for name, (_, policy, rules) in CHANGES.items()},
        candidates={"wide": CandidateConfig(algorithm="linear_thompson").model_dump()},
    )
    last = None
    for i in range(400):
        if i in {120, 220}:
            made.join("d") if i == 120 else made.join("e", "f")
        last = made.request(last if i % 4 else None, again=i % 4 == 2)
    return made


def draws_of(log: Log) -> Ints:
    """Rows of the draws."""
    return np.flatnonzero(np.isin(log.decisions.mode, [MODES.index(mode) for mode in DRAWN]))


def flat(log: Log, rows: Ints, column: Any) -> Any:
    """A column of `Options` at these rows."""
    start = log.decisions.start
    return np.concatenate([column[start[i] : start[i + 1]] for i in rows])


def column(log: Log, name: str) -> Any:
    """A column that is there."""
    return getattr(log.options if name in log.options._fields else log.decisions, name)


def off(candidate: Candidate, log: Log, wanted: Floats) -> float:
    """The largest difference to what is wanted at the draws."""
    return float(np.abs(candidate.pmf(log, draws_of(log)) - wanted).max())


# --- the law -------------------------------------------------------------------------------------------------------


def test_the_test_log_covers_all_cases() -> None:
    """The test log has new arms, redraws with switch costs, all modes, a tight and a loose budget."""
    log, rows = town().log(), draws_of(town().log())
    decisions = [row.event for row in town().journal.tail(0, 10**9) if isinstance(row.event, Decision)]
    assert sum(bool(decision.new) for decision in decisions) > 50
    assert (flat(log, rows, column(log, "switch")) > 0).sum() > 100
    assert {MODES[code] for code in log.decisions.mode[rows]} == DRAWN
    assert column(log, "budget_weight").min() > 0
    assert column(log, "floor")[rows].min() < 0.08 < 0.11 < column(log, "floor")[rows].max()
    assert len(set(np.diff(log.decisions.start)[rows])) > 2


@pytest.mark.parametrize(
    "said",
    [
        {"algorithm": "squarecb", "gamma": 20.0},
        {"gamma": 20.0},
        {"share": 0.8},
        {"floor": 0.1},
        {"uniform_slice": 0.05},
        {"floor": 0.1, "uniform_slice": 0.05, "share": 0.8},
        {"cost_weight": 0.2, "latency_weight": 0.1},
        {"personal": True, "gamma": 20.0},
    ],
    ids=str,
)
def test_live_settings_reproduce_the_logged_pmf(said: dict[str, Any]) -> None:
    """A candidate with the live settings reproduces the logged pmf to 1e-12, whichever of them are given."""
    log = town().log()
    assert off(load_candidate(said, config=CONFIG), log, flat(log, draws_of(log), log.options.prob)) < 1e-12


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_gives_what_the_router_would_have_logged(name: str) -> None:
    """Beside the live router another one, with the change, decides from the same beliefs: its pmf is met to 1e-12.

    A price of cost is in the logged switch cost, and may change who of the newcomers is hopeful; candidates keep both
    as they were logged, so those rows are out.
    """
    made = {row.event.id: row.event for row in town().journal.tail(0, 10**9) if isinstance(row.event, Decision)}
    log, said = town().log(), town().said[name]
    pairs = [(row, made[log.decisions.id[row]], said[log.decisions.id[row]]) for row in draws_of(log).tolist()]
    same = [row for row, was, other in pairs if (was.new, was.switch) == (other.new, other.switch)]
    assert len(same) == len(pairs) or (name in {"free", "dear"} and len(same) > 100)
    rows = np.array(same)
    wanted = np.concatenate([said[decision].probs for decision in log.decisions.id[rows]])
    found = load_candidate(CHANGES[name][0], config=CONFIG).pmf(log, rows)
    np.testing.assert_allclose(found, wanted, rtol=0.0, atol=1e-12)
    assert np.abs(wanted - flat(log, rows, log.options.prob)).max() > 0.01


@pytest.mark.parametrize("paused", ["a", "b", "d", "a,d", "d,e"])
def test_paused_models_are_drawn_by_nobody(paused: str) -> None:
    """Without them the pmf is that of a router that paused them: default model, newcomers, uniform slice and all."""
    made = Town(rules=LIVE, others={"paused": (SquareCB(20.0), but(paused=paused))})
    for i in range(120):
        if i in {40, 80}:
            made.join("d" if i == 40 else "e")
        made.request()
    log, said = made.log(), made.said["paused"]
    rows, wanted = draws_of(log), []
    for i in rows.tolist():
        other = said[log.decisions.id[i]]
        drawn = dict(zip(other.eligible, other.probs, strict=True))
        at = slice(*log.decisions.start[i : i + 2])
        wanted += [drawn.get(log.names.arms[code], 0.0) for code in log.options.arm[at]]
    assert off(load_candidate({"paused": paused}, config=CONFIG), log, np.array(wanted)) < 1e-12
    assert np.abs(np.array(wanted) - flat(log, rows, log.options.prob)).max() > 0.05
    with pytest.raises(ConfigError, match=r"paused: there is no arm 'z' in the log; there are a, b, c, d, e"):
        load_candidate({"paused": "a, z"}, config=CONFIG).pmf(log, rows)
    alone = load_candidate({"paused": "a,b,c,d,e"}, config=CONFIG)
    assert off(alone, log, flat(log, rows, log.options.prob)) < 1e-12, "nobody else could answer"


async def test_a_routers_own_journal_is_reproduced(tmp_path: Path) -> None:
    """The same law for decisions that went through the whole router: sessions, users, tools, failures to decide."""
    rules = Rules(redraw_every=2, consistency=0.3, floor=0.06, uniform_slice=0.1, cost_weight=0.5, registry="r1")
    async with make_router(tmp_path, {"echo": Echo()}, models=cards(), rules=rules) as router:
        for i in range(60):
            who = Identity(user=f"u{i % 5}", role="nurse", session=f"s{i % 9}")
            answer = await router.complete(Request(messages=({"role": "user", "content": f"hi {i}"},), identity=who))
            await router.feedback(answer.decision.id, FeedbackKind.THUMB, float(i % 3 > 0))
            await router.settled()
            if i == 40:
                router._decider.learner.fit.estimate = None  # type: ignore[assignment]
        log = log_of(row.event for row in router._journal.tail(0, 100_000))
    rows = draws_of(log)
    assert (column(log, "algorithm")[rows] == "uniform").any()
    assert (column(log, "steps")[rows] > 5).any()
    logged = flat(log, rows, log.options.prob)
    for said in ({"algorithm": "squarecb", "gamma": 20.0}, {"gamma": 20.0, "share": 1.0}):
        assert off(load_candidate(said), log, logged) < 1e-12
    silent = np.repeat(column(log, "algorithm")[rows] == "uniform", np.diff(log.decisions.start)[rows])
    changed = load_candidate({"algorithm": "softmax", "floor": 0.0, "uniform_slice": 0.0}).pmf(log, rows)
    assert (changed == logged)[silent].all(), "where the router failed, no policy has a say"
    assert not (changed == logged)[~silent].all()


async def test_a_new_cost_weight_moves_with_the_logged_tiers(tmp_path: Path) -> None:
    """A candidate's cost weight counts in each request as its logged tier would have moved it."""
    rules, tiers = Rules(cost_weight=0.4, cost_unit_usd=1e-5, registry="r1"), ("", "quality", "balanced", "economy")
    async with make_router(tmp_path, {"echo": Echo()}, models=_priced(), rules=rules) as router:
        for i in range(24):
            said = {"role": "user", "content": f"hi {i}"}
            await router.complete(Request(messages=(said,), tier=tiers[i % 4]))
        await router.settled()
        log = log_of(row.event for row in router._journal.tail(0, 100_000))
        other = Decider(SquareCB(20.0), router._learner, msgspec.structs.replace(rules, cost_weight=0.1))
        made = [row.event for row in router._journal.tail(0, 100_000) if isinstance(row.event, Decision)]
    wanted = flat(log, draws_of(log), log.options.prob)
    assert off(load_candidate({"algorithm": "squarecb", "gamma": 20.0, "cost_weight": 0.4}), log, wanted) < 1e-12
    assert {each.cost_weight for each in made} == {0.1, 0.4, 1.0}
    weights = [msgspec.structs.replace(each, cost_weight=other.rules.weight(each.tier, 0.1)) for each in made]
    moved = load_candidate({"algorithm": "squarecb", "gamma": 20.0}).pmf(log_of(weights), draws_of(log))
    assert off(load_candidate({"algorithm": "squarecb", "gamma": 20.0, "cost_weight": 0.1}), log, moved) < 1e-12
    assert np.abs(moved - wanted).max() > 0.001


def _priced() -> list[ModelCard]:
    return [msgspec.structs.replace(card, prices=Prices(output=1.0 + 9.0 * k)) for k, card in enumerate(cards())]


@settings(max_examples=20)
@given(
    floor=st.floats(0, 1),
    uniform_slice=st.floats(0, 0.9),
    share=st.floats(0.05, 1),
    gamma=st.floats(1, 1e4),
    order=st.randoms(use_true_random=False),
)
def test_any_settings_give_a_pmf(floor: float, uniform_slice: float, share: float, gamma: float, order: Any) -> None:
    """Probabilities are non-negative and sum to 1 for every draw, in any order of rows."""
    log, rows = town().log(), draws_of(town().log())[::7]
    said = {"gamma": gamma, "floor": floor, "uniform_slice": uniform_slice, "share": share, "algorithm": "squarecb"}
    candidate = load_candidate(said, config=CONFIG)
    pmf = candidate.pmf(log, rows)
    counts = np.diff(log.decisions.start)[rows]
    begin = np.cumsum(counts) - counts
    assert pmf.min() >= -1e-15
    np.testing.assert_allclose(np.add.reduceat(pmf, begin), 1.0, atol=1e-12)
    shuffled = list(range(len(rows)))
    order.shuffle(shuffled)
    moved = candidate.pmf(log, rows[shuffled])
    np.testing.assert_array_equal(moved, np.concatenate([pmf[begin[i] : begin[i] + counts[i]] for i in shuffled]))


# --- what the log has ----------------------------------------------------------------------------------------------


def test_logged_pmfs_are_the_columns() -> None:
    """`current`, `twin`, `personal` and shadow candidates are the logged columns."""
    log, rows = town().log(), draws_of(town().log())
    for said, name in (("current", "prob"), ("twin", "twin"), ("personal", "personal")):
        assert off(load_candidate(said), log, flat(log, rows, column(log, name))) == 0.0
        assert off(load_candidate({said: True}), log, flat(log, rows, column(log, name))) == 0.0
    whole = log.options.candidates[FULL_SHARE]
    assert off(load_candidate("shadow"), log, flat(log, rows, whole)) == 0.0
    routed = log._replace(decisions=log.decisions._replace(share=np.ones(log.decisions.n)))
    assert off(load_candidate("shadow"), routed, flat(log, rows, column(log, "prob"))) == 0.0
    with pytest.raises(InvalidLog, match="share 1"):
        load_candidate("shadow").pmf(log._replace(options=log.options._replace(candidates={})), rows)
    wide = load_candidate({"candidate": "wide", "name": "wider"})
    assert off(wide, log, flat(log, rows, log.options.candidates["wide"])) == 0.0
    assert wide.description == "wider: the shadow candidate 'wide'"


def test_uniform_and_fixed_pmfs() -> None:
    """Uniform is 1 / K; fixed is one-hot, uniform where its arm is not eligible, with its floor spread evenly."""
    log, rows = town().log(), draws_of(town().log())
    counts = np.diff(log.decisions.start)[rows]
    assert off(load_candidate("uniform"), log, np.repeat(1.0 / counts, counts)) == 0.0
    pmf = load_candidate({"fixed": "d", "floor": 0.1}).pmf(log, rows)
    begin = np.cumsum(counts) - counts
    names = np.array(log.names.arms)[flat(log, rows, log.options.arm)]
    for at, K in zip(begin, counts, strict=True):
        here = names[at : at + K] == "d"
        wanted = 0.9 * here + 0.1 / K if here.any() else np.full(K, 1.0 / K)
        np.testing.assert_allclose(pmf[at : at + K], wanted, atol=1e-15)
    assert (np.add.reduceat(names == "d", begin) == 0).any()


def test_a_fixed_model_is_all_of_its_revisions() -> None:
    """`fixed: m` is m@1 before the revision and m@2 after it; `fixed: m@1` is that revision alone."""
    log = town().log()
    renamed = log._replace(names=log.names._replace(arms=("m@1", "m@2", *log.names.arms[2:])))
    rows = draws_of(log)[:5]
    both = load_candidate({"fixed": "m"}).pmf(renamed, rows)
    one = load_candidate({"fixed": "m@1"}).pmf(renamed, rows)
    assert set(both.tolist()) <= {0.0, 0.5, 1.0}
    assert both.sum() == one.sum() == 5.0
    assert (both != one).any()


# --- refusals ------------------------------------------------------------------------------------------------------


def without(log: Log, **columns: Any) -> Log:
    """The log without some columns, or with others in their place."""
    for part in ("decisions", "options"):
        own = {name: value for name, value in columns.items() if name in getattr(log, part)._fields}
        log = log._replace(**{part: getattr(log, part)._replace(**own)})
    return log


@table_driven(
    ("missing", "said", "message"),
    [
        ({"mean": None}, {"gamma": 5.0, "algorithm": "squarecb"}, r"'mean'\) is not logged; .* 'pmf: FILE'"),
        ({"steps": None}, {"gamma": 5.0, "algorithm": "squarecb"}, r"'steps'\) is not logged; choose another"),
        ({"sd": None}, {"algorithm": "linear_thompson"}, r"'sd'\) is not logged"),
        ({"rest": None}, {"algorithm": "uniform"}, r"'rest'\) is not logged; .* set 'floor'"),
        ({"cost": None}, {"algorithm": "softmax"}, r"'cost'\) is not logged"),
        ({"latency_weight": None}, {"algorithm": "softmax"}, r"'latency_weight'\) is not logged; set"),
        ({"latency_unit_s": None}, {"algorithm": "softmax", "latency_weight": 1.0}, r"unit of 'latency_weight'"),
        ({"share": None}, {"algorithm": "softmax", "share": 1.0}, r"'share'\) is not logged"),
        ({"twin": None}, {"twin": True}, "user-blind policy. is not logged"),
        ({"algorithm": None}, {"gamma": 5.0}, "the algorithm is not logged; set 'algorithm'"),
    ],
)
def test_missing_columns_are_named(missing: dict[str, Any], said: dict[str, Any], message: str) -> None:
    """An error names the missing column and a remedy."""
    log = without(town().log(), **missing)
    with pytest.raises(InvalidLog, match=message):
        load_candidate(said).pmf(log, draws_of(log))


def test_missing_values_at_draws_are_named() -> None:
    """NaN at a draw is refused with row and decision; at a sticky turn it is ignored."""
    log, rows = town().log(), draws_of(town().log())
    rest = column(log, "rest").copy()
    rest[log.decisions.start[rows[3]]] = np.nan
    wanted = rf"row {log.decisions.seq[rows[3]]} \(decision '{log.decisions.id[rows[3]]}'\) does not log"
    with pytest.raises(InvalidLog, match=wanted):
        load_candidate({"algorithm": "softmax"}).pmf(without(log, rest=rest), rows)
    every = np.arange(log.decisions.n)
    assert np.isnan(load_candidate({"algorithm": "softmax"}).pmf(log, every)).any()


def test_inherited_parameters_must_reproduce_the_log() -> None:
    """A candidate that inherits γ is refused if the log was made with another one."""
    log, rows = town().log(), draws_of(town().log())
    with pytest.raises(ConfigError, match=r"gamma: the default 2560 of 'squarecb' does not give what row .* set"):
        load_candidate({"cost_weight": 0.4}).pmf(log, rows)
    other = CONFIG.model_copy(update={"policy": CONFIG.policy.model_copy(update={"gamma": 21.0})})
    with pytest.raises(ConfigError, match="gamma: the configuration's 21"):
        load_candidate({"cost_weight": 0.4}, config=other).pmf(log, rows)
    assert load_candidate({"cost_weight": 0.4, "gamma": 20.0}).pmf(log, rows).min() > 0


def test_a_new_floor_needs_the_live_slice() -> None:
    """The log has only their sum: a new floor is refused without the configuration, or with a wrong one."""
    log, rows = town().log(), draws_of(town().log())
    with pytest.raises(ConfigError, match="name the configuration that was in force"):
        load_candidate({"algorithm": "softmax", "floor": 0.1}).pmf(log, rows)
    wrong = CONFIG.model_copy(update={"policy": CONFIG.policy.model_copy(update={"uniform_slice": 0.0})})
    with pytest.raises(InvalidLog, match=r"was made with floor .* if uniform_slice was 0"):
        load_candidate({"algorithm": "softmax", "floor": 0.1}, config=wrong).pmf(log, rows)
    early = rows[log.decisions.ts[rows] < 1e9 + 1100]  # before there were newcomers
    both = {"algorithm": "squarecb", "gamma": 20.0, "floor": 0.1, "uniform_slice": 0.05}
    np.testing.assert_allclose(
        load_candidate(both).pmf(log, early), flat(log, early, log.options.prob), rtol=0, atol=1e-12
    )


def test_a_log_without_rest_uses_the_candidates_mixture() -> None:
    """For logs of other programs floor, slice and share are the candidate's."""
    log = without(town().log(), rest=None)
    rows = draws_of(log)[:40]
    pmf = load_candidate(
        {"algorithm": "uniform", "floor": 0.2, "uniform_slice": 0.1, "share": 0.5, "default_model": "b"}
    ).pmf(log, rows)
    counts = np.diff(log.decisions.start)[rows]
    is_b = np.array(log.names.arms)[flat(log, rows, log.options.arm)] == "b"
    has_b = np.repeat(np.add.reduceat(is_b, np.cumsum(counts) - counts) > 0, counts)
    even = np.repeat(1.0 / counts, counts)
    np.testing.assert_allclose(pmf, np.where(has_b, 0.5 * even + 0.5 * is_b, even), atol=1e-12)


def test_user_blind_decisions_are_refused() -> None:
    """Where user terms were off, the logged means do not explain the pmf, and the candidate is refused."""
    made = Town(rules=Rules(floor=0.1, personal=False))
    made.live(20)
    log = made.log()
    personal = log.options.prob.copy()
    personal[0] += 0.1
    log = without(log, personal=personal)
    with pytest.raises(InvalidLog, match=r"without the user and role terms, .* set 'personal: true'"):
        load_candidate({"algorithm": "softmax"}).pmf(log, draws_of(log))
    assert load_candidate({"algorithm": "softmax", "personal": True}).pmf(log, draws_of(log)).min() > 0


def test_a_log_with_share_0_has_no_exploration() -> None:
    """With share 0 a new floor is refused, since the policy's exploration is not in the log."""
    made = Town(rules=Rules(floor=0.1, share=0.0, default_arm="a"))
    made.live(5)
    log = made.log()
    with pytest.raises(InvalidLog, match="share 0"):
        load_candidate({"algorithm": "softmax", "share": 1.0}).pmf(log, draws_of(log))


def test_a_share_needs_a_default_model() -> None:
    """Without a known default, a share below 1 is refused."""
    made = Town(rules=Rules(floor=0.1))
    made.live(5)
    log = made.log()
    said: dict[str, Any] = {"algorithm": "softmax", "share": 0.5}
    with pytest.raises(ConfigError, match="set 'default_model'"):
        load_candidate(said).pmf(log, draws_of(log))
    with pytest.raises(ConfigError, match="there is no arm 'z' in the log; there are a, b, c"):
        load_candidate(said | {"default_model": "z"}).pmf(log, draws_of(log))
    assert load_candidate(said | {"default_model": "c"}).pmf(log, draws_of(log))[2::3].min() >= 0.5


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    """An unknown model or shadow candidate is refused with a list of those in the log."""
    log = town().log()
    with pytest.raises(ConfigError, match=r"no arm 'z' .* there are a, b, c, d, e, f"):
        load_candidate({"fixed": "z"}).pmf(log, draws_of(log))
    with pytest.raises(ConfigError, match="no shadow candidate 'narrow'; it has 'wide'"):
        load_candidate({"candidate": "narrow"}).pmf(log, draws_of(log))


# --- the file ------------------------------------------------------------------------------------------------------


@table_driven(
    ("said", "message"),
    [
        ({}, "nothing says what the policy is"),
        ({"gama": 5}, "gama: there is no such setting; did you mean 'gamma'"),
        ({"gamma": -1}, "gamma: .*greater than 0; given was -1"),
        ({"floor": 1.5}, "floor: .*less than or equal to 1; given was 1.5"),
        ({"twin": False}, "twin: .* given was False"),
        (
            {"current": True, "twin": True},
            "'current' is a policy by itself and allows nothing beside it",
        ),
        ({"twin": True, "floor": 0.1}, "take out floor, or take out 'twin'"),
        ({"fixed": "a", "share": 0.1}, "allows only floor beside it; take out share"),
        ({"algorithm": "fixed"}, "say 'fixed: MODEL'"),
        ({"algorithm": "squarecb", "personal": False}, "say 'twin: true'"),
        ({"learning": "progressive", "gamma": 2}, "learning: name the 'snapshot'"),
        ({"snapshot": {}}, "snapshot: name either 'journal' or 'prior'"),
        ({"snapshot": {"prior": "x.arms", "until": 3}}, "leave it out"),
        ({"snapshot": {"jurnal": "x"}}, "did you mean 'journal'"),
        ({"snapshot": {"journal": "x", "until": "soon"}}, "given was 'soon'"),
    ],
)
def test_invalid_settings_are_explained(said: dict[str, Any], message: str) -> None:
    """Every invalid setting is listed with what is allowed."""
    with pytest.raises(ConfigError, match=message):
        load_candidate(said)


def test_a_parameter_of_another_algorithm_is_refused() -> None:
    """A γ for softmax is refused, since it would silently be ignored."""
    log = town().log()
    with pytest.raises(ConfigError, match=r"'softmax' does not read 'gamma', .* set algorithm to 'squarecb'"):
        load_candidate({"algorithm": "softmax", "gamma": 3.0}).pmf(log, draws_of(log))
    with pytest.raises(ConfigError, match="there is no algorithm 'thompsen'"):
        load_candidate({"algorithm": "thompsen"}).pmf(log, draws_of(log))


def test_candidate_files_are_read(tmp_path: Path) -> None:
    """A candidate.yaml equals its content; a missing or invalid file is named."""
    log = town().log()
    (tmp_path / "c.yaml").write_text("name: sharp\ngamma: 20.0\ntrained_until: 2026-01-02 03:04:05\n")
    found = load_candidate(tmp_path / "c.yaml")
    assert found.description == "sharp: gamma 20; otherwise as logged"
    assert found.trained_until == 1767323045.0
    assert off(found, log, flat(log, draws_of(log), log.options.prob)) < 1e-12
    (tmp_path / "word.yaml").write_text("twin\n")
    assert load_candidate(tmp_path / "word.yaml").description == load_candidate("twin").description
    with pytest.raises(ConfigError, match=r"no file 'nowhere\.yaml'; give a candidate\.yaml, or one of current"):
        load_candidate("nowhere.yaml")
    for content, message in (("[1, 2", "is not valid YAML"), ("- 1", "holds .1.; give settings"), ("", "holds None")):
        (tmp_path / "bad.yaml").write_text(content)
        with pytest.raises(ConfigError, match=message):
            load_candidate(tmp_path / "bad.yaml")


def test_over_names_the_configuration(tmp_path: Path) -> None:
    """`over` reads the fitrouter.yaml beside the file for settings that the log lacks."""
    log = town().log()
    text = "providers: {p: {kind: simulated}}\nmodels: [{name: b, provider: p}]\ndefault_model: b\n"
    policy = "policy: {algorithm: squarecb, gamma: 20.0, floor: 0.1, uniform_slice: 0.05}\n"
    (tmp_path / "fitrouter.yaml").write_text(text + policy)
    (tmp_path / "c.yaml").write_text("over: fitrouter.yaml\nfloor: 0.02\n")
    wanted = np.concatenate([town().said["floor"][decision].probs for decision in log.decisions.id[draws_of(log)]])
    assert off(load_candidate(tmp_path / "c.yaml"), log, wanted) < 1e-12


PAGE = Path(__file__).parents[2] / "docs" / "replay.md"
BLOCKS = [block.text for block in blocks(PAGE, "yaml", under="Candidates: policies that replay can evaluate")]


@table_driven("block", BLOCKS)
def test_documented_candidates_load(block: str, tmp_path: Path) -> None:
    """Every example of the documentation is a candidate; those that need no other file give a pmf of the town's log."""
    (tmp_path / "c.yaml").write_text(block)
    file = read_candidate(tmp_path / "c.yaml")
    assert file.said
    if file.snapshot is not None or file.pmf is not None:
        return
    log = town().log()
    log = log._replace(names=log.names._replace(arms=("small-model", *log.names.arms[1:])))
    said = block.replace("over: fitrouter.yaml", "")
    (tmp_path / "c.yaml").write_text(said)
    rows = draws_of(log)[:20]
    pmf = load_candidate(tmp_path / "c.yaml", config=CONFIG).pmf(log, rows)
    counts = np.diff(log.decisions.start)[rows]
    np.testing.assert_allclose(np.add.reduceat(pmf, np.cumsum(counts) - counts), 1.0, atol=1e-12)


def test_the_documentation_has_an_example_of_each() -> None:
    """The page shows each kind of candidate."""
    kinds = {parse_candidate(yaml.safe_load(block)).kind for block in BLOCKS}
    assert kinds == {*KINDS, "settings"}
