"""Laws of the judge: orders cancel, costs stay within the budget, draws are logged, and a lying judge loses weight."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fitrouter.config import RewardModelConfig, ScorerConfig
from fitrouter.draw import uuid7
from fitrouter.errors import ProviderUnavailable
from fitrouter.hooks import Hooks
from fitrouter.plain import pack, unpack
from fitrouter.state.learner import Learner
from fitrouter.stores.content import pack_content
from fitrouter.stores.identities import SqliteIdentities
from fitrouter.stores.journal import Entry, MemoryJournal, Row
from fitrouter.types import (
    Call,
    Chunk,
    Completion,
    Execution,
    Feedback,
    FeedbackKind,
    Identity,
    Score,
    Usage,
    decode_event,
    encode_event,
)
from fitrouter_evaluators.scoring import Answer
from fitrouter_evaluators.scoring.models import Item
from fitrouter_evaluators.scoring.models.judge import Judge, question, verdicts
from fitrouter_evaluators.scoring.models.reward_model import ModelError
from fitrouter_evaluators.scoring.models.state import load_state
from fitrouter_evaluators.scoring.plugin import make_scorer

NOW = 1_800_000_000.0
SHORT, KIND = "Answers are short", "Answers are kind"


def config(**settings: Any) -> RewardModelConfig:
    given = {"name": "judge", "kind": "judge", "model": "big", "provider": "p", "sample": 1.0, "send_text": True}
    prices = {"input": 1.0, "output": 10.0}
    return RewardModelConfig(**(given | {"prices": prices, "principles": {"cook": [SHORT]}} | settings))


class Scripted:
    """A provider whose judge thinks what a function says of (principle, answer): 1 follows, −1 against, 0 neither."""

    def __init__(
        self, opinion: Callable[[str, str], float], *, fault: Callable[[int], str | None] | None = None
    ) -> None:
        self.opinion, self.fault = opinion, fault or (lambda _n: None)
        self.calls: list[Call] = []
        self.usage = Usage(prompt_tokens=200, completion_tokens=20)
        self.gate: asyncio.Event | None = None

    async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
        self.calls.append(call)
        if self.gate is not None:
            await self.gate.wait()
        fault = self.fault(len(self.calls))
        if fault == "down":
            raise ProviderUnavailable("the judge is down")
        text = call.messages[1]["content"]
        listed = re.findall(r"^(\d+)\. (.*)$", text.split("<prompt>")[0], re.MULTILINE)
        answer = re.search(r"<answer>\n(.*)\n</answer>", text, re.DOTALL)
        follows_first = "A: it follows" in text
        assert answer
        made = []
        for number, principle in listed:
            value = self.opinion(principle, answer[1])
            option = "C" if value == 0 else "A" if (value > 0) is follows_first else "B"
            made.append({"principle": int(number), "option": option})
        content = fault if fault is not None else json.dumps({"verdicts": made})
        return Completion(message={"role": "assistant", "content": content}, usage=self.usage)

    async def aclose(self) -> None:
        """Nothing is open."""


def is_short(_principle: str, answer: str) -> float:
    return 1.0 if len(answer) < 50 else -1.0


class Bench:
    """A judge over a scripted provider."""

    def __init__(self, provider: Scripted, path: Path | None = None, **settings: Any) -> None:
        self.now, self.provider, self.failures = NOW, provider, list[Exception]()
        self.state, self.entry = load_state(path), config(**settings)
        self.judge = Judge(self.entry, provider, self.state, path, self.failures.append, lambda: self.now)

    def of(self, *items: Item) -> list[float]:
        return [float(x) for x in self.judge.score(items)[:, 0]]


def item(text: str = "Yes.", role: str | None = "cook", number: int = 0) -> Item:
    return Item(
        answer=Answer(text=text, prompt="Why?"),
        identity=Identity(role=role, user="ann"),
        decision_id=uuid7(NOW + number),
    )


LONG = "This is a long answer. " * 10


def test_verdicts_are_the_mean_over_relevant_principles() -> None:
    """1 follows, −1 goes against; principles that are not concerned do not count; none of them is no verdict."""

    def opinion(principle: str, answer: str) -> float:
        return is_short(principle, answer) if principle == SHORT else 0.0

    bench = Bench(Scripted(opinion), principles={"cook": [SHORT, KIND], "*": ["Answers are honest"], "poet": [KIND]})
    assert bench.of(item(), item(LONG), item(role="Cook ")) == [1.0, -1.0, 1.0]
    assert np.isnan(bench.of(item(role="poet"))).all()
    assert len(bench.judge.principles_of(Identity(role="cook"))) == 3
    assert len(bench.judge.principles_of(Identity())) == 1
    assert bench.failures == []


def test_people_without_principles_cost_nothing() -> None:
    """No principles, or no text: nothing is sent, and no probability is logged."""
    bench = Bench(Scripted(is_short))
    items = item(role="poet"), item(role=None)
    assert np.isnan(bench.of(*items)).all()
    assert bench.provider.calls == []
    assert [one.sampled for one in items] == [{}, {}]


def test_a_liking_for_a_letter_cancels() -> None:
    """A judge that always picks the same option says nothing: both orders together give 0."""
    for letter in "AB":
        reply = json.dumps({"verdicts": [{"principle": 1, "option": letter}]})
        assert Bench(Scripted(is_short, fault=lambda _n, reply=reply: reply)).of(item(), item(LONG)) == [0.0, 0.0]


def test_both_orders_are_asked_with_a_schema() -> None:
    """Two calls an answer: options and principles in opposite orders, replies bound to a strict JSON Schema."""
    bench = Bench(Scripted(is_short), principles={"cook": [SHORT, KIND]})
    bench.of(item())
    first, second = sorted(
        (call.messages[1]["content"] for call in bench.provider.calls), key=lambda t: "A: it goes" in t
    )
    assert first.index(SHORT) < first.index(KIND)
    assert second.index(SHORT) > second.index(KIND)
    assert "A: it follows the principle. B: it goes against" in first
    assert "A: it goes against the principle. B: it follows" in second
    for call in bench.provider.calls:
        assert call.target == "big"
        schema = call.params["response_format"]["json_schema"]
        assert schema["strict"]
        assert schema["schema"]["required"] == ["verdicts"]


def test_texts_are_material_and_bounded() -> None:
    """A prompt and an answer of any length are cut to `max_tokens` and stand between their marks."""
    huge = Item(answer=Answer(text="a" * 10**6 + "\ud800", prompt="p" * 10**6), decision_id=uuid7(NOW))
    _, message = question(huge, [SHORT], False, 500)
    assert len(message["content"]) < 3000
    assert re.search(r"<prompt>\n.*p\n</prompt>\n<answer>\na.*\n</answer>", message["content"], re.DOTALL)
    message["content"].encode()


@pytest.mark.parametrize(
    "reply", ["", "no", "{}", '{"verdicts": []}', '{"verdicts": [{"principle": 2, "option": "A"}]}']
)
def test_unusable_replies_are_missing(reply: str) -> None:
    """A reply that is not the asked JSON gives no verdict and a message; other answers are judged."""
    bench = Bench(Scripted(is_short, fault=lambda n: reply if n <= 2 else None))
    found = bench.of(item()), bench.of(item(number=1))
    assert np.isnan(found[0]).all()
    assert found[1] == [1.0]
    assert len(bench.failures) == 1
    with pytest.raises(Exception, match="judge"):
        verdicts(reply, 1, False)


def test_a_failing_call_is_missing_and_counts_what_it_may_have_cost() -> None:
    """One of the two calls fails: no verdict; its reservation stays spent, since the provider may charge it."""
    bench = Bench(Scripted(is_short, fault=lambda n: "down" if n == 1 else None))
    assert np.isnan(bench.of(item())).all()
    assert isinstance(bench.failures[0], ProviderUnavailable)
    paid = 1e-6 * (200 * 1.0 + 20 * 10.0)
    assert bench.state.usd > paid + 1e-6 * 400 * 10.0


def test_a_judge_checks_all_answers(tmp_path: Path) -> None:
    """As a check it judges whatever its sample is, says nothing where no principle is, and ends with its money."""
    provider, running = Scripted(is_short), len([each for each in threading.enumerate() if each.name == "judge judge"])
    settings = ScorerConfig(encoder="hashing", prior="none", models=(config(sample=0.0, usd_per_day=0.05),))
    service = make_scorer(settings, tmp_path, connected={"p": provider})
    asked, cook = [{"role": "user", "content": "Soup?"}], Identity(role="cook")

    def judged(text: str, who: Identity = cook) -> float:
        return service.judge("judge", who, asked, {"role": "assistant", "content": text})

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(judged, ["Yes."] * 4)) == {1.0}
    assert len([each for each in threading.enumerate() if each.name == "judge judge"]) == running + 1, "one limit"
    assert judged("long " * 200) == -1.0
    assert np.isnan(judged("Yes.", Identity(role="poet")))
    with pytest.raises(ModelError, match="has spent its money of the day"):
        [judged("Yes.") for _ in range(100)]


def test_draws_are_logged_and_reproducible() -> None:
    """Each answer has the probability of being judged, its share is about that, and any process draws alike."""
    items = [item(number=i) for i in range(400)]
    settings = {"sample": 0.25, "usd_per_day": 100.0}
    bench = Bench(Scripted(is_short), **settings)
    drawn = np.isfinite(bench.of(*items))
    assert {one.sampled["judge"] for one in items} == {0.25}
    assert 60 <= drawn.sum() <= 140, "4.6 standard deviations around 100"
    again = Bench(Scripted(is_short), **settings)
    assert np.isfinite(again.of(*reversed(items))).tolist() == drawn[::-1].tolist()


def test_the_budget_of_a_day_is_never_exceeded(tmp_path: Path) -> None:
    """Spending stays below the limit, across restarts; then the logged probability is 0, until the next day (UTC)."""
    path = tmp_path / "judge.json"
    bench = Bench(Scripted(is_short), path, usd_per_day=0.05)
    items = [item(number=i) for i in range(200)]
    judged = sum(np.isfinite(bench.of(one)[0]) for one in items[:100])
    assert 20 < judged < 100
    assert 0.03 < bench.state.usd <= 0.05
    assert items[99].sampled == {"judge": 0.0}
    again = Bench(Scripted(is_short), path, usd_per_day=0.05)
    assert np.isnan(again.of(*items[100:110])).all()
    again.now += 86_400.0
    assert np.isfinite(again.of(items[150])).all()
    assert again.state.usd < 0.01


def test_costs_without_reported_tokens_are_those_reserved() -> None:
    """A provider that reports no tokens does not make the judge free."""
    provider = Scripted(is_short)
    provider.usage = Usage()
    bench = Bench(provider)
    bench.of(item())
    assert bench.state.usd > 1e-6 * 2 * 400 * 10.0 * 0.99


# --- in the scorer ---


class World:
    """A scorer with a judge over a journal in memory."""

    def __init__(self, folder: Path, provider: Scripted, **settings: Any) -> None:
        self.journal, self.identities = MemoryJournal(), SqliteIdentities(folder / "identities.db")
        settings = ScorerConfig(models=(config(**settings),)).models[0].model_dump()
        scorer = ScorerConfig(models=(RewardModelConfig(**settings),))
        self.service = make_scorer(scorer, folder, {}, connected={"p": provider})
        self.learner = Learner(2, self.service.dim, schema=self.service.schema, names=self.service.names)
        self.service.attach(self.journal, self.identities, self.learner, Hooks(), lambda: NOW)
        self.j = self.service.names.index("rm.judge.principles")
        self.seq = 0

    def answer(self, text: str, number: int, user: str = "ann", role: str = "cook") -> str:
        """Spool an answer."""
        decision_id, subject = uuid7(NOW + number), self.identities.subject("t", user)
        content = self.identities.encrypt(subject, pack_content("Why?", {"role": "assistant", "content": text}))
        execution = Execution(
            id=f"{decision_id}:e", ts=NOW, decision_id=decision_id, chosen="a", served_by="a", status="ok",
            identity=Identity(tenant="t", user=subject, role=role), features=pack(np.array([1.0, 0.5])),
        )  # fmt: skip
        self.journal.append(Entry(execution, content)).result()
        return decision_id

    def scores(self) -> dict[str, Score]:
        return {
            row.event.decision_id: row.event for row in self.journal.tail(0, 99_999) if isinstance(row.event, Score)
        }

    def settle(self, answers: int) -> dict[str, Score]:
        """Step until so many scores are there."""
        for _ in range(10_000):
            self.service.step()
            if len(found := self.scores()) == answers:
                return found
        raise AssertionError(f"{len(found)} of {answers} answers were scored")

    def vote(self, score: Score, value: float) -> None:
        """Fold a score and a thumb on its answer."""
        self.learner.apply(Row(self.seq + 1, score))
        vote = Feedback(
            id=uuid7(NOW + self.seq), ts=NOW, decision_id=score.decision_id, identity=score.identity,
            kind=FeedbackKind.THUMB, value=value,
        )  # fmt: skip
        self.learner.apply(Row(self.seq + 2, vote), [score])
        self.seq += 2

    def weight(self, score: Score) -> float:
        """The taste of this person for the judge's verdict."""
        return float(self.learner.fit.taste(score.identity)[self.j])

    def close(self) -> None:
        self.journal.close()
        self.identities.close()


