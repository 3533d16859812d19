"""Metrics of one's own for a person or role: a weighted mean that scores begin with, in suites and boards."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.kits.suite import STYLES, install, says
from tests.personal.test_suite import known
from tests.scoring.test_reward_models import plain

from fitrouter.config import parse_config
from fitrouter.errors import ConfigError
from fitrouter.posterior.gaussian import Gaussian
from fitrouter.posterior.labels import Answered, Label
from fitrouter.posterior.tastes import TasteParams
from fitrouter.providers import Recorded
from fitrouter.router import Router
from fitrouter.state.learner import Learner
from fitrouter.types import FeedbackKind, Identity
from fitrouter_evaluators.personal import Leaderboards, PromptAnswers, Scores
from fitrouter_evaluators.personal.profile import Profiles
from fitrouter_evaluators.personal.profile.stated import declared
from fitrouter_evaluators.personal.scores import MEAN, metric_means
from fitrouter_evaluators.personal.suite import Generator, Ledger, Models, Runner, decoded, results
from fitrouter_evaluators.scoring.plugin import ScorerService
from fitrouter_integrations.commands._text import metric_lines
from fitrouter_integrations.commands.personal.suite import suite_table

UNIT = TasteParams().declared
NAMES = ("one", "warmth", "rm.a.score", "rm.b.score")


def broken(_prompt: str, _answer: str) -> float:
    """A metric that fails."""
    raise ValueError


ASKED: list[str] = []
"""Answers that the metric was asked for."""


def marks(_prompt: str, answer: str) -> float:
    """A metric: exclamation marks."""
    ASKED.append(answer)
    return float(answer.count("!"))


def metric(name: str, **settings: Any) -> dict[str, Any]:
    return {"name": name, "kind": "function", "function": f"{__name__}:marks", **settings}


def test_the_mean_is_weighted_by_what_counts_for_the_person() -> None:
    """Each metric has its mean, interval and number; the weighted mean leaves out what is missing, or counts 0."""
    h = np.array([[1.0, 9.0, 2.0, -1.0], [1.0, 9.0, 0.0, np.nan]])
    found = metric_means(NAMES, h, Gaussian(np.array([0.5, 7.0, 0.03, 0.01]), np.eye(4)))
    assert found.keys() == {MEAN, "rm.a.score", "rm.b.score"}
    assert found[MEAN].mean == pytest.approx(((0.03 * 2.0 - 0.01) / 0.04 + 0.0) / 2)
    assert (found["rm.a.score"].mean, found["rm.a.score"].answers) == (1.0, 2)
    assert (found["rm.b.score"].mean, found["rm.b.score"].answers) == (-1.0, 1)
    assert all(each.low < each.mean < each.high for each in found.values())
    assert MEAN not in metric_means(NAMES, h, Gaussian(np.zeros(4), np.eye(4)))
    assert metric_means(NAMES[:2], h[:, :2], Gaussian(np.zeros(2), np.eye(2))) == {}


def test_priorities_are_weights_of_metrics() -> None:
    """Those of metrics share one declared unit by their weights; those of other features scale a taste, as before."""
    found = declared({}, {"rm.a.score": 3.0, "rm.b.score": 1.0, "warmth": 2.0}, (), NAMES, np.array([0, 0.01, 0, 0]))
    assert found == pytest.approx({"rm.a.score": 0.75, "rm.b.score": 0.25, "warmth": 0.01 / UNIT})
    assert declared({}, {"rm.a.score": 0.0}, (), NAMES, np.zeros(4)) == {}
    alone = declared({"rm.a.score": -1.0}, {"rm.a.score": 1.0}, (), NAMES, np.zeros(4))
    assert alone["rm.a.score"] == pytest.approx(0.0)


def weighted(prior: str = "none", **weights: dict[str, float]) -> Learner:
    scorer = {"encoder": "hashing", "prior": prior, "models": [metric(n, weights=w) for n, w in weights.items()]}
    service = ScorerService(parse_config(plain() | {"scorer": scorer}).scorer)
    return Learner(2, service.dim, schema=service.schema, names=service.names, prior=service.prior)


def taste(learner: Learner, **who: str) -> list[float]:
    """What the metrics count for somebody before anybody voted."""
    columns = [j for j, name in enumerate(learner.names) if name.startswith("rm.")]
    return [float(sum(block.mean[j] for block in learner.heads(Identity(**who)))) for j in columns]


@pytest.mark.parametrize("prior", ["none", "shipped"])
def test_roles_begin_with_the_weights_of_the_configuration(prior: str) -> None:
    """A role's people, and everybody by `*`, are scored by the weighted mean before a vote; others by nothing of it."""
    learner = weighted(prior, a={"Senior Nurse": 3.0}, b={"Senior Nurse": 1.0, "*": 2.0})
    assert taste(learner) == pytest.approx([0.0, UNIT])
    a, b = taste(learner, role="senior_nurse")
    assert a > 0.3 * UNIT
    assert a == pytest.approx(3.0 * (b - UNIT))
    assert taste(learner, role="cook") == pytest.approx([0.0, UNIT])
    assert taste(learner, role="senior nurse", user="u") == pytest.approx([a, b], rel=0.1)
    assert learner.version != weighted(prior, a={"Senior Nurse": 2.0}, b={"Senior Nurse": 1.0, "*": 2.0}).version
    assert learner.version != weighted(prior, a={}, b={}).version


