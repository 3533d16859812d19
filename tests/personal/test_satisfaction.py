"""Satisfaction: right in worlds whose truth is known, with intervals that cover, and nothing of one person."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from fitrouter.stores.journal import Entry, SqliteJournal
from fitrouter.types import Decision, Execution, Feedback, FeedbackKind, Identity, Mode, PolicyVersion
from fitrouter_evaluators.personal.satisfaction import (
    DEPARTED_S,
    Satisfaction,
    measure_satisfaction,
    ratings,
    satisfaction_of,
)
from fitrouter_integrations.commands.audits.satisfaction import command

DAY = 86400.0
Row = tuple[Any, ...]


def world(seed: int, people: int = 120, each: int = 30) -> tuple[list[Row], dict[str, float], dict[str, float]]:
    """Ratings of a simulated installation, the rarity of each person, and the truth.

    A third likes model a, a third b, a third neither much; model a is best on average. Routing gives people what they
    like more, except for a tenth, to whom it does the opposite.
    """
    rng = np.random.default_rng(seed)
    rows, rare = [], {}
    own, single = np.zeros(people), np.zeros(people)
    for u in range(people):
        likes = {"a": 0.9, "b": 0.3} if u % 3 == 0 else {"a": 0.4, "b": 0.8} if u % 3 == 1 else {"a": 0.55, "b": 0.35}
        better = max(likes, key=lambda name: likes[name])
        if u % 10 == 0:
            better = "b" if better == "a" else "a"
        p = {name: 0.8 if name == better else 0.2 for name in likes}
        own[u], single[u] = sum(p[name] * likes[name] for name in p), likes["a"]
        rare[f"u{u}"] = float(u % 3) + rng.uniform(0.0, 0.5)
        gone = u % 4 == 3
        for i in range(each if u % 2 else 3 * each):
            chosen = "a" if rng.random() < p["a"] else "b"
            y = float(rng.random() < likes[chosen])
            role = ("clerk", "nurse", "cook")[u % 3]
            rows.append((f"u{u}", role, y, 40 * DAY + i if not gone else i, chosen, ["a", "b"], [p["a"], p["b"]], True))
    truth = {
        "mean": own.mean(),
        "variance": own.var(ddof=1),
        "cvar10": np.sort(own)[: people // 10].mean(),
        "worst_role": min(own[k::3].mean() for k in range(3)),
        "worse_off": (own < single - 1e-9).mean(),
        "rare_gap": own[2::3].mean() - own[0::3].mean(),
    }
    return rows, rare, truth


def found_in(rows: Sequence[Row], rare: dict[str, float], now: float) -> Satisfaction:
    """What follows from (user, role, y, ts, chosen, eligible, probs, whether the answer is that of the draw) each."""
    with duckdb.connect() as connection:
        connection.execute(
            'CREATE TABLE rated (seq BIGINT, "user" VARCHAR, role VARCHAR, y DOUBLE, ts DOUBLE, chosen VARCHAR, '
            "eligible VARCHAR[], probs DOUBLE[], plain BOOLEAN)"
        )
        appender = connection.appender("rated")
        appender.append_rows([(seq, *row) for seq, row in enumerate(rows)])
        appender.flush()
        return satisfaction_of(ratings(connection), rare, now=now)


def test_figures_cover_the_truth() -> None:
    """Over twenty simulated logs, the 95% intervals of all six figures cover, and lie around their estimates."""
    hits = dict.fromkeys(("mean", "variance", "cvar10", "worst_role", "worse_off", "rare_gap"), 0)
    for seed in range(20):
        rows, rare, truth = world(seed)
        found = found_in(rows, rare, now=41 * DAY)
        assert found.best_single == "a"
        for name in hits:
            value = getattr(found, name)
            assert value.low <= value.estimate <= value.high
            hits[name] += bool(value.low <= truth[name] <= value.high)
    assert min(hits.values()) >= 17, hits


def test_people_count_once_and_those_who_left_count_on() -> None:
    """Mean and worst role are of people, not of ratings; who left long ago is in every figure and in a group."""
    rows, rare, _ = world(1)
    found = found_in(rows, rare, now=40 * DAY + DEPARTED_S)
    assert found.people == 120
    assert found.departed is not None
    assert found.departed.people == 30
    assert found.worst_role_name == "cook"
    assert [group.name for group in found.rarity] == ["common", "between", "rare"]
    mean = np.mean([np.mean([row[2] for row in rows if row[0] == f"u{u}"]) for u in range(120)])
    assert found.mean is not None
    assert found.mean.estimate == pytest.approx(mean)
    assert any("rare tastes are served worse" in sentence for sentence in found.sentences)


def test_little_says_nothing_of_anybody() -> None:
    """Nine people have no figures; a role of four has none; a log without draws names no best single model."""
    nothing = found_in([], {}, now=0.0)
    assert (nothing.mean, nothing.sentences) == (None, ("Nobody has rated yet.",))
    few = [(f"u{i % 9}", "cook", 1.0, 0.0, "a", ["a"], [1.0], True) for i in range(500)]
    assert found_in(few, {}, now=0.0).mean is None
    rows = [(f"u{i % 20}", "cook" if i % 20 < 4 else "nurse", i % 2, 0.0, "a", ["a"], [1.0], False) for i in range(400)]
    found = found_in(rows, {}, now=0.0)
    assert [group.name for group in found.roles] == ["nurse"]
    assert not any("The role" in sentence for sentence in found.sentences), "one role is not worse than itself"
    assert (found.best_single, found.worse_off, found.rare_gap) == ("", None, None)
    few = [(f"u{i % 20}", "", 0.4, 0.0, "ab"[i >= 30], ["a", "b"], [0.5, 0.5], True) for i in range(59)]
    assert found_in(few, {}, now=0.0).best_single == "a"
    assert found_in([*few, (*few[-1][:2], 1.0, *few[-1][3:])], {}, now=0.0).best_single == "b"


def test_people_without_a_role_are_in_no_group() -> None:
    """They count in the mean, and the interval of a role that others have is the same as without them."""
    nurses = [(f"u{i % 20}", "nurse", i % 2, 0.0, "a", ["a"], [1.0], True) for i in range(400)]
    others = [(f"v{i % 20}", None, 1.0, 0.0, "a", ["a"], [1.0], True) for i in range(400)]
    found = found_in(nurses + others, {}, now=0.0)
    assert (found.people, found.roles) == (40, found_in(nurses, {}, now=0.0).roles)


def test_a_difference_stays_on_its_scale() -> None:
    """Between people of common and of rare tastes it is from −1 to 1, and so is its interval."""
    for rarest, bounds in ((1.0, (0.0, 1.0)), (0.0, (-1.0, 0.0))):
        rows = [
            (f"u{u}", "", rarest if u >= 10 else 0.5 if u >= 5 else 1.0 - rarest, 0.0, "a", ["a"], [1.0], True)
            for u in range(15)
        ]
        gap = found_in(rows, {f"u{u}": float(u) for u in range(15)}, now=0.0).rare_gap
        assert gap is not None
        assert bounds[0] <= gap.low < gap.high <= bounds[1]


def test_a_best_single_model_without_a_comparison() -> None:
    """Thirty draws show which model is best, but not how many of thirty people it would serve better."""
    rows = [(f"u{i}", "", 0.5, 0.0, "a", ["a", "b"], [0.5, 0.5], True) for i in range(30)]
    found = found_in(rows, {}, now=0.0)
    assert (found.best_single, found.worse_off) == ("a", None)
    assert any("is not known from their ratings" in sentence for sentence in found.sentences)


def journalled(folder: Path) -> SqliteJournal:
    """A journal of 240 decisions for 24 people of two tenants, each rated down and then up."""
    journal = SqliteJournal(folder / "journal.db")
    policy = PolicyVersion(algorithm="squarecb")
    for i in range(240):
        who = Identity(tenant="t" if i % 2 else "other", user=f"u{i % 24}", role="cook")
        common: dict[str, Any] = {"ts": float(i), "identity": who}
        drawn: dict[str, Any] = {"mode": Mode.ONLINE, "eligible": ("a", "b"), "probs": (0.5, 0.5), "propensity": 0.5}
        vote: dict[str, Any] = {"decision_id": f"d{i}", "kind": FeedbackKind.THUMB, **common}
        events = (
            Decision(id=f"d{i}", draw_id=f"d{i}", chosen="a", policy=policy, **drawn, **common),
            Execution(id=f"e{i}", decision_id=f"d{i}", chosen="a", served_by="a", status="ok", **common),
            Feedback(id=f"f{i}", value=0.0, **vote),
            Feedback(id=f"g{i}", value=1.0, **vote),
        )
        journal.append(*map(Entry, events)).result()
    return journal


def test_a_journal_is_read(tmp_path: Path) -> None:
    """The last rating of a decision counts, of the tenant that is asked for, while the journal is open elsewhere."""
    journal = journalled(tmp_path)
    found = measure_satisfaction(tmp_path, None, tenant="t", now=300.0)
    assert isinstance(found, Satisfaction)
    assert (found.people, found.ratings) == (12, 120)
    assert found.mean is not None
    assert found.mean.estimate == 1.0
    journal.close()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`fitrouter audits satisfaction` prints all four figures with intervals, or the same as JSON."""
    journalled(tmp_path).close()
    config = tmp_path / "fitrouter.yaml"
    config.write_text(
        f"data: {tmp_path}\nproviders: {{s: {{kind: simulated}}}}\n"
        "models: [{name: a, provider: s}, {name: b, provider: s}]\n"
    )
    command(config=config, tenant="t")
    text = capsys.readouterr().out
    for words in ("12 people, 120 ratings", "mean of people", "worst role", "12 people: no interval of the variance"):
        assert words in text
    command(config=config, tenant="t", out=True)
    found = json.loads(capsys.readouterr().out)
    assert found["object"] == "fitrouter.satisfaction"
    assert found["mean"]["low"] <= found["mean"]["estimate"] <= found["mean"]["high"]
    assert found["cvar10"] is None
