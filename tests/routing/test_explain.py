"""Laws of explanations: the numbers add up to what was logged, whatever was logged, and the words say what they do."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kits.learner import D_H, D_X, fold, story
from tests.kits.tables import table_driven

from fitrouter.plain import pack, unpack
from fitrouter.policies import Beliefs, SquareCB
from fitrouter.posterior.heads import HINGES
from fitrouter.posterior.mixture import EXPERTS
from fitrouter.posterior.model import Fit
from fitrouter.routing.decider import CurrentModel, Decider, Rules
from fitrouter.routing.explain import explain, grounds_by, terms_of
from fitrouter.routing.explanation import TERMS, Account, Explanation
from fitrouter.routing.explanation_text import FEATURES, LENGTH_FIT
from fitrouter.state.learner import Learner
from fitrouter.stores.journal import Row
from fitrouter.types import (
    Attempt,
    Decision,
    Execution,
    Feedback,
    FeedbackKind,
    Grounds,
    Identity,
    Mode,
    ModelCard,
    PolicyVersion,
    Prices,
    Score,
    decode_event,
    encode_event,
)

ANN = Identity(user="ann", role="Analyst", session="s")
NAMES = ("one", "length", "hedging", "latent_0")


def logged(fit: Fit, x: np.ndarray, names: tuple[str, ...] = ("a", "b"), **changes: Any) -> Decision:
    """A decision as the router would log it, over the fit as it stands."""
    payload = pack(x)
    seen = fit.estimate(ANN, unpack(payload), names, 5000.0)
    K = len(names)
    probs = tuple(float(p) for p in np.full(K, 1.0 / K))
    fields: dict[str, Any] = {
        "id": "d",
        "ts": 5000.0,
        "draw_id": "d",
        "identity": ANN,
        "mode": Mode.ONLINE,
        "eligible": names,
        "probs": probs,
        "chosen": names[0],
        "propensity": probs[0],
        "features": payload,
        "mean": tuple(seen.mean.tolist()),
        "sd": tuple(seen.sd.tolist()),
        "cost": tuple((0.001 * (1 + k)) for k in range(K)),
        "latency": tuple(seen.seconds.tolist()),
        "availability": tuple(seen.availability.tolist()),
        "floor": 0.05,
        "twin": probs,
        "policy": PolicyVersion(algorithm="squarecb"),
    }
    return Decision(**(fields | changes))


def learnt(seed: int = 0, n: int = 60) -> Learner:
    """What a random story taught."""
    return fold(story(seed, n), Learner(D_X, D_H, schema="test-1", names=NAMES))


def text_of(found: Explanation) -> str:
    return " ".join(found.sentences)


def by_arm(found: Explanation) -> dict[str, Account]:
    return {account.arm: account for account in found.models}


def sums(found: Explanation) -> None:
    """What must hold of every explanation."""
    for account in found.models:
        if account.utility is not None:
            assert sum(term.value for term in account.terms) == pytest.approx(account.utility, abs=1e-9)
        assert {term.name for term in account.terms} <= set(TERMS)
    if found.contrast is None:
        return
    models, contrast = by_arm(found), found.contrast
    assert models[contrast.rival].utility - models[contrast.arm].utility == pytest.approx(contrast.gap, abs=1e-9)
    terms = {term.name: term.value for term in contrast.terms}
    assert len(terms) == len(contrast.terms) <= 8
    assert sum(terms.values()) == pytest.approx(contrast.gap, abs=1e-9)
    if found.split:
        for block, name in (("population", "text"), ("user", "style")):
            total = sum(getattr(feature, block) for feature in contrast.features)
            assert total == pytest.approx(terms[name], abs=1e-9)


@settings(max_examples=20)
@given(
    seed=st.integers(0, 50),
    weights=st.tuples(*(st.floats(0.0, 3.0) for _ in range(3))),
    split=st.booleans(),
    more=st.integers(0, 1),
    switch=st.booleans(),
)
def test_the_terms_sum_to_the_utility(
    seed: int, weights: tuple[float, float, float], split: bool, more: int, switch: bool
) -> None:
    """Whatever was learnt, weighed and logged: at most eight terms sum to P(answers)·(fit − price − wait) − switch."""
    learner = learnt(seed % 3, 30)
    x = np.concatenate([[1.0], np.random.default_rng(seed).normal(size=D_X - 1) * 0.4])
    left = (0.0, 0.03, 0.03) if switch else ()
    cost, budget, latency = weights
    decision = logged(
        learner.fit,
        x,
        ("a", "b", "c"),
        cost_weight=cost,
        budget_weight=budget,
        budget_unit_usd=0.002,
        latency_weight=latency,
        switch=left,
    )
    if more:  # the fit of now is not the one that decided
        learner = fold(story(seed, 40), learner)
    found = explain([decision], learner.fit if split else None, cost_unit_usd=0.01, latency_unit_s=10.0)
    sums(found)
    for k, account in enumerate(found.models):
        price = cost * decision.cost[k] / 0.01 + budget * decision.cost[k] / 0.002
        mean = decision.mean[k] if not split else account.rating
        assert mean is not None
        assert more * split or mean == pytest.approx(decision.mean[k], abs=1e-9)
        worth = mean - price - latency * decision.latency[k] / 10.0
        expected = decision.availability[k] * worth - (left[k] if left else 0.0)
        assert account.utility == pytest.approx(expected, abs=1e-9)
    assert found.split is split


def test_the_parts_are_those_of_the_fit() -> None:
    """At the moment of the decision nothing is left over: each part is the fit's own to the rounding of float32."""
    learner = learnt()
    fit, x = learner.fit, np.array([1.0, 0.3, -0.2, 0.1, 0.4])
    decision = logged(fit, x)
    x = unpack(decision.features)
    found = explain([decision], fit)
    seen = fit.estimate(ANN, x, ("a", "b"), decision.ts)
    role = fit.tastes.role(ANN)
    user = fit.tastes.user(ANN)
    assert role is not None
    assert user is not None
    for k, arm in enumerate("ab"):
        parts = {term.name: term.value for term in found.models[k].terms}
        row = fit.arms.names[arm]
        h = np.einsum("dh,d->h", fit.arms.profile[row], x)
        role_only = fit.taste(msgspec.structs.replace(ANN, user=None))
        assert parts["text"] == pytest.approx(float(h @ fit.tastes.population.mean), abs=1e-7)
        c = fit.arms.correction[row]
        assert parts["model"] == pytest.approx(float(fit.widths.weights @ c @ x), abs=1e-7)
        assert parts["style"] == pytest.approx(float(h @ (fit.taste(ANN) - role_only)), abs=1e-7)
        of_role = float(role.deviation(role.weights_in("role", fit.mixture)).offsets([arm])[0])
        role_taste = float(h @ (role_only - fit.tastes.population.mean))
        assert parts["role"] == pytest.approx(role_taste + of_role, abs=1e-7)
        weights = fit.weights(ANN)
        own = float(user.deviation(weights).offsets([arm])[0]) - weights[0] * of_role
        assert parts["offset"] == pytest.approx(own, abs=1e-7)
        assert found.models[k].blind_fit == pytest.approx(float(seen.blind[k]), abs=1e-7)
    sums(found)


