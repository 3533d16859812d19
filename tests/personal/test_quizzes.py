"""A quiz over a router: what is logged and learnt, resuming, undo, limits."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kits.gateway import wait_for
from tests.kits.quiz import install, shorter

from fitrouter.config import Config, QuizConfig, load_config
from fitrouter.errors import ConfigError, InvalidRequest, NotAuthorized, UnknownDecision
from fitrouter.router import Router
from fitrouter.types import RECORDED, Decision, Event, Execution, Feedback, FeedbackKind, Identity, Mode, Score
from fitrouter_evaluators.personal import Progress, Quizzes
from fitrouter_evaluators.personal.answers import answers_file, read_pool
from fitrouter_evaluators.personal.store import KEPT_S, OPEN

ANN = Identity(user="ann")


def played(file: Path, test: Callable[[Router, Quizzes, Config], object]) -> None:
    """Run a coroutine function with the quizzes of an installation."""

    async def run() -> None:
        config = load_config(file)
        async with Router.from_config(config) as router:
            await test(router, Quizzes(router, config), config)  # type: ignore[misc]

    ids = (f"01900000-0000-7000-8000-{number:012d}" for number in itertools.count())
    with pytest.MonkeyPatch.context() as patched:  # a quiz draws by its id
        patched.setattr("fitrouter_evaluators.personal.quizzes.uuid7", lambda _: next(ids))
        asyncio.run(run())


async def finish(quizzes: Quizzes, progress: Progress, who: Identity = ANN) -> Progress:
    """Answer every question as somebody who wants short answers."""
    while progress.question is not None:
        choice = shorter(msgspec.to_builtins(progress.question))
        progress = await quizzes.answer(progress.id, who, progress.question.number, choice)
    return progress


def logged(router: Router) -> list[Event]:
    return [row.event for row in router._journal.tail(0, 10_000)]


def test_a_quiz_is_logged_and_learnt(tmp_path: Path) -> None:
    """Comparisons are volunteered votes on pinned, recorded answers: the person's heads learn, operations do not."""

    async def test(router: Router, quizzes: Quizzes, config: Config) -> None:
        assert config.quiz == QuizConfig()
        start = await quizzes.start(ANN)
        assert start.question is not None
        assert (start.question.number, start.question.of) == (1, config.quiz.questions)
        end = await finish(quizzes, start)
        assert end.result is not None
        found = end.result
        assert found.best == "brief"
        assert found.sure > 0.5
        assert found.near >= found.sure
        assert sum(model.best for model in found.models) == pytest.approx(1.0)
        assert any(like.feature == "length" and not like.likes for like in found.likes)
        assert "fits you best" in end.sentences[0]
        n = found.answered
        await asyncio.to_thread(wait_for, lambda: router._learner.fit.labels == n)
        events = logged(router)
        decisions = [event for event in events if isinstance(event, Decision)]
        assert len(decisions) == 2 * n == sum(isinstance(event, Score) for event in events)
        assert {(d.mode, d.asked, d.cost, d.probs) for d in decisions} == {(Mode.PINNED, False, (), ())}
        runs = [event for event in events if isinstance(event, Execution)]
        assert {(run.status, run.attempts, run.cost_usd) for run in runs} == {(RECORDED, (), 0.0)}
        votes = [event for event in events if isinstance(event, Feedback)]
        assert {(vote.kind, vote.asked) for vote in votes} == {(FeedbackKind.PAIR, False)}
        learner = router._learner
        who = await router.people.identify(ANN)
        arms, row = learner.fit.arms, learner.fit.arms.row("brief")
        assert arms.responses[row] > 0  # its style is known
        assert (arms.beta[row, :2] == 0).all()  # nothing was called
        assert (arms.operations[row] == arms.operations[0]).all()
        names = list(learner.names)
        assert learner.fit.taste(who)[names.index("length")] < learner.fit.tastes.population.mean[names.index("length")]

    played(install(tmp_path), test)