def test_nobody_waits_for_the_judge(tmp_path: Path) -> None:
    """While a judged answer waits in the spool, others are scored; it gets its verdict when the reply is there."""
    provider = Scripted(is_short)
    provider.gate = asyncio.Event()
    world = World(tmp_path, provider)
    slow, quick = world.answer("Yes.", 0), [world.answer("No.", i, role="poet") for i in range(1, 6)]
    scores = world.settle(5)
    assert list(scores) == quick
    assert world.service.step() == 0
    assert world.service.lag()[0] == 1
    world.service._models._entries[0].model._loop.call_soon_threadsafe(provider.gate.set)  # type: ignore[union-attr]
    score = world.settle(6)[slow]
    assert (score.sampled, scores[quick[0]].sampled) == ({"judge": 1.0}, {})
    assert decode_event(encode_event(score)) == score
    assert len(provider.calls) == 2
    world.close()


def test_a_judge_recovers(tmp_path: Path) -> None:
    """A failed call is visible in the health until the next verdict; the answer is scored without one."""
    world = World(tmp_path, Scripted(is_short, fault=lambda n: "down" if n <= 2 else None))
    first = world.answer("Yes.", 0)
    assert np.isnan(unpack(world.settle(1)[first].h)[world.j])
    assert world.service.models()["judge"].error == "ProviderUnavailable"  # its words may repeat a prompt
    world.answer("No.", 1)
    world.settle(2)
    health = world.service.models()["judge"]
    assert (health.error, health.answers, health.missing) == ("", 2, 2)  # the second one sets the scale
    assert health.usd_today > 0
    world.close()