@pytest.mark.parametrize("personal", [True, False])
def test_the_utilities_are_those_that_the_policy_saw(personal: bool) -> None:
    """Given to the policy again, the explained utilities make the logged pmf: nothing that moved it is left out."""
    learner = learnt()
    rules = Rules(floor=0.0, newcomer_floor=0.0, cost_weight=0.4, latency_weight=0.2, personal=personal)
    decider = Decider(SquareCB(gamma=30.0), learner, rules)
    cards = [ModelCard(name=name, provider="p", prices=Prices(output=40.0 * (i + 1))) for i, name in enumerate("abc")]
    current = CurrentModel("b", {"a": 0.001, "c": 0.0})
    for held in (None, current):
        decision = decider.decide(str(uuid.UUID(int=5)), 5000.0, ANN, np.ones(D_X) * 0.4, cards, current=held)
        found = explain([decision], learner.fit, cost_unit_usd=0.01, latency_unit_s=10.0)
        sums(found)
        assert bool(decision.personal) is not personal
        utility = np.array([account.utility for account in found.models])
        sd = np.array(decision.availability) * np.array(decision.sd)
        beliefs = Beliefs(arms=decision.eligible, utility=utility, sd=sd, steps=float(learner.fit.labels))
        np.testing.assert_allclose(SquareCB(gamma=30.0).propose(beliefs), decision.probs, atol=1e-9)