def test_a_slow_store_keeps_the_order_of_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer shown first is logged first, however long that takes, and so both are scored before the vote is."""

    class Forgotten(dict[str, "asyncio.Task[None]"]):
        """As if nobody could wait any longer for an answer to be stored."""

        def get(self, *_: object) -> None:
            return None

    async def test(router: Router, quizzes: Quizzes, _: Config) -> None:
        recorder, calls = router._recorder, itertools.count()
        content = recorder._content
        monkeypatch.setattr(recorder, "_storing", Forgotten())

        def slow(*told: Any) -> bytes | None:
            time.sleep(0.1 if next(calls) % 2 == 0 else 0.0)
            return content(*told)

        monkeypatch.setattr(recorder, "_content", slow)
        start = await quizzes.start(ANN, QuizConfig(questions=3))
        end = await finish(quizzes, start)
        assert end.result is not None
        n = end.result.answered
        await asyncio.to_thread(wait_for, lambda: router._learner.fit.labels == n)
        told = [(type(event), event.decision_id) for event in logged(router) if isinstance(event, (Execution, Score))]
        runs, scores = ([id_ for kind, id_ in told if kind is each] for each in (Execution, Score))
        assert runs == scores

    played(install(tmp_path), test)


def test_a_resumed_quiz_is_an_uninterrupted_one(tmp_path: Path) -> None:
    """A quiz that goes on in other processes, each with its own router, asks and concludes the same."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    file = install(whole)
    kept: list[Progress] = []

    async def begin(_: Router, quizzes: Quizzes, __: Config) -> None:
        kept.append(await quizzes.start(ANN))

    async def through(_: Router, quizzes: Quizzes, __: Config) -> None:
        kept.append(await finish(quizzes, await quizzes.start(ANN)))

    async def one(_: Router, quizzes: Quizzes, __: Config) -> None:
        progress = await quizzes.start(ANN)
        assert progress.question is not None
        choice = shorter(msgspec.to_builtins(progress.question))
        await quizzes.answer(progress.id, ANN, progress.question.number, choice)

    played(file, begin)
    shutil.copytree(whole, parts)
    played(file, through)
    for _ in range(3):
        played(parts / "fitrouter.yaml", one)
    played(parts / "fitrouter.yaml", through)
    start, uninterrupted, resumed = kept
    assert start.id == uninterrupted.id == resumed.id
    assert uninterrupted == resumed


def test_undo_is_exact_and_supersedes_the_vote(tmp_path: Path) -> None:
    """A wrong answer that was taken back and corrected leaves the same result, and one vote that counts."""

    async def test(router: Router, quizzes: Quizzes, _: Config) -> None:
        start = await quizzes.start(ANN)
        assert start.question is not None
        right = shorter(msgspec.to_builtins(start.question))
        wrong = "second" if right == "first" else "first"
        with pytest.raises(InvalidRequest, match="no answer to take back"):
            await quizzes.answer(start.id, ANN, 1, "undo")
        second = await quizzes.answer(start.id, ANN, 1, right)
        assert await quizzes.answer(start.id, ANN, 2, "undo") == start
        other = await quizzes.answer(start.id, ANN, 1, wrong)
        assert await quizzes.answer(start.id, ANN, 2, "undo") == start
        assert await quizzes.answer(start.id, ANN, 1, right) == second
        assert other.question is not None
        votes = [event for event in logged(router) if isinstance(event, Feedback)]
        assert len(votes) == 3
        assert len({(vote.decision_id, vote.other) for vote in votes}) == 1
        assert votes[0].value == votes[2].value == 1.0 - votes[1].value
        assert await quizzes.answer(start.id, ANN, 2, "undo") == start
        await quizzes.answer(start.id, ANN, 1, "skip")
        assert [event for event in logged(router) if isinstance(event, Feedback)][-1].value == 0.5

    played(install(tmp_path), test)


def test_other_choices(tmp_path: Path) -> None:
    """Skipping logs nothing, ties are ties, no prompt comes twice, and a quiz can be stopped."""

    async def test(router: Router, quizzes: Quizzes, _: Config) -> None:
        progress = await quizzes.start(ANN)
        prompts = []
        for number, choice in enumerate(("skip", "same", "bad", "skip"), start=1):
            assert progress.question is not None
            prompts.append(progress.question.prompt)
            progress = await quizzes.answer(progress.id, ANN, number, choice)
        assert len(set(prompts)) == 4
        votes = [event for event in logged(router) if isinstance(event, Feedback)]
        assert [vote.value for vote in votes] == [0.5, 0.5]
        end = await quizzes.answer(progress.id, ANN, 5, "stop")
        assert end.result is not None
        assert (end.result.ended, end.result.answered) == ("stopped", 0)
        assert await quizzes.show(end.id, Identity()) == end
        with pytest.raises(InvalidRequest, match="ended"):
            await quizzes.answer(end.id, ANN, 5, "first")
        again = await quizzes.start(ANN, QuizConfig(questions=1))
        assert again.id != end.id
        assert (await finish(quizzes, again)).result is not None
        with pytest.raises(UnknownDecision):  # each user has one
            await quizzes.show(end.id, ANN)

    played(install(tmp_path), test)


