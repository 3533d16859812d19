"""Leaderboards: order, intervals, claims, roles, and the words for them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb
import msgspec
import numpy as np
import pytest
from tests.kits.gateway import cards, make_router, wait_for
from tests.kits.quiz import install
from tests.kits.tables import table_driven
from tests.personal.test_quizzes import ANN, finish, played
from tests.posterior.test_person_draws import ARMS, D, X, fitted, votes

from fitrouter.config import Config, load_config
from fitrouter.errors import AllModelsFailed, InvalidRequest, StoreError
from fitrouter.posterior.draws import Draws, draw_posterior, draw_ratings, ratings_of
from fitrouter.posterior.gaussian import Gaussian
from fitrouter.posterior.labels import Answered, Label
from fitrouter.posterior.likelihoods import SIGNALS
from fitrouter.posterior.person_draws import PersonPosterior, draw_person, draw_person_ratings
from fitrouter.router import Router
from fitrouter.routing.variants import expand
from fitrouter.types import FeedbackKind, Identity, Request, Variant
from fitrouter_evaluators.personal import Leaderboards, Profiles, Quizzes, Reports, leaderboard
from fitrouter_evaluators.personal.leaderboard import ranked
from fitrouter_evaluators.personal.reasons import SHARED, split


async def copied(router: Router) -> None:
    """Wait until every answer is scored and every event is in the warehouse."""
    await asyncio.to_thread(wait_for, lambda: not ((lag := router.status().lag).scorer_answers or lag.warehouse_events))
    await router.settled()


def test_standings_read_the_joint_draws() -> None:
    """Ranks, intervals and probabilities of draws whose truth is known; what all models share cancels in the lead."""
    rng = np.random.default_rng(1)
    shared = rng.normal(0.0, 0.05, (4000, 1))
    own = shared + np.array([0.5, 0.7, 0.4]) + rng.normal(0.0, 0.01, (4000, 3))
    common = shared + np.array([0.6, 0.5, 0.4])
    found = ranked(("a", "b", "c"), own, common)
    assert [(each.model, each.rank, each.population_rank) for each in found] == [("b", 1, 2), ("a", 2, 1), ("c", 3, 3)]
    assert found[0].best == 1.0
    assert found[0].high - found[0].low == pytest.approx(2 * 1.2816 * 0.05, rel=0.07)
    assert found[0].lead_high - found[0].lead_low == pytest.approx(2 * 1.2816 * 0.01 * np.sqrt(2 / 3), rel=0.1)


def test_intervals_cover_in_a_simulated_world() -> None:
    """80% intervals of ratings and of leads cover 80 ± 5% of people who vary as a new installation assumes."""
    fit, noise = fitted(400), SIGNALS[FeedbackKind.THUMB].noise
    for arm in ARMS * 500:  # so that the models' own style is known
        fit.arms.observe_response(fit.arms.row(arm), X, np.eye(D)[0])
    found = fit.arms.find(ARMS)
    profile = fit.arms.read(found, X, fit.widths.weights).profile
    hits: list[tuple[bool, bool]] = []
    for person in range(300):
        rng, nobody = np.random.default_rng([7, person]), PersonPosterior(fit, ANN, [], ARMS, X)
        (taste,), (level,) = nobody.draw(1, [8, person])
        known = level + np.array([nobody.correction(arm, X) for arm in ARMS])
        said = []
        for i in range(12):
            h = np.array([1.0, *rng.normal(size=D - 1)])
            y = float(h @ taste + known[i % 2] + rng.normal() * np.sqrt(noise))
            said.append(Label(ANN, Answered(ARMS[i % 2], X, h), y, FeedbackKind.THUMB))
        own = draw_person_ratings(fit, ANN, said, X[None], ARMS, 400, [9, person])
        truth = dict(zip(ARMS, (profile @ taste + known).tolist(), strict=True))
        mean = sum(truth.values()) / len(truth)
        hits += [
            (
                each.low <= min(max(truth[each.model], 0.0), 1.0) <= each.high,
                each.lead_low <= truth[each.model] - mean <= each.lead_high,
            )
            for each in ranked(ARMS, own.ratings, own.ratings)
        ]
    assert np.abs(np.mean(hits, axis=0) - 0.8).max() <= 0.05


def test_a_persons_leaderboard(tmp_path: Path) -> None:
    """A quiz for short answers puts the brief model first; every number is finite; a stranger's says that it is one."""

    async def test(router: Router, quizzes: Quizzes, config: Config) -> None:
        boards = Leaderboards(router, config)
        stranger = await boards.of(ANN)
        assert stranger.sentences[-1] == "No feedback is known: this is a stranger's ranking."
        assert not stranger.claimed
        assert stranger.tasks == 0
        await finish(quizzes, await quizzes.start(ANN))
        await copied(router)
        found = await boards.of(ANN)
        assert found.first == "brief"
        assert found.tasks == 0, "no question of a quiz is a request"
        assert found.prompts > 0
        assert found.labels > 0
        assert [each.rank for each in found.models] == [1, 2, 3]
        assert {each.population_rank for each in found.models} == {1, 2, 3}
        assert sum(each.best for each in found.models) == pytest.approx(1.0)
        for each in found.models:
            assert each.low <= each.rating <= each.high
            assert each.lead_low <= each.lead <= each.lead_high
        assert found.claimed is (found.beats >= 0.8)

    played(install(tmp_path), test)


