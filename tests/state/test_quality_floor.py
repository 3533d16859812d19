"""Quality floor: unreliable arms are excluded with a reason, after enough labels, and never all of them."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fitrouter.state.quality_floor import QualityFloor

ARMS = ("bad", "good", "new")
DAY = 86_400.0


def taught(
    rng: np.random.Generator, chances: dict[tuple[str, str], float], labels: int, ts: float = 1e9
) -> QualityFloor:
    layer = QualityFloor()
    for _ in range(labels):
        for (arm, cluster), chance in chances.items():
            layer.observe(arm, cluster, float(rng.random() < chance), ts)
    return layer


def test_an_unreliable_arm_is_excluded_with_a_reason() -> None:
    """P(ok) of .6 is below .9 and given in the reason; an arm without labels is not excluded."""
    layer = taught(np.random.default_rng(1), {("bad", "c"): 0.6, ("good", "c"): 0.97}, 200)
    (arm, reason), *others = layer.excluded(ARMS, "c", 0.1, 1e9)
    assert arm == "bad"
    assert not others
    assert reason.startswith("quality floor: P(ok) 0.")
    assert reason.endswith("below 0.900 in c")
    chances = layer.ok(ARMS, "c", 1e9)
    assert abs(chances[0] - 0.6) < 0.1
    assert abs(chances[1] - 0.97) < 0.05
    assert chances[0] < chances[2] < chances[1]  # the new one is like everybody


def test_clusters_are_separate() -> None:
    """An arm can be excluded in one cluster only; an unseen cluster has the arm's rate."""
    layer = taught(np.random.default_rng(2), {("a", "law"): 0.5, ("a", "code"): 0.99, ("b", "law"): 0.98}, 150)
    assert [arm for arm, _ in layer.excluded(("a", "b"), "law", 0.2, 1e9)] == ["a"]
    assert not layer.excluded(("a", "b"), "code", 0.2, 1e9)
    law, unseen, code = (float(layer.ok(("a",), cluster, 1e9)[0]) for cluster in ("law", "never seen", "code"))
    assert law < unseen < code


def test_one_arm_always_remains() -> None:
    """If all arms are below the bound, the best one stays and the reasons name it; δ = 1 excludes no arm."""
    layer = taught(np.random.default_rng(3), {("a", "c"): 0.3, ("b", "c"): 0.6}, 100)
    excluded = layer.excluded(("a", "b"), "c", 0.05, 1e9)
    assert [arm for arm, _ in excluded] == ["a"]
    assert "; b stays, the best with 0." in excluded[0][1]
    assert not layer.excluded(("a", "b"), "c", 1.0, 1e9)
    assert not layer.excluded((), "c", 0.05, 1e9)
    assert not layer.excluded(("a",), "c", 0.05, 1e9)


def test_a_few_bad_labels_do_not_exclude() -> None:
    """Two bad labels are too few; counts decay, so that an excluded arm is tried again."""
    layer = QualityFloor()
    for _ in range(2):
        layer.observe("a", "c", 0.0, 1e9)
    assert not layer.excluded(("a", "b"), "c", 0.05, 1e9)
    for _ in range(30):
        layer.observe("a", "c", 0.2, 1e9)
    assert layer.excluded(("a", "b"), "c", 0.05, 1e9)
    assert not layer.excluded(("a", "b"), "c", 0.05, 1e9 + 150 * DAY)


def test_a_late_label_counts_once() -> None:
    """Times may be out of order: what is known already neither decays nor grows by it."""
    late, punctual = QualityFloor(), QualityFloor()
    for layer, ts in ((late, 1e9 - 90 * DAY), (punctual, 1e9)):
        layer.observe("a", "c", 0.0, 1e9)
        layer.observe("a", "c", 1.0, ts)
    assert late.ok(("a",), "c", 1e9) == pytest.approx(punctual.ok(("a",), "c", 1e9))


def test_nan_is_skipped() -> None:
    """NaN changes nothing; ½ is ok."""
    layer = QualityFloor()
    blank = layer.dump()
    layer.observe("a", "c", math.nan)
    layer.observe("a", "c", 1.0, math.inf)
    assert layer.dump() == blank
    layer.observe("a", "c", 0.5)
    assert layer.ok(("a",), "c")[0] > 0.95


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.booleans(), st.floats(0, 1e7)), max_size=60),
    st.floats(0.0, 1.0),
)
def test_probabilities_and_exact_state(labels: list[tuple[str, str, bool, float]], delta: float) -> None:
    """P(ok) is in (0, 1); an arm remains; a restored state continues bit for bit."""
    one, two = QualityFloor(), QualityFloor()
    for arm, cluster, ok, ts in labels:
        one.observe(arm, cluster, float(ok), ts)
    chances = one.ok(tuple("abcd"), "x", 2e7)
    assert ((chances > 0.0) & (chances < 1.0)).all()
    assert len(one.excluded(tuple("abcd"), "x", delta, 2e7)) < 4
    assert two.load(one.dump())
    for layer in (one, two):
        layer.observe("a", "z", 1.0, 3e7)
    assert one.dump() == two.dump()


@pytest.mark.parametrize("spoil", ["negative", "nan", "orphan", "twice"])
def test_corruption_is_rejected(spoil: str) -> None:
    """Invalid bytes change nothing."""
    layer = taught(np.random.default_rng(4), {("a", "c"): 0.5, ("b", "c"): 0.9}, 5)
    payload = layer.dump()
    stored = msgspec.msgpack.decode(payload)
    match spoil:
        case "negative":
            stored[0][0] = -1.0
        case "nan":
            stored[2][0][2][1] = math.nan
        case "orphan":
            stored[2][0][0] = "ghost"
        case _:
            stored[1].append(stored[1][0])
    assert not layer.load(msgspec.msgpack.encode(stored))
    assert not layer.load(payload[:-1])
    assert layer.dump() == payload