def test_it_stops_when_it_is_sure(tmp_path: Path) -> None:
    """With a threshold that is reached, it ends before the last question, though not before the third."""

    async def test(_: Router, quizzes: Quizzes, __: Config) -> None:
        end = (await finish(quizzes, await quizzes.start(ANN, QuizConfig(questions=20, sure=0.55)))).result
        assert end is not None
        assert end.ended == "sure"
        assert 3 <= end.answered < 20
        assert end.sure >= 0.55

    played(install(tmp_path), test)


def test_another_quiz_asks_what_is_new(tmp_path: Path) -> None:
    """No pair that its person answered in an earlier quiz comes again, in either order; with none left it says so."""

    async def test(_: Router, quizzes: Quizzes, __: Config) -> None:
        asked, progress = list[frozenset[str]](), await quizzes.start(ANN)
        skipped = progress.question
        assert skipped is not None
        await quizzes.answer(progress.id, ANN, 1, "skip")
        while len(asked) < 3:
            progress = await quizzes.start(ANN, again=True)
            assert progress.question is not None
            asked.append(frozenset({progress.question.first, progress.question.second}))
            await finish(quizzes, progress)
        assert len(set(asked)) == 3, "the three pairs of three models"
        assert {skipped.first, skipped.second} in asked
        for again in (True, False):
            none = await quizzes.start(ANN, again=again)
            assert none.question is None
            assert none.sentences[0] == "You have answered all there is: every pair of the recorded answers."
        assert (await quizzes.start(Identity(user="bob"))).question is not None

    played(install(tmp_path, topics=1), test)


def test_hostile_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tenants, other users, stale numbers, twice at once, too many, expired."""

    async def test(router: Router, quizzes: Quizzes, config: Config) -> None:
        start = await quizzes.start(ANN)
        with pytest.raises(InvalidRequest, match="no user"):
            await quizzes.start(Identity())
        with pytest.raises(UnknownDecision):
            await quizzes.show(start.id, Identity(tenant="other", user="ann"))
        for who in (Identity(user="bob"), Identity(user="ann ")):
            with pytest.raises(NotAuthorized):
                await quizzes.answer(start.id, who, 1, "first")
            with pytest.raises(NotAuthorized):
                await quizzes.show(start.id, who)
        for number in (0, 2, -1, 10**30):
            with pytest.raises(InvalidRequest, match="question 1 is due"):
                await quizzes.answer(start.id, ANN, number, "first")
        with pytest.raises(InvalidRequest, match="allowed are"):
            await quizzes.answer(start.id, ANN, 1, "third")
        both = await asyncio.gather(
            *(quizzes.answer(start.id, ANN, 1, "first") for _ in range(2)), return_exceptions=True
        )
        assert sum(isinstance(each, InvalidRequest) for each in both) == 1
        assert sum(isinstance(event, Feedback) for event in logged(router)) == 1
        monkeypatch.setattr("fitrouter_evaluators.personal.store.OPEN", 1)
        assert OPEN > 1
        with pytest.raises(InvalidRequest, match="limit"):
            await quizzes.start(Identity(user="bob"))
        later = Quizzes(router, config)
        monkeypatch.setattr(router, "clock", lambda: 2e9 + KEPT_S + 1e9)
        with pytest.raises(UnknownDecision, match="expired"):
            await later.show(start.id, ANN)

    played(install(tmp_path), test)


def test_pools_say_what_they_lack(tmp_path: Path) -> None:
    """Errors name the remedy: no recorded answers, one model only, no common prompt, no scorer."""
    file = install(tmp_path)
    config = load_config(file)
    cards = [model.card() for model in config.models]
    pool = read_pool(answers_file(config), cards, config)
    assert pool.models == ("brief", "listing", "long")
    assert pool.h.shape[:2] == (20, 3)
    assert pool.id == read_pool(answers_file(config), cards, config).id
    with pytest.raises(ConfigError, match="two of the configured models"):
        read_pool(answers_file(config), cards[:1], config)
    unscored = config.model_copy(update={"scorer": config.scorer.model_copy(update={"encoder": "none"})})
    with pytest.raises(ConfigError, match="need a scorer"):
        read_pool(answers_file(config), cards, unscored)
    with pytest.raises(ConfigError, match="--ask"):
        answers_file(config.model_copy(update={"providers": {}}))
    (tmp_path / "few.jsonl").write_text(
        '{"prompt": "a", "model": "brief", "response": "x"}\n{"prompt": "b", "model": "listing", "response": "x"}\n'
    )
    with pytest.raises(ConfigError, match="no prompt"):
        read_pool(tmp_path / "few.jsonl", cards, config)