def test_without_requests_models_are_ranked_for_the_recorded_answers(tmp_path: Path) -> None:
    """What they wrote there counts, not the quiz's short questions; a request of theirs counts instead."""
    asked = Request(messages=({"role": "user", "content": "What about 1?"},), identity=ANN, model="brief")

    async def test(router: Router, quizzes: Quizzes, config: Config) -> None:
        await finish(quizzes, await quizzes.start(ANN))
        await copied(router)
        pool, who = quizzes.pool(), await router.people.recall(ANN)
        reports = Reports(router, config)
        assert reports.boards._pool is reports._quizzes.pool, "it takes seconds to read, once for both"
        board, names, own, _ = Leaderboards(router, config).drawn(who, ANN)
        assert (board.tasks, board.prompts) == (0, int(pool.typical.sum()))
        for k, name in enumerate(names):
            seen = np.nan_to_num(pool.h[pool.typical, pool.models.index(name)]).mean(axis=0)
            np.testing.assert_allclose(own.profile[k, : len(seen)], seen)
        await router.complete(asked)
        for _ in range(200):  # a slow disk commits after the answer
            await copied(router)
            board, _, after, _ = Leaderboards(router, config).drawn(who, ANN)
            if board.tasks:
                break
            await asyncio.sleep(0.05)
        assert (board.tasks, board.prompts) == (1, 0)
        assert not np.allclose(after.profile, own.profile)

    played(install(tmp_path), test)


def test_a_place_says_which_votes_it_rests_on(tmp_path: Path) -> None:
    """Own votes, other people's, none although it has answered, or never an answer; aloud of the first."""
    asked = Request(messages=({"role": "user", "content": "What about 1?"},), identity=ANN, model="brief")

    async def test(router: Router, _quizzes: Quizzes, config: Config) -> None:
        boards, bob = Leaderboards(router, config), Identity(user="bob")

        async def bases(who: Identity) -> dict[str, str]:
            await copied(router)
            return {each.model: each.basis for each in (await boards.of(who)).models}

        assert await bases(ANN) == dict.fromkeys(("brief", "listing", "long"), "prior")
        found = await boards.of(ANN)
        assert f"{found.first} has never answered here" in found.sentences[1]
        decision = (await router.complete(asked)).decision.id
        assert (await bases(ANN))["brief"] == "answers"
        await router.feedback(decision, FeedbackKind.THUMB, 1.0, identity=ANN)
        assert await bases(ANN) == {"brief": "own"}
        assert await bases(bob) == {"brief": "others"}
        said = (await Reports(router, config).of(bob)).change
        assert said[0] == "brief is the only model that has answered; ask another one to compare it with."

    played(install(tmp_path), test)