def test_a_later_fit_explains_by_its_own_predictions() -> None:
    """A fit that has moved on predicts and splits by what it knows now; what was logged stands beside it."""
    learner = learnt()
    decision = logged(learner.fit, np.array([1.0, 0.3, -0.2, 0.1, 0.4]))
    later = fold(story(7, 80), learnt())
    found = explain([decision], later.fit)
    sums(found)
    seen = later.fit.estimate(ANN, unpack(decision.features), ("a", "b"), decision.ts)
    assert [account.rating for account in found.models] == pytest.approx(seen.mean.tolist(), abs=1e-6)
    assert max(abs(account.rating - account.fit) for account in found.models) > 1e-4
    assert [account.fit for account in found.models] == list(decision.mean)


def talkative() -> Fit:
    """`a` writes short, `b` long; everybody likes it a bit, Ann does not. Nothing else differs."""
    fit = Fit(1, 4, names=NAMES)
    for arm, length in (("a", -1.0), ("b", 1.0)):
        row = fit.arms.row(arm)
        fit.arms.profile[row, 0] = [1.0, length, 0.5, 0.1 * length]
    fit.tastes.population.mean = np.array([0.5, 0.02, 0.0, 0.0])
    fit.tastes.meet(ANN)
    user = fit.tastes.user(ANN)
    assert user is not None
    user.declare(np.array([0.0, -0.1, 0.0, 0.01]))
    user.weights["user"] = np.eye(len(EXPERTS))[1]
    return fit


def test_the_features_that_moved_the_personal_term_are_named() -> None:
    """Ann dislikes length: the answer that writes longer is behind, by so much, because of her and not of everybody."""
    found = explain([logged(talkative(), np.ones(1), availability=(1.0, 1.0))], talkative())
    sums(found)
    assert found.contrast is not None
    assert (found.contrast.arm, found.contrast.rival) == ("a", "b")
    length = found.contrast.features[0]
    assert (length.name, length.difference) == ("length", 2.0)
    assert (length.population, length.user) == (pytest.approx(0.04), pytest.approx(-0.2))
    assert "b is 0.16 behind because it writes longer than this user likes (−0.16)" in text_of(found)
    everybody = logged(talkative(), np.ones(1), identity=Identity(user="bob"), availability=(1.0, 1.0))
    seen = talkative().estimate(everybody.identity, np.ones(1), ("a", "b"), 5000.0)
    found = explain([msgspec.structs.replace(everybody, mean=tuple(seen.mean.tolist()))], talkative())
    sums(found)
    assert "b is 0.04 ahead because it writes longer, which people like (+0.04)" in text_of(found)


def test_price_wait_and_reliability_have_their_words() -> None:
    """Without a fit the sentence speaks of the fit as a whole, and of what is weighed against it."""
    decision = logged(
        talkative(),
        np.ones(1),
        mean=(0.7, 0.7),
        sd=(0.04, 0.04),
        cost=(0.001, 0.004),
        latency=(1.0, 3.0),
        availability=(0.9, 1.0),
        cost_weight=0.1,
        latency_weight=0.05,
    )
    found = explain([decision], cost_unit_usd=0.01, latency_unit_s=10.0)
    sums(found)
    assert "b is 0.028 ahead because it fails less often (+0.07), although it costs more (−0.03)" in text_of(found)
    assert "The highest is that of b" in text_of(found)
    assert found.explores
    assert found.leader == "b"
    unknown = explain([decision])
    assert unknown.missing == "the unit of the cost weight is not in the log"
    assert unknown.leader is None
    assert unknown.contrast is None
    assert unknown.missing in text_of(unknown)


