"""The protocol on pairs: it finds a taste where there is one, and does no harm where there is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fitrouter.context.encoders import Static
from fitrouter_evaluators.bench import _pair_model as model
from fitrouter_evaluators.bench.pairs import ROWS, agreement_of_pairs, run_pairs
from fitrouter_evaluators.datasets import Pair, Text, write_jsonl
from fitrouter_evaluators.training.hierarchy import Observations

TOPICS = ("tea", "rain", "chess", "bread", "trams", "owls", "salt", "maps", "glass", "bees", "wool", "tides")


def short(topic: str, i: int) -> str:
    """An answer of one line."""
    return f"In short, {topic} number {i} is worth a look."


def long(topic: str, i: int) -> str:
    """An answer with a list."""
    points = "\n".join(f"- {topic} of kind {j} has its own place, and people who know it like it" for j in range(4))
    return f"There is much to say of {topic} number {i}.\n\n{points}\n\nThat is why {topic} matters."


def made(users: int, taste: float, seed: int = 0) -> list[Pair]:
    """Votes between a short and a long answer; each user leans to one of them, by ± taste in log odds."""
    rng = np.random.default_rng(seed)
    rows = []
    for user in range(users):
        lean = taste * (1.0 if user % 2 else -1.0)
        for i in range(36):
            topic, first = TOPICS[i % len(TOPICS)], bool(rng.integers(2))
            texts = (Text(long(topic, i), model="long"), Text(short(topic, i), model="short"))
            a, b = texts if first else texts[::-1]
            likes_long = rng.random() < 1.0 / (1.0 + np.exp(-lean))
            label = 0.5 if rng.random() < 0.1 else float(likes_long == first)
            rows.append(Pair(user=f"u{user}", prompt=f"Tell me of {topic}, part {i}.", a=a, b=b, label=label))
    return rows


def mean(found: dict[str, list[dict[str, float]]], row: str, k: int, metric: str) -> float:
    """One number of the results."""
    return next(r["mean"] for r in found["results"] if (r["row"], r["k"], r["metric"]) == (row, k, metric))


def test_a_taste_is_found_from_few_labels() -> None:
    """Where people differ, twenty labels lift the hierarchical row far above the global one, and most are helped."""
    found = run_pairs(made(30, 3.0), Static(), seeds=range(2))
    assert mean(found, "global", 0, "accuracy") < 0.65
    assert mean(found, "hierarchical", 20, "accuracy") > 0.85
    assert mean(found, "hierarchical", 20, "nll") < mean(found, "global", 0, "nll") - 0.2
    assert mean(found, "hierarchical", 20, "nll") < mean(found, "user-only", 20, "nll") + 0.02
    harm = next(h for h in found["no_harm"] if h["k"] == 20)
    assert harm["gain"] > 0.2
    assert harm["harmed"] <= harm["helped"] / 8.0
    assert harm["differ"] > 0.3


def test_no_taste_does_no_harm() -> None:
    """Where nobody differs, the hierarchical row stays with the global one."""
    found = run_pairs(made(24, 0.0), Static(), seeds=range(2))
    assert mean(found, "hierarchical", 20, "nll") < mean(found, "global", 0, "nll") + 0.03


def test_a_file_and_its_rows_give_the_same(tmp_path: Path) -> None:
    """The function takes a file or rows, counts bad lines, and is deterministic; all rows and k are there."""
    rows = made(12, 1.0)
    path = tmp_path / "pairs.jsonl"
    write_jsonl(path, rows)
    path.write_text(path.read_text(encoding="utf-8") + '{"user": "x"}\n', encoding="utf-8")
    options = {"ks": (0, 5), "seeds": (3,)}
    one, two = run_pairs(path, Static(), **options), run_pairs(rows, Static(), **options)
    assert (one.pop("problems"), two.pop("problems")) == (1, 0)
    assert one == two
    assert {(r["row"], r["k"]) for r in one["results"]} == {(row, k) for row in ROWS for k in (0, 5)} - {("global", 5)}
    assert one["routing"].keys() == {"global", "hierarchical"}


def test_without_identity_no_model_is_known() -> None:
    """Models' names that decide everything are of no use to a head that may not know them."""
    rows = []
    for row in made(12, 0.0):
        a, b = (Text("Same text.", model=text.model) for text in (row.a, row.b))
        rows.append(Pair(user=row.user, prompt=row.prompt, a=a, b=b, label=float(a.model == "long")))
    options = {"ks": (0,), "seeds": (0,), "shipped": False}
    assert mean(run_pairs(rows, Static(), **options), "global", 0, "accuracy") == 1.0
    blind = run_pairs(rows, Static(), identity=False, **options)
    assert mean(blind, "global", 0, "accuracy") < 0.7
    assert "routing" not in blind


def test_agreement_counts_pairs_of_judges() -> None:
    """Two of three judges say the same of one pair, whichever side it was shown on; a tie is a verdict of its own."""
    a, b = Text("One text about rivers."), Text("Another text about rivers.")
    rows = [
        Pair(user="u", prompt="p", a=a, b=b, label=1.0),
        Pair(user="v", prompt="p", a=b, b=a, label=0.0),
        Pair(user="w", prompt="p", a=a, b=b, label=0.0),
        Pair(user="x", prompt="p", a=a, b=b, label=0.5),
    ]
    found = agreement_of_pairs(model.observe(rows, [row.prompt for row in rows], Static(), shipped=False))
    assert found == {"decided": pytest.approx(1 / 3), "decided_pairs": 3, "with_ties": pytest.approx(1 / 6), "pairs": 6}


def test_three_ways_sum_to_one() -> None:
    """Davidson's tie is likeliest where the log odds are 0, and without ties it is the logistic model."""
    p = model.three_way(np.array([-2.0, 0.0, 2.0]), 1.0)
    assert p.sum(axis=1) == pytest.approx(1.0)
    assert p[:, 1].argmax() == 1
    assert p[0] == pytest.approx(p[2][::-1])
    assert model.three_way(np.array([1.0]), 1e-12)[0, 0] == pytest.approx(1.0 / (1.0 + np.exp(-1.0)))


def test_the_cautious_choice_needs_evidence() -> None:
    """Of people who are all alike the smallest spread is chosen; of people who differ, a larger one."""
    rng = np.random.default_rng(0)

    def people(spread: float) -> list[Observations]:
        out = []
        for _ in range(24):
            X = rng.standard_normal((30, 4))
            X[:, 0] = 1.0
            w = np.array([0.0, 1.0, 0.0, spread * rng.standard_normal()])
            out.append(Observations(X, (rng.random(30) < 1.0 / (1.0 + np.exp(-X @ w))).astype(np.float64)))
        return out

    candidates = model.shrinkages(4, 1)
    alike, apart = model.cautious(people(0.0), candidates), model.cautious(people(2.0), candidates)
    assert alike.cov[3, 3] < 0.01
    assert apart.cov[3, 3] > 0.5