def test_a_model_that_never_answered_is_not_ranked(tmp_path: Path) -> None:
    """Where others have: one sentence names it, and no place, probability, difference or gain is of it."""
    file = install(tmp_path)
    dead = "  d: {kind: simulated, options: {ghost: {failure: 1.0}}}\nmodels:\n  - {name: ghost, provider: d}"
    file.write_text(file.read_text().replace("models:", dead).replace("  - {name: listing, provider: r}\n", ""))

    async def test(router: Router, _quizzes: Quizzes, config: Config) -> None:
        for model in ("brief", "long", "ghost"):
            asked = Request(messages=({"role": "user", "content": "What about 1?"},), identity=ANN, model=model)
            with pytest.raises(AllModelsFailed) if model == "ghost" else nullcontext() as failed:
                decision = (await router.complete(asked)).decision.id
            decision = failed.value.decision_id if failed else decision
            await router.feedback(decision, FeedbackKind.THUMB, 0.0, identity=ANN)
        await copied(router)
        report = await Reports(router, config).of(ANN)
        board = report.board
        assert board.unranked == ("ghost",)
        assert {each.model: each.basis for each in board.models} == {"brief": "own", "long": "own"}
        assert {each.population_rank for each in board.models} == {1, 2}
        assert sum(each.best for each in board.models) == pytest.approx(1.0)
        never = "ghost has never answered here, so it is not ranked."
        assert [each for each in board.sentences if "ghost" in each] == [never]
        others = tuple(each for each in board.sentences if each != never)
        board = msgspec.structs.replace(board, sentences=others, unranked=())
        assert "ghost" not in str(msgspec.structs.replace(report, board=board))  # first, gain, reasons, change

    played(file, test)


def test_without_a_warehouse_nobody_has_voted(tmp_path: Path) -> None:
    """A router that keeps no tables has a stranger's ranking for everybody."""
    config = load_config(install(tmp_path))

    async def test() -> None:
        async with make_router(tmp_path) as router:
            assert router.warehouse is None
            found = await Leaderboards(router, config).of(ANN)
            assert (found.labels, found.tasks, found.claimed) == (0, 0, False)
            assert found.sentences[-1] == "No feedback is known: this is a stranger's ranking."

    asyncio.run(test())


def test_a_warehouse_that_is_not_there_is_no_log_without_votes(tmp_path: Path) -> None:
    """Leaderboard, report and profile say so while it is made anew; before a vote they are a stranger's."""
    config = load_config(install(tmp_path))

    async def test() -> None:
        async with Router.from_config(config) as router:
            assert (await Leaderboards(router, config).of(ANN)).labels == 0
            asked = Request(messages=({"role": "user", "content": "What about 1?"},), identity=ANN)
            decision = (await router.complete(asked)).decision.id
            await router.feedback(decision, FeedbackKind.THUMB, 1.0, identity=ANN)
            await asyncio.to_thread(wait_for, lambda: (it := router.status()).labels and not it.lag.warehouse_events)
        (config.data / "fitrouter.duckdb").unlink()
        with Router.offline(config) as router:
            for read in (Leaderboards(router, config).of, Reports(router, config).of, Profiles(router).show):
                with pytest.raises(StoreError, match="in no table yet; a running gateway copies them"):
                    await read(ANN)

    asyncio.run(test())


def test_a_variant_is_no_model_of_its_own(tmp_path: Path) -> None:
    """Each model has one place, however many ways of asking it there are."""
    terse = msgspec.structs.replace(cards(["alpha"])[0], variants=(Variant(name="terse", prefix="Be brief."),))

    config = load_config(install(tmp_path))

    async def test() -> None:
        async with make_router(tmp_path, models=expand([terse, *cards(["beta"])])) as router:
            assert len(router.models) == 3
            found = await Leaderboards(router, config).of(ANN)
            assert sorted(each.model for each in found.models) == ["alpha", "beta"]

    asyncio.run(test())


def test_opposite_votes_make_opposite_boards(tmp_path: Path) -> None:
    """Whoever prefers short answers has the brief model first, whoever prefers long ones the long one."""

    async def test(router: Router, quizzes: Quizzes, config: Config) -> None:
        short, long = Identity(user="short"), Identity(user="long")
        await finish(quizzes, await quizzes.start(short), short)
        progress = await quizzes.start(long)
        while progress.question is not None:
            longer = len(progress.question.second) > len(progress.question.first)
            number = progress.question.number
            progress = await quizzes.answer(progress.id, long, number, "second" if longer else "first")
        await copied(router)
        boards, profiles = Leaderboards(router, config), Profiles(router)
        for who, first in ((short, "brief"), (long, "long")):
            board = await boards.of(who)
            assert board.first == first
            assert board.models[0].best > 0.5
            assert (await Reports(router, config).of(who)).board == board
            assert len(boards.votes(await router.people.recall(who))) == (await profiles.show(who)).said["pair"].number

    played(install(tmp_path), test)


