"""Laws of the scorer: every answer leaves the spool exactly once, and no bad part holds up a good one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fitrouter.context.encoders import Hashing
from fitrouter.draw import uuid7
from fitrouter.errors import StoreError
from fitrouter.hooks import Hooks
from fitrouter.plain import pack, unpack
from fitrouter.posterior.gaussian import Gaussian
from fitrouter.serving.services import Service
from fitrouter.stores.content import pack_content
from fitrouter.stores.identities import SqliteIdentities, UnknownSubject
from fitrouter.stores.journal import Entry, Journal, MemoryJournal, SqliteJournal
from fitrouter.types import Execution, Floats, Identity, ProfileChange, Score
from fitrouter_evaluators.scoring import Answer, DeviceHeads, ResponseFeatures, directions, found_device
from fitrouter_evaluators.scoring.batch_size import Pace
from fitrouter_evaluators.scoring.scorer import EXPIRES_S, Scorer

NOW = 1_800_000_000.0
X = np.array([1.0, 0.5])


@pytest.fixture(scope="module", autouse=True)
def statements_are_encoded() -> None:
    """The value directions are known before an encoder counts or breaks, whichever test runs first."""
    directions(Hashing(32))


class Heads:
    """A head a user: the mean of h in a fixed direction, shifted by the length of the user's name."""

    def __init__(self) -> None:
        self.calls = 0

    def score(self, identity: Identity, h: Floats) -> tuple[float, float]:
        self.calls += 1
        return float(np.nansum(h)) + len(identity.user or ""), 0.5


class Encoder(Hashing):
    """Raises on texts with a given word; counts its calls."""

    def __init__(self) -> None:
        super().__init__(32)
        self.poison = ""
        self.broken = False
        self.batches: list[int] = []

    def encode(self, texts: Sequence[str]) -> Floats:
        self.batches.append(len(texts))
        if self.broken or (self.poison and any(self.poison in text for text in texts)):
            raise RuntimeError("the encoder fell over")
        return super().encode(texts)


class World:
    """A journal with identities, and what it takes to put answers into it and score them."""

    def __init__(self, open_journal: Callable[[], Journal], folder: Path) -> None:
        self.open_journal = open_journal
        self.journal = open_journal()
        self.identities = SqliteIdentities(folder / "identities.db")
        self.encoder = Encoder()
        self.heads = Heads()
        self.troubles: list[str] = []
        self.heard: list[Score] = []
        self.now = NOW
        self._count = 0

    def answer(self, text: str, user: str = "ann", *, ts: float = NOW, content: bytes | None = None) -> str:
        """Spool an answer; returns its decision id."""
        self._count += 1
        decision_id = uuid7(ts + self._count / 1000.0)
        subject = self.identities.subject("t", user)
        if content is None:
            packed = pack_content("A question?", {"role": "assistant", "content": text})
            content = self.identities.encrypt(subject, packed)
        execution = Execution(
            id=uuid7(ts),
            ts=ts,
            decision_id=decision_id,
            identity=Identity(tenant="t", user=subject, role="cook"),
            chosen="a@1",
            served_by="b@1",
            status="ok",
            features=pack(X),
        )
        self.journal.append(Entry(execution, content)).result()
        return decision_id

    def scorer(self, *, batch: int = 64) -> Scorer:
        """A scorer over the journal."""
        return Scorer(
            self.journal,
            self.identities,
            ResponseFeatures(self.encoder),
            self.heads,
            batch=batch,
            clock=lambda: self.now,
            hook=lambda part, error: self.troubles.append(part),
            happened=self.heard.append,
        )

    def scores(self) -> dict[str, Score]:
        """Scores by decision id; fails where a decision has two."""
        found = [row.event for row in self.journal.tail(0, 100_000) if isinstance(row.event, Score)]
        by_decision = {score.decision_id: score for score in found}
        assert len(by_decision) == len(found)
        return by_decision


