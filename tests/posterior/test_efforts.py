"""Efforts and hosts: arms of one model that share what is the same, and have what differs of their own."""

from __future__ import annotations

import numpy as np
import pytest
from tests.kits.gateway import config
from tests.routing.test_decider import X

from fitrouter.config import parse_config
from fitrouter.errors import ConfigError
from fitrouter.posterior.labels import Answered, Label
from fitrouter.posterior.model import Fit
from fitrouter.routing.eligibility import Models, Roster, Wants
from fitrouter.routing.variants import expand
from fitrouter.types import FeedbackKind, Floats, Identity, ModelCard, Prices

ARMS = ("m", "m#brief", "m#effort-high", "m#effort-low", "m#host-b")
NOW = 1e6


def fit() -> Fit:
    made = Fit(len(X), 2)
    for arm in ARMS:
        made.arms.join(arm)
    return made


def label(arm: str, y: float) -> Label:
    return Label(Identity(), Answered(arm, X, None), y, FeedbackKind.RATING)


def estimate(made: Fit) -> dict[str, tuple[float, float, float, float]]:
    """Arm → rating, tokens, seconds, availability."""
    found = made.estimate(Identity(), X, ARMS, NOW)
    rows = zip(found.mean, found.tokens, found.seconds, found.availability, strict=True)
    return dict(zip(ARMS, [tuple(map(float, row)) for row in rows], strict=True))


def test_a_level_raises_the_prior_mean() -> None:
    """Before any label more effort is expected to be a little better, and all else is as of the model."""
    found = estimate(fit())
    low, plain, high = (found[arm][0] for arm in ("m#effort-low", "m", "m#effort-high"))
    assert low < plain < high < plain + 0.05
    assert {each[1:] for each in found.values()} == {found["m"][1:]}
    assert found["m#host-b"] == found["m"] == found["m#brief"]


def test_tokens_and_seconds_are_an_efforts_and_a_hosts_own() -> None:
    """What an effort or a host takes changes it alone; a prefix variant shares its model's, as before."""
    made = fit()
    for arm, tokens in (("m#effort-high", 9000.0), ("m#host-b", 500.0), ("m#brief", 50.0)):
        for _ in range(20):
            made.arms.observe_operations(made.arms.operating(arm), X, tokens, tokens / 100.0)
    found = estimate(made)
    assert found["m#effort-high"][1] > 8000
    assert found["m#effort-low"][1] == Fit(len(X), 2).params.arms.tokens
    assert 450 < found["m#host-b"][1] < 550
    assert found["m"][1:3] == found["m#brief"][1:3]
    assert found["m"][1] < 100


def test_availability_is_a_hosts_own() -> None:
    """A host that fails says nothing of the others; an effort that fails is the model's failure."""
    made = fit()
    for _ in range(5):
        made.arms.observe_answer(made.arms.answering("m#host-b"), False, NOW)
    found = estimate(made)
    assert found["m#host-b"][3] < 0.6 < found["m"][3] == found["m#effort-low"][3]
    made.arms.observe_answer(made.arms.answering("m#effort-low"), False, NOW)
    assert estimate(made)["m"][3] < found["m"][3]


def test_labels_teach_the_model_and_the_effort() -> None:
    """Bad ratings of one effort lower it most, and its siblings and hosts, which share the rest, with it."""
    made = fit()
    before = estimate(made)
    for _ in range(40):
        made.learn(label("m#effort-low", 0.2))
    found = estimate(made)
    moved = {arm: before[arm][0] - found[arm][0] for arm in ARMS}
    assert moved["m#effort-low"] > moved["m"] > 0.05
    assert moved["m"] == pytest.approx(moved["m#effort-high"])
    assert moved["m#host-b"] == pytest.approx(moved["m"])


def test_each_arm_is_stored_exactly() -> None:
    """What an arm has of its own is dumped and loaded bit for bit, and nothing twice."""
    made, rng = fit(), np.random.default_rng(1)
    for _ in range(60):
        arm = str(rng.choice(ARMS))
        made.learn(label(arm, float(rng.uniform())))
        made.arms.observe_operations(made.arms.operating(arm), X, float(rng.uniform(9, 900)), 1.0)
        made.arms.observe_answer(made.arms.answering(arm), bool(rng.uniform() < 0.8), NOW)
        made.arms.observe_response(made.arms.row(arm), X, rng.normal(size=2))
    other = fit()
    for arm in ARMS:
        assert other.arms.load(arm, made.arms.dump(arm))
    one, two = (each.arms.read(each.arms.find(ARMS), X, made.widths.weights) for each in (made, other))
    for ours, theirs in zip(one, two, strict=True):
        assert isinstance(ours, np.ndarray)
        np.testing.assert_array_equal(ours, theirs)
    assert [made.arms.dump(arm) for arm in ARMS] == [other.arms.dump(arm) for arm in ARMS]