def test_a_pair_whose_other_answer_has_no_score_teaches_nothing(tmp_path: Path) -> None:
    """Read as a vote on one answer, it would say something that nobody said."""

    async def test(router: Router, quizzes: Quizzes, config: Config) -> None:
        await finish(quizzes, await quizzes.start(ANN))
        await copied(router)
        boards, who = Leaderboards(router, config), await router.people.recall(ANN)
        assert FeedbackKind.PAIR in {label.kind for label in boards.votes(who)}
        query = leaderboard._VOTES.replace("vote.other = b.decision_id", "false")
        with patch.object(leaderboard, "_VOTES", query):
            assert FeedbackKind.PAIR not in {label.kind for label in boards.votes(who)}

    played(install(tmp_path), test)


def test_a_query_that_fails_is_no_empty_board(tmp_path: Path) -> None:
    """Where a warehouse lacks what a reader reads, the reader raises StoreError."""

    async def vote(router: Router, quizzes: Quizzes, _config: Config) -> None:
        await finish(quizzes, await quizzes.start(ANN))
        await copied(router)

    file = install(tmp_path)
    played(file, vote)
    settings, warehouse = load_config(file), tmp_path / "d" / "fitrouter.duckdb"

    def readers(router: Router) -> dict[str, Coroutine[Any, Any, object]]:
        boards, reports, profiles = Leaderboards(router, settings), Reports(router, settings), Profiles(router)
        return {"leaderboard": boards.of(ANN), "report": reports.of(ANN), "profile": profiles.show(ANN)}

    whole = warehouse.read_bytes()
    for table, column, fail in (
        ("decisions", "features", {"leaderboard", "report"}),
        ("scores", "h", {"leaderboard", "report"}),
        ("executions", "completion_tokens", {"leaderboard", "report"}),
        ("executions", "latency_ms", {"report"}),
        ("feedback", "value", {"profile"}),
        ("feedback", "y", {"leaderboard", "report", "profile"}),
    ):
        warehouse.write_bytes(whole)
        with duckdb.connect(warehouse) as connection:
            connection.execute("DROP VIEW answers; DROP VIEW outcomes")
            (view,) = connection.execute(
                "SELECT sql FROM duckdb_views() WHERE view_name = 'latest_feedback'"
            ).fetchone()
            connection.execute("DROP VIEW latest_feedback")
            connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
            connection.execute(view)
        with Router.offline(settings) as router:
            for name, read in readers(router).items():
                with pytest.raises(StoreError, match="could not be queried") if name in fail else nullcontext():
                    asyncio.run(read)


def test_who_may_have_one(tmp_path: Path) -> None:
    """Neither user nor role is refused, and so is a role of fewer than five people, with the number."""

    async def test(router: Router, _quizzes: Quizzes, config: Config) -> None:
        boards = Leaderboards(router, config)
        with pytest.raises(InvalidRequest, match="no user and no role"):
            await boards.of(Identity())
        with pytest.raises(InvalidRequest, match=r"0 people of 'nurse'.*needs 5"):
            await boards.of(Identity(role="nurse"))

    played(install(tmp_path), test)


def test_differences_add_up() -> None:
    """At most eight parts sum to the difference of two shown ratings to 1e-9, for people, strangers and roles."""
    rng = np.random.default_rng(4)
    for labels, number in ((0, 0), (0, 25), (400, 0), (400, 3), (400, 60)):
        fit = fitted(labels)
        for nurse in range(40 * (labels > 0)):
            h = np.array([1.0, *rng.normal(size=D - 1)])
            who = Identity(user=f"n{nurse}", role="nurse")
            fit.learn(Label(who, Answered(ARMS[nurse % 2], X, h), float(h[2] > 0), FeedbackKind.THUMB, ts=2e9 + nurse))
        for who in (ANN, Identity(user="ann", role="nurse"), Identity(role="nurse"), Identity()):
            said = votes(number, FeedbackKind.PAIR, seed=number, size=3.0) if who.user else []
            common = draw_ratings(fit, Identity(), X[None], ARMS, 200, [1])
            drawn = [draw_ratings(fit, who, X[None], ARMS, 200, [1])]
            drawn += [draw_person_ratings(fit, who, said, X[None], ARMS, 200, [1])] if who.user else []
            for own in drawn:
                shown = {each.model: each.rating for each in ranked(ARMS, own.ratings, common.ratings)}
                assert all(-1e-9 <= each <= 1.0 + 1e-9 for each in shown.values())
                for a, b in ((0, 1), (1, 0)):
                    parts = split(own, common, tuple(fit.tastes.names), a, b)
                    assert len(parts) <= 8
                    gap = shown[ARMS[a]] - shown[ARMS[b]]
                    assert sum(each.effect for each in parts) == pytest.approx(gap, abs=1e-9)
                    personal = [each.effect for each in parts if each.group not in SHARED]
                    assert personal == sorted(personal, reverse=True)
                    if who == Identity():
                        assert max(map(abs, personal)) < 1e-12