@pytest.mark.parametrize("apart", [0.0, 3e-5])
def test_models_of_the_same_utility_are_told_as_the_same(apart: float) -> None:
    """Nobody is "0 ahead": what is alike is said to be, and what cancels out stands beside it."""
    decision = logged(talkative(), np.ones(1), mean=(0.7, 0.7 + apart), availability=(1.0, 1.0))
    assert "b has the same expected utility to four decimals." in text_of(explain([decision]))
    paid = {"cost": (0.001, 0.003), "cost_weight": 0.1, "cost_unit_usd": 0.01}
    text = text_of(explain([msgspec.structs.replace(decision, mean=(0.7, 0.72 + apart), **paid)]))
    assert "to four decimals, although it has a higher predicted rating (+0.02) and costs more (−0.02)." in text
    assert "ahead" not in text


def test_exploration_is_said() -> None:
    """What a greedy choice would not have done: the draw itself, everybody's share, newcomers, the rollout."""
    decision = logged(
        talkative(),
        np.ones(1),
        ("a", "b", "n"),
        probs=(0.1, 0.85, 0.05),
        propensity=0.1,
        mean=(0.5, 0.7, 0.4),
        twin=(0.4, 0.55, 0.05),
        floor=0.06,
        new=("n",),
        share=0.5,
    )
    found = explain([decision])
    assert found.explored == pytest.approx(0.15)
    assert found.floor_each == pytest.approx(0.02)
    text = text_of(found)
    assert "a was drawn with probability 10%; its expected utility is" in text
    assert "The highest is that of b with probability 85%. This draw explores" in text
    assert "Every model keeps a probability of at least 2.0% for exploration" in text
    assert "n is new and tried more often at first" in text
    assert "The policy routes a share of 50% of the traffic" in text
    assert "Without personalisation the probability would have been 40%." in text
    assert by_arm(found)["n"].new
    greedy = explain([msgspec.structs.replace(decision, chosen="b", propensity=0.85)])
    assert not greedy.explores
    assert "b was drawn with probability 85%. It has the highest expected utility" in text_of(greedy)


@table_driven(
    ("changes", "words"),
    [
        ({"mode": Mode.PINNED, "probs": (), "twin": (), "propensity": 1.0}, "The request named a; nothing was drawn"),
        ({"mode": Mode.FORCED, "probs": (), "twin": (), "propensity": 1.0}, "An operator forced a; nothing was drawn"),
        ({"mode": Mode.UNIFORM}, "from the uniform slice with probability 50%"),
        ({"mode": Mode.SHADOW, "share": 0.2}, "is the default model, which receives a share of 80% of the traffic"),
        ({"redraw": "failure", "switch": (0.0, 0.03)}, "The session's model was redrawn (failure)"),
        ({"switch": (0.0, 0.3), "redraw": "turns"}, "it costs more, counting a switch of the session's model (−0.30)"),
        ({"budget_weight": 0.5, "budget_unit_usd": 0.1}, "each cent costs 0.05 of predicted rating on top"),
        ({"excluded": (("c", "context: needs more"),)}, "c was excluded: context: needs more."),
        ({"candidates": {"bold": (0.25, 0.75)}}, "'bold' would have chosen a with probability 25%"),
        (
            {"personal": (0.9, 0.1)},
            "Personalisation is off here, by a setting or because it did not help; with it the probability would have",
        ),
    ],
)
def test_every_way_of_deciding_has_its_sentence(changes: dict[str, Any], words: str) -> None:
    """Pinned, forced, drawn again, short of money, excluded, in shadow: each is said, and still adds up."""
    fit = talkative()
    decision = logged(fit, np.ones(1), **changes)
    for known in (None, fit):
        found = explain([decode_event(encode_event(decision))], known)
        assert words in text_of(found)
        sums(found)