@pytest.fixture(params=["memory", "sqlite"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """The same laws hold over both journals."""

    def open_journal() -> Journal:
        return MemoryJournal() if request.param == "memory" else SqliteJournal(tmp_path / "journal.db")

    world = World(open_journal, tmp_path)
    yield world
    world.journal.close()
    world.identities.close()


def test_every_answer_is_scored_once(world: World) -> None:
    """All answers get one Score each, in batches, and the spool is empty afterwards."""
    ids = [world.answer(f"Answer number {i}, which may help you.") for i in range(10)]
    scorer = world.scorer(batch=4)
    assert [scorer.step() for _ in range(4)] == [4, 4, 2, 0]
    assert world.encoder.batches == [4, 4, 2]
    assert list(world.scores()) == ids
    assert [score.decision_id for score in world.heard] == ids
    assert world.troubles == []


def test_a_score_carries_what_the_fold_needs(world: World) -> None:
    """Identity, model that answered, x, h with its schema and encoder, mean and sd come with the event."""
    decision_id = world.answer("You could try this.")
    world.scorer().step()
    score = world.scores()[decision_id]
    features = ResponseFeatures(Hashing(32))
    h = features.encode([Answer(text="You could try this.")])[0]
    assert score.h == pack(h)
    assert np.isnan(unpack(score.h)).sum() == 4  # no scalar, no tool calls
    assert (score.status, score.served_by, score.identity.role) == ("ok", "b@1", "cook")
    assert (score.schema, score.encoder) == (features.schema, "hashing-v1-32")
    assert score.features == pack(X)
    assert (score.mean, score.sd) == pytest.approx(world.heads.score(score.identity, h))
    assert score.ts == NOW


def test_tool_calls_are_read_with_their_tools(world: World) -> None:
    """The schemas that the router spooled decide whether arguments fit."""
    function = {"name": "f", "arguments": '{"a": 1}'}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"required": ["b"]}}}
    packed = pack_content("", {"content": None, "tool_calls": [{"function": function}]}, [tool])
    blob = world.identities.encrypt(world.identities.subject("t", "ann"), packed)
    decision_id = world.answer("", content=blob)
    world.scorer().step()
    named = dict(zip(ResponseFeatures(Hashing(32)).names, unpack(world.scores()[decision_id].h), strict=True))
    assert named["tool_arguments_fit"] == -3.0
    assert np.isnan(named["length"])


def test_a_restart_scores_the_rest(tmp_path: Path) -> None:
    """After a restart what was scored is not scored again, and what waited is."""
    world = World(lambda: SqliteJournal(tmp_path / "journal.db"), tmp_path)
    ids = [world.answer(f"Answer {i}.") for i in range(6)]
    world.scorer(batch=2).step()
    world.journal.close()
    world.journal = world.open_journal()
    scorer = world.scorer(batch=100)
    assert (scorer.step(), scorer.step()) == (4, 0)
    assert list(world.scores()) == ids
    world.journal.close()
    world.identities.close()


def test_only_the_lease_holder_scores(world: World) -> None:
    """Of two scorers one works; when it stops, the other takes over."""
    world.answer("One.")
    first, second = world.scorer(), world.scorer()
    assert first.step() == 1
    world.answer("Two.")
    assert second.step() == 0
    assert (first.leading, second.leading) == (True, False)
    first._lease.release()
    assert second.step() == 1
    assert len(world.scores()) == 2


def test_two_that_race_score_once(world: World) -> None:
    """A scorer that lost its lease in the middle of a step appends the same event, which is then a no-op."""

    class Late(Heads):
        def score(self, identity: Identity, h: Floats) -> tuple[float, float]:
            if not self.calls:
                self.calls = 1
                scorer._lease.release()
                assert world.scorer().step() == 1
            return super().score(identity, h)

    world.answer("One.")
    world.heads = Late()
    scorer = world.scorer()
    assert scorer.step() == 1
    assert len(world.scores()) == 1
    assert world.journal.spooled() == []


def test_content_that_comes_again_leaves_the_spool(world: World) -> None:
    """Content for a decision that has a Score already cannot keep the scorer busy for ever."""
    world.answer("One.")
    waiting = world.journal.spooled()[0]
    execution = world.journal.of(waiting.decision_id)[0].event
    assert isinstance(execution, Execution)
    scorer = world.scorer()
    assert scorer.step() == 1
    world.journal.append(Entry(msgspec.structs.replace(execution, id=uuid7(NOW)), waiting.content)).result()
    assert (scorer.step(), scorer.step()) == (1, 0)