def test_a_role_learns_from_its_weights_on() -> None:
    """The first vote of a role keeps its weights, teaches that role of that tenant alone, and survives a snapshot."""
    learner = weighted(a={"nurse": 1.0})
    before, h = taste(learner, role="nurse"), np.zeros(len(learner.names))
    h[0], h[-1] = 1.0, 2.0
    who = Identity(tenant="t", role="nurse", user="u")
    for _ in range(30):
        label = Label(who, Answered("m", np.array([1.0, 0.0]), h), 0.0, FeedbackKind.RATING)
        learner.fit.tastes.meet(who)
        learner.fit.learn(label) if hasattr(learner.fit, "learn") else learner.fit.update(label)
    assert learner.fit.tastes.named("role", "t\x1fnurse") is not None
    assert sum(b.mean[-1] for b in learner.fit.heads(who)) < before[0]
    assert learner.fit.tastes.unmet(who).declared[-1] == pytest.approx(UNIT)
    assert learner.fit.tastes.unmet(who).labels == 0


def test_weights_are_of_metrics_only() -> None:
    """Models with weights of their own have several outputs, and are weighed by votes."""
    with pytest.raises(ConfigError, match="only judges and metrics"):
        parse_config(plain(weights={"*": 1.0}))


def test_metrics_in_suites_scores_and_leaderboards(tmp_path: Path) -> None:
    """One metric on all surfaces: a score shows it, a suite and a board have its mean by model, priorities weigh it."""
    scorer = {"encoder": "hashing", "prior": "none", "models": [metric("marks"), metric("again")]}
    scorer["models"].append(metric("broken", function=f"{__name__}:broken"))
    config = install(tmp_path, scorer=scorer)

    async def run() -> None:
        async with Router.from_config(config) as router:
            who = await known(router, "short and warm")
            [(lively, calm)] = await Scores(router).score(
                who, [PromptAnswers("?", (says("warm", 1), says("plain", 1)))]
            )
            assert lively.metrics["rm.marks.score"] > 0.5 > 0.0 > calm.metrics["rm.marks.score"]
            assert "rm.marks.score" not in lively.missing
            before = lively.dimensions["overall"].mean
            recorded = Recorded(tmp_path / "answers.jsonl")
            suite = decoded((await Generator(router).suite(who, recorded=recorded)).encoded())
            await Profiles(router).declare(who, priorities={"rm.marks.score": 2.0, "rm.again.score": 2.0})
            await router.settled()
            [(after,)] = await Scores(router).score(who, [PromptAnswers("?", (says("warm", 1),))])
            assert after.dimensions["overall"].mean > before or before == 1.0
            assert after.metrics[MEAN] == pytest.approx(after.metrics["rm.marks.score"])
            with Ledger(tmp_path / "calls.db") as ledger:
                models = Models({card.name: card for card in config.cards()}, {}, ledger, recorded=recorded)
                ASKED.clear()
                found = await Runner(router, models).run(suite, who, STYLES)
            assert len(ASKED) == 2 * len(STYLES) * found[0].answers, "both metrics, each answer once, whatever domains"
            assert found[0].domains
            ran = {each.model: each.metrics for each in results.decoded(results.encoded(found))}
            assert ran["warm"]["rm.marks.score"].low > ran["plain"]["rm.marks.score"].high
            assert ran["warm"][MEAN].mean == pytest.approx(ran["warm"]["rm.marks.score"].mean)
            assert ran["warm"]["rm.marks.score"].answers == found[0].answers
            assert any("rm.marks.score" in line and "warm" in line for line in suite_table(found))
            assert max(map(len, suite_table(found))) <= 80
            for _ in range(200):
                board = await Leaderboards(router, config).of(who)
                shown = {each.model: each.metrics for each in board.models}
                if shown["warm"]:
                    break
                await asyncio.sleep(0.05)
            assert shown["warm"]["rm.marks.score"].mean > shown["plain"]["rm.marks.score"].mean
            assert 5 <= shown["warm"]["rm.marks.score"].answers <= 10
            assert any("rm.marks.score" in line for line in metric_lines(board.models))
            assert board.unmeasured == ("rm.broken.score",)
            assert any("None of the latest answers has rm.broken.score" in each for each in board.sentences)

    asyncio.run(run())
