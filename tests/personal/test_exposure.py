"""Exposure and the price list: right where the truth is known, with intervals that cover."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.kits.replay import Town
from tests.kits.replay_story import RULES, write_folder, write_journal
from tests.personal.test_satisfaction import journalled

from fitrouter.plain import pack
from fitrouter.types import Decision, Erasure, Event, Floats, Identity, Score
from fitrouter_evaluators.personal.exposure import Exposure, exposed, exposure, price_list
from fitrouter_evaluators.personal.satisfaction import Satisfaction, measure_satisfaction
from fitrouter_integrations.commands.audits.exposure import command


def counted(rows: Sequence[tuple[Any, ...]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of `exposure` for (user, model, style or None) of each answer, in order."""
    n = Counter((user, model) for user, model, _ in rows)
    styled = [row for row in rows if row[2] is not None]
    users, models = ([row[i] for row in styled] for i in (0, 1))
    dimensions = {f"s{i}": np.array(each) for i, each in enumerate(zip(*(row[2] for row in styled), strict=True))}
    counts = {"person": [user for user, _ in n], "model": [model for _, model in n], "n": [*n.values()]}
    return (
        {name: np.array(each) for name, each in counts.items()},
        {"person": np.array(users), "model": np.array(models), **dimensions},
    )


def rated_of(rows: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    """The argument of `price_list` for (user, chosen, eligible, probs, blind, rest, mean, y) of each decision."""
    flat = [
        (i, user, y, model == chosen, p[k], mean[k], blind[k], rest[k] if rest else 0.0)
        for i, (user, chosen, eligible, p, blind, rest, mean, y) in enumerate(rows)
        for k, model in enumerate(eligible)
    ]
    names = ("seq", "person", "y", "drawn", "p", "mean", "blind", "rest")
    return {name: np.array(each) for name, each in zip(names, zip(*flat, strict=True), strict=True)}


def answers(seed: int, mixed: bool) -> list[tuple[Any, ...]]:
    """Twenty people get fifty answers each: of one model, or of two in turn whose style is far apart."""
    rng, found = np.random.default_rng(seed), []
    for u in range(20):
        for i in range(50):
            model = "ab"[i % 2] if mixed else "ab"[u % 2]
            found.append((f"u{u}", model, (rng.normal(size=4) + 3.0 * (model == "a")).tolist()))
    return found


def test_exposure_of_a_bubble_and_of_a_mixture() -> None:
    """One model each: a tenth of the answers is unusual; two models in turn: two in effect, and many are."""
    bubble, mixed = exposure(*counted(answers(1, False))), exposure(*counted(answers(1, True)))
    assert bubble.models == mixed.models == {"a": 0.5, "b": 0.5}
    assert bubble.models_each is not None
    assert mixed.models_each is not None
    assert (bubble.models_each.estimate, mixed.models_each.estimate) == (pytest.approx(1.0), pytest.approx(2.0))
    assert bubble.in_bubble is not None
    assert mixed.in_bubble is not None
    assert (bubble.in_bubble.estimate, mixed.in_bubble.estimate) == (1.0, 0.0)
    assert bubble.unusual is not None
    assert mixed.unusual is not None
    assert bubble.unusual.low <= 0.1 <= bubble.unusual.high
    assert mixed.unusual.low > 0.2
    assert exposure(*counted(answers(1, True)[:450])).models_each is None  # nine people
    few = [(f"v{u}", "b", None) for u in range(20) for _ in range(4)]  # people with four answers each
    assert exposure(*counted([*answers(1, True), *few])).models_each == mixed.models_each
    once = exposure(*counted([*answers(1, True), ("u0", "c", [99.0] * 4)]))  # no spread of a model is known from that
    assert once.unusual is not None
    assert once.unusual.estimate == pytest.approx(mixed.unusual.estimate, abs=0.01)


def test_prices_cover_the_truth() -> None:
    """Over forty simulated logs the 95% intervals of all prices cover; what is predicted badly costs no bias."""
    fit = np.array([[0.9, 0.4, 0.85], [0.3, 0.8, 0.75]])  # of two kinds of people
    rest = np.array([0.05, 0.05, 0.05])
    free = np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1]])
    blind = np.array([0.4, 0.3, 0.3])
    said = np.array([[0.7, 0.3, 0.65], [0.3, 0.7, 0.65]])  # predictions: third is near the first in both
    probs = (1.0 - rest.sum()) * free + rest
    third = np.array([0.0, 0.0, 1.0])

    def value(pmf: Floats) -> float:
        return float((np.broadcast_to(pmf, fit.shape) * fit).sum(axis=1).mean())

    truth = {
        "friction 0.1": 0.1 * (value(probs) - value(third)),
        "floor": value(free) - value(probs),
        "privacy 1": value(probs) - value(blind),
    }
    hits = dict.fromkeys(truth, 0)
    rows: list[tuple[Any, ...]] = []
    for seed in range(40):
        rng, rows = np.random.default_rng(seed), []
        for u in range(60):
            for _ in range(8):
                a = rng.choice(3, p=probs[u % 2])
                y = float(rng.random() < fit[u % 2, a])
                pmfs = (probs[u % 2].tolist(), blind.tolist(), rest.tolist(), said[u % 2].tolist())
                rows.append((f"u{u}", "abc"[a], ["a", "b", "c"], *pmfs, y))
        found = {price.name: price.cost for price in price_list(rated_of(rows))}
        for name in hits:
            hits[name] += bool(found[name].low <= truth[name] <= found[name].high)
    assert min(hits.values()) >= 35, hits
    assert price_list(rated_of(rows[:99])) == ()