def test_an_answer_without_execution_fails(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Content whose Execution cannot be found, such as a damaged row, holds up nobody."""
    decision_id = world.answer("One.")
    monkeypatch.setattr(type(world.journal), "of", lambda self, key: [])
    assert world.scorer().step() == 1
    assert world.scores()[decision_id].status == "failed"
    assert world.journal.spooled() == []


class Timer:
    """Time passes by what the encoder costs: so much a call, and so much a text."""

    def __init__(self, encoder: Encoder, call_s: float, text_s: float) -> None:
        self.encoder, self.call_s, self.text_s = encoder, call_s, text_s

    def __call__(self) -> float:
        return self.call_s * len(self.encoder.batches) + self.text_s * sum(self.encoder.batches)


def paced(world: World, timer: Timer) -> Scorer:
    """A scorer whose time is the timer's."""
    features = ResponseFeatures(world.encoder)
    return Scorer(world.journal, world.identities, features, world.heads, batch=64, clock=lambda: NOW, timer=timer)


def test_a_backlog_is_taken_in_growing_steps(world: World) -> None:
    """While much waits steps grow to the largest allowed; once all is scored they begin small again."""
    for i in range(200):
        world.answer(f"Answer {i}.")
    scorer = paced(world, Timer(world.encoder, 0.001, 0.0))
    assert [scorer.step() for _ in range(6)] == [16, 32, 64, 64, 24, 0]
    assert scorer.pace.size == 16
    assert len(world.scores()) == 200


@pytest.mark.parametrize(("text_s", "taken"), [(0.0248, [16, 4, 4, 4]), (1.0, [16, 1, 1, 1])])
def test_a_slow_encoder_gets_small_steps(world: World, text_s: float, taken: list[int]) -> None:
    """Where an answer takes long a step holds only what it can score in its time, so that nobody waits behind many."""
    for i in range(40):
        world.answer(f"Answer {i}.")
    scorer = paced(world, Timer(world.encoder, 0.0, text_s))
    assert [scorer.step() for _ in range(4)] == taken


def test_a_slow_disk_does_not_make_steps_small(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit takes as long for one score as for many: it says nothing of the size of a step."""
    for i in range(100):
        world.answer(f"Answer {i}.")
    timer, append = Timer(world.encoder, 0.001, 0.0), world.journal.append
    waited = [0.0]

    def slow(*entries: Entry) -> Any:
        waited[0] += 0.5
        return append(*entries)

    monkeypatch.setattr(world.journal, "append", slow)
    features = ResponseFeatures(world.encoder)
    scorer = Scorer(
        world.journal, world.identities, features, world.heads, batch=64, clock=lambda: NOW,
        timer=lambda: timer() + waited[0],
    )  # fmt: skip
    assert [scorer.step() for _ in range(3)] == [16, 32, 52]


def test_one_answer_waits_for_no_other(world: World) -> None:
    """An answer that is alone is scored by the next step, after a backlog as before one."""
    timer = Timer(world.encoder, 0.001, 0.0)
    scorer = paced(world, timer)
    for number in range(3):
        world.answer(f"Alone {number}.")
        assert scorer.step() == 1
        for i in range(100):
            world.answer(f"Together {number} {i}.")
        while scorer.step():
            pass
    assert len(world.scores()) == 303


@given(
    most=st.integers(1, 500),
    step_s=st.floats(0.001, 10.0),
    steps=st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 100.0))),
)
def test_the_pace_stays_in_its_bounds(most: int, step_s: float, steps: list[tuple[float, float]]) -> None:
    """Whatever is measured, a step takes at least 1 and at most `most`, and one that was too long is not repeated."""
    pace = Pace(most, step_s)
    for share, seconds in steps:
        answers = max(1, round(share * pace.size))
        size = pace.took(answers, seconds)
        assert 1 <= size == pace.size <= most
        assert size == 1 or seconds <= step_s or size * seconds <= answers * step_s * (1 + 1e-9)


def test_a_pace_needs_room() -> None:
    """No answers, or no time, is refused."""
    for most, step_s in ((0, 0.1), (1, 0.0), (1, float("nan"))):
        with pytest.raises(ValueError, match="at least 1 answer"):
            Pace(most, step_s)


def test_old_content_expires_unread(world: World) -> None:
    """Content older than 24 hours leaves the spool with a Score that says so and holds nothing of it."""
    old = world.answer("Old.", ts=NOW - EXPIRES_S - 1.0)
    young = world.answer("Young.", ts=NOW - EXPIRES_S + 1.0)
    assert world.scorer().step() == 2
    scores = world.scores()
    assert (scores[old].status, scores[old].h, scores[old].mean) == ("expired", b"", 0.0)
    assert scores[young].status == "ok"
    assert world.encoder.batches == [1]


def test_an_erased_user_is_not_scored(world: World) -> None:
    """Content whose key is gone, and bytes that are no content, fail and hold up nobody."""
    erased = world.answer("Mine.", "bob")
    damaged = world.answer("", content=b"\x01\x05never-a-content-of-this-place")
    other = world.identities.encrypt(world.identities.subject("t", "ann"), "no json")
    wrong = world.answer("", content=other)
    fine = world.answer("Fine.")
    world.identities.erase("t", "bob")
    assert world.scorer().step() == 4
    scores = world.scores()
    assert {key: scores[key].status for key in scores} == {
        erased: "failed",
        damaged: "failed",
        wrong: "failed",
        fine: "ok",
    }
    assert scores[erased].h == b""
    assert world.troubles == ["content"] * 3


def test_one_bad_answer_blocks_no_other(world: World) -> None:
    """A batch that raises is scored one by one; only the answer that raises by itself fails."""
    ids = [world.answer(text) for text in ("Good.", "poison here", "Better.")]
    world.encoder.poison = "poison"
    assert world.scorer().step() == 3
    scores = world.scores()
    assert [scores[key].status for key in ids] == ["ok", "failed", "ok"]
    assert set(world.troubles) == {"features"}


def test_a_single_bad_answer_fails_too(world: World) -> None:
    """Alone in its batch a bad answer fails as well, since a plain one passes."""
    decision_id = world.answer("poison")
    world.encoder.poison = "poison"
    assert world.scorer().step() == 1
    assert world.scores()[decision_id].status == "failed"


def test_a_broken_encoder_writes_nothing_off(world: World) -> None:
    """While the encoder is broken for all, answers wait; old content goes all the same; afterwards all are scored."""
    ids = [world.answer(f"Answer {i}.") for i in range(3)]
    old = world.answer("Old.", ts=NOW - EXPIRES_S - 1.0)
    scorer = world.scorer()
    world.encoder.broken = True
    with pytest.raises(RuntimeError, match="fell over"):
        scorer.step()
    assert list(world.scores()) == [old]
    assert scorer.lag().waiting == 3
    world.encoder.broken = False
    assert scorer.step() == 3
    assert [world.scores()[key].status for key in ids] == ["ok"] * 3


def test_a_head_that_raises_or_is_nan_fails_alone(world: World) -> None:
    """One user's broken head costs that user's scores and nobody else's."""

    class Broken(Heads):
        def score(self, identity: Identity, h: Floats) -> tuple[float, float]:
            if identity.user == bob:
                raise ZeroDivisionError
            return (np.nan if identity.user == eve else 0.0), 1.0

    bob, eve = world.identities.subject("t", "bob"), world.identities.subject("t", "eve")
    ids = [world.answer("Hello.", user) for user in ("ann", "bob", "eve")]
    world.heads = Broken()
    assert world.scorer().step() == 3
    assert [world.scores()[key].status for key in ids] == ["ok", "failed", "failed"]


def test_a_full_disk_keeps_answers_waiting(tmp_path: Path) -> None:
    """A journal that cannot write raises, loses nothing, and the next step scores once."""
    broken = [False]

    def fault(step: str) -> None:
        if broken[0] and step == "commit":
            raise OSError("no space left")

    world = World(lambda: MemoryJournal(fault=fault), tmp_path)
    world.answer("One.")
    scorer = world.scorer()
    broken[0] = True
    with pytest.raises(StoreError):
        scorer.step()
    assert scorer.lag().waiting == 1
    assert world.heard == []
    broken[0] = False
    assert scorer.step() == 1
    assert len(world.scores()) == 1
    world.identities.close()


def test_unreadable_identities_keep_answers_waiting(world: World) -> None:
    """A disk that fails while a key is read is no erasure: the answer stays."""

    class Sick:
        def decrypt(self, blob: bytes) -> str:
            raise StoreError("the disk is gone")

    world.answer("One.")
    scorer = Scorer(world.journal, Sick(), ResponseFeatures(world.encoder), world.heads, clock=lambda: NOW)
    with pytest.raises(StoreError):
        scorer.step()
    assert world.scores() == {}
    assert scorer.lag().waiting == 1


def test_lag_counts_what_waits(world: World) -> None:
    """Lag is the number of waiting answers and the age of the oldest."""
    scorer = world.scorer()
    assert scorer.lag() == (0, 0.0)
    world.answer("One.", ts=NOW - 30.0)
    world.answer("Two.")
    assert scorer.lag() == (2, 30.0)
    scorer.step()
    assert scorer.lag() == (0, 0.0)


def wait_for(condition: Callable[[], bool]) -> None:
    """Fail if it does not come true in 20 seconds."""
    deadline = time.monotonic() + 300.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_the_thread_lives_through_everything(world: World) -> None:
    """As a service it survives a broken encoder, a hook and a listener that raise, and scores what comes."""

    def raising(*args: object) -> None:
        world.troubles.append("told")
        raise RuntimeError("the hook itself is broken")

    scorer = Scorer(
        world.journal,
        world.identities,
        ResponseFeatures(world.encoder),
        world.heads,
        batch=2,
        clock=lambda: NOW,
        hook=raising,
        happened=raising,
    )
    world.encoder.broken = True
    ids = [world.answer(f"Answer {i}.") for i in range(5)]
    service = Service("scorer", scorer.step, Hooks(raising), idle_s=0.02, retry_s=0.1)
    service.start()
    wait_for(lambda: bool(world.troubles))
    world.encoder.broken = False
    wait_for(lambda: len(world.scores()) == 5)
    ids.append(world.answer("Later."))
    wait_for(lambda: len(world.scores()) == 6)
    service.stop(20.0)
    assert sorted(world.scores()) == sorted(ids)


def test_a_scorer_needs_a_batch(world: World) -> None:
    """A batch of nothing is refused."""
    with pytest.raises(ValueError, match="batch is 0"):
        world.scorer(batch=0)


# --- heads on a device ---


def tastes(seed: int, dim: int, n: int) -> list[Gaussian]:
    """Random Gaussians."""
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(n, dim, dim)) / dim
    return [Gaussian(rng.normal(size=dim), root @ root.T) for root in roots]


def expected(blocks: Sequence[Gaussian], h: Floats) -> tuple[float, float]:
    """The same by numpy."""
    h = np.nan_to_num(h)
    mean = sum(float(h @ block.mean) for block in blocks)
    return mean, float(np.sqrt(sum(float(h @ block.cov @ h) for block in blocks)))


@pytest.mark.parametrize("capacity", [3, 5, 100])
def test_device_heads_equal_numpy(capacity: int) -> None:
    """A batch on the device equals the sum of its blocks by numpy, however few blocks fit, and after updates."""
    pytest.importorskip("torch")
    dim, rng = 12, np.random.default_rng(1)
    population, *people = tastes(0, dim, 20)
    names = [f"user-{i}" for i in rng.integers(0, 12, 40)]
    blocks = {f"user-{i}": [population, people[i % 3], people[3 + i]] for i in range(12)}
    heads = DeviceHeads(lambda identity: blocks[identity.user or ""], dim, "cpu", capacity=capacity)
    identities = [Identity(user=name) for name in names]
    h = rng.normal(size=(40, dim))
    h[::3, 4:7] = np.nan
    for _ in range(3):
        means, sds = heads.score_many(identities, h)
        numpy = np.array([expected(blocks[name], row) for name, row in zip(names, h, strict=True)])
        assert means == pytest.approx(numpy[:, 0], abs=1e-5)
        assert sds == pytest.approx(numpy[:, 1], abs=1e-5)
        for block in (population, people[4]):
            block.mean, block.cov = block.mean + 1.0, block.cov * 1.5
    assert heads.score(identities[0], h[0]) == pytest.approx(expected(blocks[names[0]], h[0]), abs=1e-5)


def test_device_heads_copy_only_what_changed() -> None:
    """A block goes to the device once, and again only after it was updated."""
    pytest.importorskip("torch")
    blocks = tastes(0, 4, 3)
    heads = DeviceHeads(lambda identity: blocks, 4, "cpu")
    h = np.ones((5, 4))
    heads.score_many([Identity()] * 5, h)
    heads.score_many([Identity()] * 5, h)
    assert heads.uploads == 3
    blocks[1].mean = blocks[1].mean + 1.0
    heads.score_many([Identity()] * 5, h)
    assert heads.uploads == 4


def test_device_heads_need_room_for_one_user() -> None:
    """A cache that is smaller than one user's blocks says so."""
    pytest.importorskip("torch")
    blocks = tastes(0, 4, 3)
    with pytest.raises(ValueError, match="capacity of 2"):
        DeviceHeads(lambda identity: blocks, 4, "cpu", capacity=2).score_many([Identity()], np.ones((1, 4)))


def test_a_batch_goes_to_heads_that_take_one(world: World) -> None:
    """Where the heads have score_many the whole batch is one call."""
    pytest.importorskip("torch")
    features = ResponseFeatures(world.encoder)
    blocks = tastes(0, features.dim, 2)
    heads = DeviceHeads(lambda identity: blocks, features.dim, "cpu")
    ids = [world.answer(f"Answer {i}.") for i in range(3)]
    assert Scorer(world.journal, world.identities, features, heads, clock=lambda: NOW).step() == 3
    score = world.scores()[ids[1]]
    h = features.encode([Answer(text="Answer 1.")])[0]
    assert (score.mean, score.sd) == pytest.approx(expected(blocks, h), abs=1e-5)


@pytest.mark.parametrize("batched", [False, True])
def test_every_dimension_is_scored(world: World, batched: bool) -> None:
    """A Score carries every other dimension that the heads know; one that is no number is left out alone."""
    pytest.importorskip("torch")
    features = ResponseFeatures(world.encoder)
    blocks = {name: tastes(i, features.dim, 2) for i, name in enumerate(("overall", "humour", "broken"))}
    blocks["broken"][0].mean = blocks["broken"][0].mean * np.nan

    class Several:
        def dimensions(self) -> list[str]:
            return ["humour", "broken"]

        def score(self, identity: Identity, h: Floats, dimension: str = "overall") -> tuple[float, float]:
            return expected(blocks[dimension], h)

    def of(identity: Identity, dimension: str = "overall") -> list[Gaussian]:
        return blocks[dimension]

    heads = DeviceHeads(of, features.dim, "cpu", capacity=3, dimensions=Several().dimensions) if batched else Several()
    decision_id = world.answer("An answer with a joke.")
    assert Scorer(world.journal, world.identities, features, heads, clock=lambda: NOW).step() == 1
    score, h = world.scores()[decision_id], features.encode([Answer(text="An answer with a joke.")])[0]
    assert (score.mean, score.sd) == pytest.approx(expected(blocks["overall"], h), abs=1e-5)
    assert list(score.dimensions) == ["humour"]
    assert score.dimensions["humour"] == pytest.approx(expected(blocks["humour"], h), abs=1e-5)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_named_device_is_taken_at_its_word(device: str) -> None:
    """Only 'auto' looks around."""
    assert found_device(device) == device
    assert found_device("auto") in {"cpu", "cuda"}


def test_declared_topics_reach_the_features(world: World) -> None:
    """The last profile's statements, decrypted, are part of h; after an erasure they are gone."""
    features = ResponseFeatures(Hashing(32), declared=True)
    subject = world.identities.subject("t", "ann")
    for i, words in enumerate((["I love horror."], ["I avoid bridges."])):
        kept = world.identities.encrypt(subject, json.dumps(words))
        identity = Identity(tenant="t", user=subject)
        world.journal.append(
            Entry(ProfileChange(id=f"profile-{i}", ts=NOW + i, identity=identity, topics=kept))
        ).result()
    scorer = Scorer(world.journal, world.identities, features, world.heads, clock=lambda: world.now)
    said, other = world.answer("The old bridges of Ulm."), world.answer("The old bridges of Ulm.", "bob")
    scorer.step()
    scores = world.scores()
    expected = Answer(text="The old bridges of Ulm.", prompt="A question?", declared=("I avoid bridges.",))
    assert scores[said].h == pack(features.encode([expected])[0])
    assert unpack(scores[said].h)[-1] < 0.0
    assert np.isnan(unpack(scores[other].h)[-1])
    world.identities.erase("t", "ann")
    profile = world.journal.profile(subject)
    assert profile is not None
    with pytest.raises(UnknownSubject):
        world.identities.decrypt(profile.topics)