def test_shadow_says_what_would_have_been_drawn() -> None:
    """The default model took the request: the policy's own draw follows from the seed, with the probabilities."""
    decider = Decider(SquareCB(gamma=30.0), learnt(), Rules(share=0.0, default_arm="a", seed=3))
    whole = Decider(SquareCB(gamma=30.0), learnt(), Rules(seed=3))
    cards = [ModelCard(name=name, provider="p", prices=Prices(output=1.0)) for name in "abc"]
    would = set()
    for i in range(30):
        place = str(uuid.UUID(int=i + 1)), 5000.0, ANN, np.ones(D_X) * 0.4, cards
        decision, routed = decider.decide(*place), whole.decide(*place)
        found = explain([decode_event(encode_event(decision))])
        assert found.would == routed.chosen
        assert f"The policy would have drawn {routed.chosen} (probabilities: {routed.chosen}" in text_of(found)
        assert explain([routed]).would is None
        would.add(found.would)
    assert len(would) > 1


def test_a_turn_that_stayed_is_led_back_to_its_draw() -> None:
    """A sticky turn was not drawn: it says so, and what the draw's probability was where that is known."""
    draw = logged(talkative(), np.ones(1), propensity=0.3)
    turn = msgspec.structs.replace(draw, id="t", mode=Mode.STICKY, probs=(), twin=(), propensity=1.0)
    assert "The model comes from draw d." in text_of(explain([turn]))
    found = explain([turn, draw])
    assert "which chose it with probability 30%" in text_of(found)
    assert (found.drew, found.explores, found.explored) == (0.3, False, None)


def test_where_terms_are_switched_off_they_take_no_part() -> None:
    """The twin decided: what the logged fit has of people is left out of the sum, and what is left is the blind fit."""
    fit = talkative()
    decision = logged(fit, np.ones(1), personal=(0.9, 0.1), availability=(1.0, 1.0))
    found = explain([decision], fit)
    sums(found)
    for account in found.models:
        parts = {term.name: term.value for term in account.terms}
        assert parts["style"] == parts["offset"] == 0.0
        assert account.utility == pytest.approx(account.blind_fit, abs=1e-12)
    assert found.leader == "b"
    alone = explain([decision])
    assert alone.leader is None
    assert "the user-blind prediction that decided is not in the log" in text_of(alone)


def test_older_and_foreign_decisions_are_explained_as_far_as_they_go() -> None:
    """Fields that were not logged yet, or by a router that knew nothing: fewer numbers, no failure."""
    bare = Decision(
        id="d",
        ts=0.0,
        draw_id="d",
        identity=ANN,
        mode=Mode.ONLINE,
        eligible=("a", "b"),
        chosen="a",
        propensity=0.5,
        policy=PolicyVersion(algorithm="old"),
    )
    found = explain([bare], talkative())
    assert text_of(found) == "a was drawn with probability 50%."
    assert (found.leader, found.contrast, found.explored) == (None, None, None)
    foreign = logged(talkative(), np.ones(1), features=pack(np.ones(9)))
    found = explain([foreign], talkative())
    assert not found.split
    sums(found)
    pinned = msgspec.structs.replace(foreign, chosen="elsewhere", mode=Mode.PINNED)
    assert explain([pinned]).contrast is None
    alone = logged(talkative(), np.ones(1), ("a",), excluded=(("b", "x"),))
    assert explain([alone], talkative()).contrast is None


def test_who_answered_instead_is_said() -> None:
    """A fallback is part of the story."""
    decision = logged(talkative(), np.ones(1))
    execution = Execution(
        id="e",
        ts=5001.0,
        decision_id="d",
        identity=ANN,
        chosen="a",
        served_by="b",
        status="ok",
        attempts=(Attempt(model="a", probability=1.0, error="ProviderTimeout"), Attempt(model="b", probability=1.0)),
    )
    assert "a did not answer; b answered instead." in text_of(explain([decision, execution]))


def test_the_first_event_is_the_decision() -> None:
    """Anything else is a mistake of the caller."""
    score = Score(id="s", ts=0.0, decision_id="d", identity=ANN, served_by="a")
    with pytest.raises(TypeError, match="Score"):
        explain([score])
    with pytest.raises(TypeError):
        explain([])