@table_driven(
    ("basis", "labels", "said"),
    [
        ("own", 3, ""),
        ("", 3, ""),
        ("others", 0, ""),
        ("others", 3, "They have not rated an answer of a yet: its place is what other people's ratings suggest"),
        ("answers", 3, "Nobody has rated an answer of a yet: its place is what votes on other models suggest"),
        ("prior", 3, "a has never answered here and nobody has rated it yet"),
    ],
)
def test_no_model_was_rated_higher_that_was_not_rated(basis: str, labels: int, said: str) -> None:
    """What separates two models then names no rating of it, and the first of a board says what its place rests on."""
    own = draw_ratings(fitted(400), ANN, X[None], ARMS, 50, [1])
    common = own._replace(means=own.means._replace(level=own.means.level - np.array([0.3, 0.0])))
    words = {each.group: each.words for each in split(own, common, (), 0, 1, basis)}
    assert ("was rated" in words["offset"]) is (basis in {"own", ""})
    assert ("is rated" in words["model"]) is (basis in {"own", "", "others"})
    row = msgspec.structs.replace(ranked(("a", "b"), own.ratings, own.ratings)[0], model="a", basis=basis)
    assert leaderboard.unrated(row, labels).startswith(said)
    assert bool(leaderboard.unrated(row, labels)) is bool(said)


def test_means_are_those_of_the_draws() -> None:
    """What is split is what is drawn: means of many draws of both posteriors come near the stated means."""
    fit, who = fitted(400), Identity(user="ann", role="nurse")
    said = votes(12, FeedbackKind.PAIR)
    for own, drawn in (
        (draw_ratings(fit, who, X[None], ARMS, 2, [1]), draw_posterior(fit, who, X[None], ARMS, 40_000, [3])),
        (
            draw_person_ratings(fit, who, said, X[None], ARMS, 2, [1]),
            draw_person(fit, who, said, X[None], ARMS, 40_000, [3]),
        ),
    ):
        assert np.allclose(own.means.taste.mean, drawn.taste.mean(axis=0), atol=0.01)
        assert np.allclose(own.means.level, drawn.level.mean(axis=0) + drawn.fixed.mean(axis=0), atol=0.01)
        assert np.allclose(own.means.taste.cov, np.cov(drawn.taste.T), atol=0.01)


def test_ratings_stay_on_the_scale() -> None:
    """Predictions beyond an end move together: ratings are in [0, 1], differences stay, no interval has width zero."""
    fit, x = fitted(400), X[None]
    means = draw_ratings(fit, ANN, x, ARMS, 2, [1]).means
    for levels, factor in (([1.4, 1.1], 1.0), ([-0.5, -0.2], 1.0), ([0.2, 0.9], 1.0), ([-0.6, 1.9], 0.4)):
        fixed = means._replace(level=np.array(levels), taste=Gaussian(np.zeros(D), 0.01 * np.eye(D)))
        rng = np.random.default_rng(1)
        drawn = Draws(0.1 * rng.standard_normal((4000, D)), rng.normal(0, 0.05, (4000, 2)), np.zeros((1, 2)))
        own = ratings_of(fit, drawn, fixed, x, ARMS, [1])
        found = {each.model: each for each in ranked(ARMS, own.ratings, own.ratings)}
        assert own.factor == pytest.approx(factor)
        a, b = (found[arm].rating for arm in ARMS)
        assert a - b == pytest.approx(factor * (levels[0] - levels[1]), abs=1e-9)
        for each in found.values():
            assert 0.0 <= each.low < each.high <= 1.0
            assert -1e-9 <= each.low - 1e-9 <= each.rating <= each.high + 1e-9 <= 1.0 + 1e-8