def test_a_new_revision_starts_from_the_last() -> None:
    """Efforts and hosts of a new revision start at the means of the last one; a base's own counts stay."""
    made = fit()
    for arm in ("m#effort-high", "m#host-b", "m"):
        for _ in range(20):
            made.arms.observe_operations(made.arms.operating(arm), X, 5000.0, 50.0)
            made.arms.observe_response(made.arms.row(arm), X, np.ones(2))
    counted = made.arms.responses[made.arms.row("m")]
    for arm in ARMS:
        made.arms.join(f"{arm}@2")
    names = tuple(f"{arm}@2" for arm in ARMS)
    tokens: Floats = made.estimate(Identity(), X, names, NOW).tokens
    assert tokens[[0, 2, 4]].min() > 4000
    assert made.arms.responses[made.arms.row("m")] == counted


def test_efforts_are_written_in_their_familys_parameter() -> None:
    """`effort` becomes variants by what the family takes; too many, equal ones and a family without are refused."""
    card = ModelCard(name="gpt-5-mini", provider="openai", effort=("low", "high"))
    arms = expand([card])
    assert [arm.arm for arm in arms] == ["gpt-5-mini", "gpt-5-mini#effort-low", "gpt-5-mini#effort-high"]
    assert [arm.variant and arm.variant.params for arm in arms][1:] == [
        {"reasoning_effort": "low"},
        {"reasoning_effort": "high"},
    ]
    assert expand(arms) == arms
    glm = expand([ModelCard(name="glm-4.6", provider="zhipu", effort=("none", "high"))])
    assert [arm.variant and arm.variant.params["thinking"]["type"] for arm in glm][1:] == ["disabled", "enabled"]
    for provider, effort, text in (
        ("openai", ("minimal", "low", "medium", "high", "max"), "at most 4 are allowed, levels of effort included"),
        ("openai", ("none", "minimal"), "is the same as another one"),
        ("mistral", ("low",), "needs reasoning_effort"),
    ):
        with pytest.raises(ConfigError, match=text):
            expand([ModelCard(name="gpt-5-mini", provider=provider, effort=effort)])


def test_a_requests_own_wish_restricts_the_efforts() -> None:
    """A request that names its effort excludes the other levels with the reason; a named arm is not excluded."""
    arms = expand([ModelCard(name="gpt-5-mini", provider="openai", effort=("low", "high"))])
    assert len(Roster(arms).eligible(Wants()).cards) == 3
    for params, left in (
        ({"reasoning_effort": "high"}, ["gpt-5-mini", "gpt-5-mini#effort-high"]),
        ({"reasoning_effort": "medium"}, ["gpt-5-mini"]),
        ({"reasoning": {"effort": "low"}}, ["gpt-5-mini", "gpt-5-mini#effort-low"]),
    ):
        found = Roster(arms).eligible(Wants(params=params))
        assert [card.arm for card in found.cards] == left
        assert all("effort: the request asks for" in reason for _, reason in found.excluded)
    named = Models(arms).names["gpt-5-mini#effort-low"]
    assert Roster([named]).eligible(Wants(params={"reasoning_effort": "high"})).cards


def test_hosts_are_arms_with_prices_of_their_own() -> None:
    """A model's further hosts are arms of their own provider, target and price; unknown providers are refused."""
    data = {
        "providers": {"p": {"kind": "simulated"}, "q": {"kind": "simulated"}},
        "models": [
            {
                "name": "m",
                "provider": "p",
                "prices": {"input": 1, "output": 2},
                "hosts": [{"name": "b", "provider": "q", "target": "m-b", "prices": {"input": 3, "output": 4}}],
            }
        ],
    }
    plain, host = expand(parse_config(data).cards())
    assert (plain.arm, plain.provider, plain.prices) == ("m", "p", Prices(input=1.0, output=2.0))
    assert (host.arm, host.provider, host.target) == ("m#host-b", "q", "m-b")
    assert (host.prices.input, host.prices.output) == (3.0, 4.0)
    data["models"][0]["hosts"][0]["provider"] = "gone"  # type: ignore[index]
    with pytest.raises(ConfigError, match="host 'b' of 'm' uses the unknown provider 'gone'"):
        parse_config(data)
    assert not config().models[0].hosts