def test_an_explanation_is_json() -> None:
    """It reads back as it was written."""
    found = explain([logged(talkative(), np.ones(1), new=("b",))], talkative())
    assert msgspec.json.decode(msgspec.json.encode(found), type=Explanation) == found
    assert str(found) == "\n".join(found.sentences)


def observed(fit: Fit, answers: tuple[int, ...], labels: tuple[int, ...], **changes: Any) -> Decision:
    """A decision with the grounds that a router logs."""
    decision = logged(fit, np.ones(1), **changes)
    grounds = grounds_by(fit, decision)
    assert grounds is not None
    return msgspec.structs.replace(decision, grounds=msgspec.structs.replace(grounds, answers=answers, labels=labels))


def votes(arm: str, ups: int, downs: int, after: int = 0) -> list[Row]:
    """Rows of Ann's votes on answers of a model."""
    rows = []
    for i, value in enumerate([1.0] * ups + [0.0] * downs):
        key, at = f"{arm}-{after + i}", after + 2 * i
        shared: dict[str, Any] = {"ts": 0.0, "decision_id": key, "identity": ANN}
        answer = Execution(id=f"e{key}", chosen=arm, served_by=arm, status="ok", **shared)
        vote = Feedback(id=f"f{key}", kind=FeedbackKind.RATING, value=1 + 4 * value, scale=(1.0, 5.0), **shared)
        rows += [Row(at + 1, answer), Row(at + 2, vote)]
    return rows


def test_the_evidence_is_what_the_person_did() -> None:
    """Counts are this person's own votes up to the position that the decision had folded; later ones are now's."""
    fit = talkative()
    decision = observed(fit, (40, 40), (9, 9), policy=PolicyVersion(algorithm="softmax", seq=100))
    history = votes("b", 2, 28) + votes("a", 10, 1, 60) + votes("a", 50, 0, 100)
    found = explain([decision], history=history)
    assert "This user had rated 10 of 11 answers of a up and 28 of 30 answers of b down." in text_of(found)
    assert (by_arm(found)["b"].votes_up, by_arm(found)["b"].votes_down) == (2, 28)
    assert by_arm(explain([decision], fit, history=history))["a"].votes == 61
    changed = [*votes("b", 1, 0), Row(9, msgspec.structs.replace(votes("b", 1, 0)[1].event, id="x", value=1.0))]
    assert "rated 1 of 1 answer of b down" in text_of(explain([decision], history=changed))
    assert "rated" not in text_of(explain([decision])).split("predicted rating")[0]


def test_the_logged_grounds_explain_without_a_model() -> None:
    """Terms and features of the log are those of the fit that decided, to 1e-4; they sum exactly."""
    fit = talkative()
    decision = decode_event(encode_event(observed(fit, (3, 3), (1, 1), availability=(1.0, 1.0))))
    assert isinstance(decision, Decision)
    then, now = explain([decision]), explain([decision], fit)
    sums(then)
    for one, other in zip(then.models, now.models, strict=True):
        assert one.rating == pytest.approx(other.rating, abs=1e-9)
        assert one.blind_fit == pytest.approx(other.blind_fit, abs=2e-4)
    assert then.contrast is not None
    assert then.contrast.features[0].name == "length"
    assert "b is 0.16 behind because it writes longer than this user likes (−0.16)" in text_of(then)
    assert decision.grounds is not None
    rows = terms_of(decision.grounds, np.array(decision.mean)).tolist()
    earlier = msgspec.structs.replace(decision.grounds, terms=tuple(map(tuple, rows)))  # with the correction
    assert explain([msgspec.structs.replace(decision, grounds=earlier)]) == then
    floats = pack(np.array(rows).ravel()), pack(np.array(decision.grounds.profile).T.ravel())
    stored = msgspec.structs.replace(decision.grounds, terms=(), summands=floats[0], profile=floats[1])
    before = decode_event(encode_event(msgspec.structs.replace(decision, grounds=stored)))  # by an earlier version
    assert text_of(explain([before])) == text_of(then)
    off = msgspec.structs.replace(decision, personal=(0.9, 0.1), grounds=grounds_by(fit, decision))
    assert explain([off]).leader is not None