def town(erased: str = "") -> list[Event]:
    """Requests of fifteen people with votes and scores; with `erased`, nothing of that person is left."""
    town, found = Town(seed=5, rules=RULES, votes=0.7, learns=False), list[Event]()
    for number in range(420):
        town.request(user=f"person-{number % 15}")
    rng = np.random.default_rng(1)
    for row in town.journal.tail(0, 10**9):
        found.append(row.event)
        if isinstance(event := row.event, Decision):
            h, common = pack(rng.normal(size=4)), {"ts": event.ts, "identity": event.identity}
            scored = {"decision_id": event.id, "served_by": event.chosen, "features": event.features, "status": "ok"}
            found.append(Score(id=f"s {event.id}", h=h, schema="style", mean=0.5, **scored, **common))  # type: ignore[arg-type]
    return [event for event in found if not erased or getattr(event, "identity", Identity()).user != erased]


@pytest.mark.parametrize("source", ["journal.db", "fitrouter.duckdb", ""])
def test_all_sources_give_the_same_figures_without_the_erased(source: str, tmp_path: Path) -> None:
    """A journal, a warehouse and a folder say what a log does in which the erased person never was."""
    events = [*town(), Erasure(id="e", ts=1e9, subject="person-3")]
    never = write_journal(tmp_path / "never.db", town("person-3"))
    write_folder(tmp_path, events)

    def figures(path: Path) -> tuple[Exposure, Satisfaction]:
        return (
            exposed(path, tenant="default", schema="style", style=[0, 2]),
            measure_satisfaction(path, None, tenant="default", now=1e9),
        )

    found = figures(tmp_path / source)
    assert found == figures(never)
    exposure_, satisfied = found
    assert (exposure_.people, satisfied.people) == (14, 14)
    assert satisfied.ratings > exposure_.units > 100
    assert exposure_.unusual is not None
    assert exposure_.prices


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`fitrouter audits exposure` prints the shares of the models and the figures, or the same as JSON."""
    journalled(tmp_path).close()
    config = tmp_path / "fitrouter.yaml"
    config.write_text(
        f"data: {tmp_path}\nproviders: {{s: {{kind: simulated}}}}\n"
        "models: [{name: a, provider: s}, {name: b, provider: s}]\n"
    )
    command(config=config, tenant="t")
    text = capsys.readouterr().out
    assert "100.0% of the answers" in text
    assert "people with one model only" in text
    command(config=config, tenant="t", out=True)
    assert json.loads(capsys.readouterr().out)["models"] == {"a": 1.0}