def _votes(folder: Path, opinion: Callable[[bool], float], people: Sequence[tuple[str, float]]) -> World:
    """A world in which people vote on answers whose quality only the judge sees.

    Args:
        folder: of the world.
        opinion: the judge's verdict on a good or a bad answer.
        people: (user, probability of liking a good answer, and of disliking a bad one), one vote each, in order.
    """
    draw = np.random.default_rng(5)
    good = [bool(draw.random() < 0.5) for _ in people]
    world = World(folder, Scripted(lambda _p, answer: opinion(good[int(answer.split()[-1])])))
    ids = [world.answer(f"This is answer {i}", i, user) for i, (user, _) in enumerate(people)]
    scores = world.settle(len(ids))
    for decision_id, is_good, (_, agrees) in zip(ids, good, people, strict=True):
        world.vote(scores[decision_id], float(is_good is bool(draw.random() < agrees)))
    return world


def test_a_lying_judge_loses_weight(tmp_path: Path) -> None:
    """A judge whom the crowd's labels bear out, and Bob's contradict: the crowd's weight stays, Bob's goes below 0."""
    crowd = [(f"user {i % 12}", 0.95) for i in range(240)]
    made, weights = {}, {}
    for votes in (0, 40, 120):
        (tmp_path / str(votes)).mkdir()
        made[votes] = world = _votes(
            tmp_path / str(votes), lambda good: 1.0 if good else -1.0, [*crowd, *[("bob", 0.05)] * votes]
        )
        who = [
            Identity(tenant="t", user=world.identities.subject("t", user), role="cook") for user in ("bob", "user 1")
        ]
        weights[votes] = [float(world.learner.fit.taste(identity)[world.j]) for identity in who]
        world.close()
    assert weights[0][0] > 0.02
    assert weights[40][0] < 0.6 * weights[0][0]
    assert weights[120][0] < 0.0 < 0.02 < weights[120][1]


def test_a_judge_that_guesses_gets_no_weight(tmp_path: Path) -> None:
    """Verdicts that have nothing to do with the labels end with a weight near 0, those of an honest judge do not."""
    found = {}
    for agrees in (0.95, 0.5):
        (tmp_path / str(agrees)).mkdir()
        world = _votes(tmp_path / str(agrees), lambda good: 1.0 if good else -1.0, [("ann", agrees)] * 150)
        found[agrees] = world.weight(world.scores().popitem()[1])
        world.close()
    assert found[0.95] > 0.02
    assert abs(found[0.5]) < 0.3 * found[0.95]