def test_a_prior_is_never_told_as_an_observation() -> None:
    """Of a model that never answered nothing is said that only answers show; a model is not unreliable for resting."""
    fit = talkative()
    changes: dict[str, Any] = {"latency": (1.0, 2.0), "latency_weight": 0.3, "latency_unit_s": 10.0}
    unseen = observed(fit, (30, 0), (9, 0), availability=(0.99, 0.95), **changes)
    text = text_of(explain([unseen]))
    assert "it has not answered yet, so that its rating is assumed" in text
    for words in ("writes", "fails", "slower", "rated lower"):
        assert words not in text
    swapped = observed(fit, (0, 30), (0, 9), availability=(0.95, 0.99), **changes)
    assert "it has answered before, while the rating of a is assumed" in text_of(explain([swapped]))
    even = Grounds(terms=((0.7, 0.7), *[(0.0, 0.0)] * 5), answers=(30, 30), labels=(9, 9))
    resting = logged(fit, np.ones(1), mean=(0.7, 0.7), availability=(0.99, 0.95), grounds=even)
    assert "was called less lately, so that its answer is less certain" in text_of(explain([resting]))
    failing = msgspec.structs.replace(resting, availability=(0.99, 0.7))
    assert "fails more often" in text_of(explain([failing]))
    terms = ((0.5, 0.5), (0.0, 0.0), (0.0, 0.0), (0.2, 0.0), (0.0, 0.0), (0.2, 0.0))
    grounds = Grounds(terms=terms, answers=(30, 30), labels=(9, 0))
    silent = msgspec.structs.replace(failing, mean=(0.9, 0.5), availability=(1.0, 1.0), grounds=grounds)
    text = text_of(explain([silent], history=votes("a", 5, 0)[:0]))
    assert "has no ratings, while a is rated higher on similar prompts than its text suggests" in text
    heard = msgspec.structs.replace(silent, policy=PolicyVersion(algorithm="x", seq=100))
    assert "has no ratings by this user, who likes a more" in text_of(explain([heard], history=votes("a", 5, 0)))


def test_every_feature_with_a_name_has_words() -> None:
    """The scorer's features that a person can read are all in the table, and nothing else is."""
    from fitrouter.context.encoders import Hashing
    from fitrouter_evaluators.scoring import ResponseFeatures

    names = ResponseFeatures(Hashing()).names
    assert set(FEATURES) == {name for name in names if name not in {"one", *HINGES} and "latent_" not in name}


def test_what_everybody_thinks_of_length_is_one_reason() -> None:
    """Length and its hinges are a curve: `b` is longer, which Ann dislikes, and of a length that people like less."""
    fit = Fit(1, 5, names=("one", "length", *HINGES))
    for arm, profile in (("a", [1.0, -1.0, -1.0, -0.4, -0.1]), ("b", [1.0, 1.0, 0.9, 0.6, -0.1])):
        row = fit.arms.row(arm)
        fit.arms.profile[row, 0] = profile
    fit.tastes.population.mean = np.array([0.5, 0.1, -0.05, -0.2, 0.3])
    fit.tastes.meet(ANN)
    user = fit.tastes.user(ANN)
    assert user is not None
    user.declare(np.array([0.0, -0.1, 0.0, 0.0, 0.0]))
    user.weights["user"] = np.eye(len(EXPERTS))[1]
    found = explain([logged(fit, np.ones(1), availability=(1.0, 1.0))], fit)
    sums(found)
    assert found.contrast is not None
    parts = {feature.name: feature for feature in found.contrast.features}
    assert {name for name, part in parts.items() if abs(part.value) > 1e-6} == {"length", LENGTH_FIT}
    assert (parts["length"].population, parts["length"].user) == (0.0, pytest.approx(-0.2))
    assert parts[LENGTH_FIT].value == pytest.approx(2.0 * 0.1 - 1.9 * 0.05 - 1.0 * 0.2)
    said = text_of(found)
    assert "writes longer than this user likes" in said
    assert "has a length that people like less" in said
