"""What people do with an answer, in one line each: near and far, blocking and awaiting, late and too early."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway_kit import make_router, serving

from fitrouter.errors import InvalidRequest, NotAuthorized, UnknownDecision
from fitrouter.journal import MemoryJournal
from fitrouter.router import Router
from fitrouter.types import Feedback, FeedbackKind, Identity, Request
from fitrouter_integrations import feedback as say
from fitrouter_integrations.client import Client, Reply, Vote, connect
from fitrouter_integrations.client._local import LocalBackend


@pytest.fixture(params=["near", "far"])
def asked(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Client, Router]]:
    """A client, and the router that it reaches."""
    router = make_router(tmp_path)
    if request.param == "near":
        with Client(LocalBackend(router)) as made:
            yield made, router
    else:
        with serving(router) as url, connect(url) as made:
            yield made, router


def ask(client: Client, user: str = "ann") -> Reply:
    return client.complete(Request(messages=({"role": "user", "content": "hello"},), identity=Identity(user=user)))


def heard(router: Router) -> list[Feedback]:
    assert isinstance(router.journal, MemoryJournal)
    return [row.event for row in router.journal.tail(0, 10_000) if isinstance(row.event, Feedback)]


# --- helper → (how it is called on an answer, what is in the log) ---

Said = tuple[tuple[Any, ...], dict[str, Any]]
HELPERS: dict[str, tuple[Said, tuple[FeedbackKind, float, str]]] = {
    "rate": (((4,), {}), (FeedbackKind.RATING, 0.75, "overall")),
    "thumb": (((False,), {"dimension": "tone"}), (FeedbackKind.THUMB, 0.0, "tone")),
    "edited": ((("a b", "a c"), {}), (FeedbackKind.EDIT, 0.5, "overall")),
    "accepted": (((), {}), (FeedbackKind.ACCEPT, 1.0, "overall")),
    "copied": (((False,), {}), (FeedbackKind.COPY, 0.0, "overall")),
    "regenerated": (((), {"user": "ann"}), (FeedbackKind.REGENERATE, 1.0, "overall")),
    "task": (((False,), {}), (FeedbackKind.THUMB, 0.0, "base")),
}


@pytest.mark.parametrize("prefix", ["", "a"])
@pytest.mark.parametrize("name", HELPERS)
def test_what_was_done_is_what_is_in_the_log(asked: tuple[Client, Router], name: str, prefix: str) -> None:
    """Each helper, blocking and awaiting, appends one verdict of its kind, value and dimension on the answer."""
    client, router = asked
    (arguments, named), (kind, y, dimension) = HELPERS[name]
    reply = ask(client)
    told = getattr(say, prefix + name)(client, reply, *arguments, **named)
    found = asyncio.run(told) if prefix else told
    (event,) = heard(router)
    assert (event.id, event.decision_id) == (found, reply.about.decision_id)
    assert (event.kind, event.y, event.dimension) == (kind, pytest.approx(y), dimension)


@pytest.mark.parametrize(("tie", "value"), [(False, 1.0), (True, 0.5)])
def test_a_comparison_names_both(asked: tuple[Client, Router], tie: bool, value: float) -> None:
    """The better answer is the better one whichever was given first, and a tie is one."""
    client, router = asked
    first, second = ask(client), ask(client)
    say.compare(client, better=first, worse=second, tie=tie)
    (event,) = heard(router)
    ids = (first.about.decision_id, second.about.decision_id)
    assert {event.decision_id, event.other} == set(ids)
    assert event.value == (value if event.decision_id == ids[0] else 1.0 - value)


class Early:
    """A client whose answers become durable after `misses` looks."""

    def __init__(self, misses: int) -> None:
        self.misses, self.votes = misses, list[Vote]()

    def feedback(self, vote: Vote) -> str:
        self.votes.append(vote)
        if len(self.votes) <= self.misses:
            raise UnknownDecision("not yet")
        return "f1"

    async def afeedback(self, vote: Vote) -> str:
        return self.feedback(vote)


@pytest.mark.parametrize("awaiting", [False, True])
def test_a_verdict_that_overtakes_its_decision_waits(awaiting: bool) -> None:
    """While the decision is not in the log the same verdict is tried again."""
    client = Early(misses=3)
    told = asyncio.run(say.athumb(client, "d1")) if awaiting else say.thumb(client, "d1")
    assert told == "f1"
    assert len(client.votes) == 4
    assert len(set(map(repr, client.votes))) == 1


@pytest.mark.parametrize("awaiting", [False, True])
def test_patience_ends(awaiting: bool) -> None:
    """A decision that never comes is unknown in the end, and without patience at once."""
    for patience_s, tries in ((0.0, 1), (0.05, 2)):
        client = Early(misses=10**6)
        vote = Vote(decision_id="d1", kind=FeedbackKind.THUMB, value=1.0)
        with pytest.raises(UnknownDecision):
            asyncio.run(say.asend(client, vote, patience_s)) if awaiting else say.send(client, vote, patience_s)
        assert len(client.votes) >= tries


def test_a_decision_on_its_way_to_a_slow_journal_is_found(tmp_path: Path) -> None:
    """An answer goes out before its decision is durable where the store is slow; a verdict at once is not lost."""

    class Slow(MemoryJournal):
        """Durable once it is let go."""

        def __init__(self) -> None:
            super().__init__()
            self.held: list[Callable[[], Any]] | None = None

        def append(self, entry: Any) -> Any:
            if self.held is None:
                return super().append(entry)
            from concurrent.futures import Future

            promised: Future[int] = Future()
            self.held.append(lambda: promised.set_result(super(Slow, self).append(entry).result()))
            return promised

    journal = Slow()
    with Client(LocalBackend(make_router(tmp_path, journal=journal))) as client:
        client.models()
        journal.held = []
        reply = ask(client)
        assert not reply.about.logged
        with pytest.raises(UnknownDecision):
            client.feedback(Vote(decision_id=reply.about.decision_id, kind=FeedbackKind.THUMB, value=1.0))
        held, journal.held = journal.held, None
        later = threading.Timer(0.2, lambda: [settle() for settle in held])
        later.start()
        assert say.thumb(client, reply)
        later.join()


def test_verdicts_arrive_in_any_order(asked: tuple[Client, Router]) -> None:
    """Verdicts on earlier answers after those on later ones, and again after a change of mind, are all taken."""
    client, router = asked
    replies = [ask(client) for _ in range(3)]
    for reply in reversed(replies):
        say.rate(client, reply, 2)
    say.rate(client, replies[0], 5)
    assert [event.decision_id for event in heard(router)] == [
        *(reply.about.decision_id for reply in reversed(replies)),
        replies[0].about.decision_id,
    ]


@given(st.text(max_size=60), st.text(max_size=60))
def test_a_share_is_one_and_counts_what_changed(original: str, final: str) -> None:
    """It lies in [0, 1] and is 0 for a text that was left as it is; more or less white space changes nothing."""
    share = say.share_changed(original, final)
    assert 0.0 <= share <= 1.0
    assert say.share_changed(original, original) == 0.0
    assert say.share_changed(original, f"  {original}\n") == 0.0


def test_a_text_that_was_thrown_away_changed_altogether() -> None:
    """Nothing left, or nothing in common, is 1."""
    assert say.share_changed("All of this.", "") == say.share_changed("one two", "three four") == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        "d1",
        SimpleNamespace(decision_id="d1"),
        SimpleNamespace(about=SimpleNamespace(decision_id="d1")),
        SimpleNamespace(response_metadata={"decision_id": "d1"}),
        SimpleNamespace(model_extra={"fitrouter": {"decision_id": "d1"}}),
    ],
)
def test_an_answer_names_its_decision(answer: Any) -> None:
    """A decision id, a reply, a LangChain message and an OpenAI reply of a gateway all do."""
    assert say.decision_of(answer) == "d1"


@pytest.mark.parametrize("answer", [None, "", 7, SimpleNamespace(response_metadata={}), {}])
def test_what_names_no_decision_is_refused(answer: Any) -> None:
    """The message says where the id stands."""
    with pytest.raises(InvalidRequest, match="x-fitrouter-decision"):
        say.thumb(Early(0), answer)


def test_mistakes_are_told(asked: tuple[Client, Router]) -> None:
    """A rating off its scale, somebody else's answer and a text that is none raise what they raise anywhere."""
    client, _ = asked
    reply = ask(client)
    with pytest.raises(InvalidRequest, match="scale"):
        say.rate(client, reply, 9)
    with pytest.raises(NotAuthorized):
        say.thumb(client, reply, user="bob")
    with pytest.raises(InvalidRequest, match="NoneType"):
        say.edited(client, reply, "text", None)  # type: ignore[arg-type]


def test_helpers_show_what_they_take() -> None:
    """Names, documentation and signatures are those of the helper, with the carrier first."""
    assert list(inspect.signature(say.rate).parameters) == ["client", "answer", "stars", "scale", "dimension", "user"]
    for name in HELPERS:
        for made in (getattr(say, name), getattr(say, "a" + name)):
            assert made.__doc__
        assert getattr(say, "a" + name).__name__ == "a" + name
