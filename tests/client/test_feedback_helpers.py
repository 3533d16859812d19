"""The feedback helpers, in process and over HTTP, blocking and async, late and early."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kits.gateway import make_router, serving
from tests.kits.tables import table_driven

from fitrouter.errors import InvalidRequest, NotAuthorized, UnknownDecision
from fitrouter.router import Router
from fitrouter.serving import recorder
from fitrouter.stores.journal import MemoryJournal
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
    return client.complete(
        Request(messages=({"role": "user", "content": "hello"},), identity=Identity(user=user, run="r1"))
    )


def heard(router: Router) -> list[Feedback]:
    assert isinstance(router._journal, MemoryJournal)
    return [row.event for row in router._journal.tail(0, 10_000) if isinstance(row.event, Feedback)]


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


@table_driven("prefix", ["", "a"])
@table_driven("name", HELPERS)
def test_each_helper_logs_its_vote(asked: tuple[Client, Router], name: str, prefix: str) -> None:
    """Each helper, blocking and async, appends one vote of its kind, value and dimension."""
    client, router = asked
    (arguments, named), (kind, y, dimension) = HELPERS[name]
    reply, before = ask(client), len(heard(router))
    told = getattr(say, prefix + name)(client, reply, *arguments, **named)
    found = asyncio.run(told) if prefix else told
    (event,) = heard(router)[before:]
    assert (event.id, event.decision_id) == (found, reply.about.decision_id)
    assert (event.kind, event.y, event.dimension) == (kind, pytest.approx(y), dimension)


@pytest.mark.parametrize("name", ["OpenAI", "AsyncOpenAI"])
def test_openais_client_sends_feedback(name: str, tmp_path: Path) -> None:
    """To the gateway that it speaks to, with its key; a client of anything else is refused with a remedy."""
    openai = pytest.importorskip("openai")
    router = make_router(tmp_path)
    with serving(router) as url, connect(url) as made:
        reply = ask(made)
        given = getattr(openai, name)(base_url=f"{url}/v1", api_key="own")
        told = asyncio.run(say.arate(given, reply, 4)) if "Async" in name else say.rate(given, reply, 4)
        assert connect(f"{url}/v1", "own").backend._key == "own"  # type: ignore[union-attr]
        (event,) = heard(router)
    assert (event.id, event.kind, event.y) == (told, FeedbackKind.RATING, pytest.approx(0.75))
    with pytest.raises(InvalidRequest, match="first give a client"):
        say.rate(SimpleNamespace(base_url=None, api_key="x"), "0198", 4)


@pytest.mark.parametrize(("tie", "value"), [(False, 1.0), (True, 0.5)])
def test_a_comparison_names_both(asked: tuple[Client, Router], tie: bool, value: float) -> None:
    """The better answer wins whichever comes first, and a tie is a tie."""
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
        self.misses, self.votes = misses, list[Any]()

    def feedback(self, vote: Any) -> str:
        self.votes.append(vote)
        if len(self.votes) <= self.misses:
            raise UnknownDecision("not yet")
        return "f1"

    async def afeedback(self, vote: Any) -> str:
        return self.feedback(vote)

    outcome, aoutcome = feedback, afeedback


@pytest.mark.parametrize("awaiting", [False, True])
@pytest.mark.parametrize(
    ("blocking", "awaited"),
    [(say.thumb, say.athumb), (partial(say.outcome, value=True), partial(say.aoutcome, value=True))],
)
def test_early_feedback_is_retried(blocking: Any, awaited: Any, awaiting: bool) -> None:
    """While the decision or run is not in the log the same vote or outcome is tried again."""
    client = Early(misses=3)
    told = asyncio.run(awaited(client, "d1")) if awaiting else blocking(client, "d1")
    assert told == "f1"
    assert len(client.votes) == 4
    assert len(set(map(repr, client.votes))) == 1


@pytest.mark.parametrize("awaiting", [False, True])
def test_retries_end(awaiting: bool) -> None:
    """A decision that never arrives is unknown in the end, and without patience at once."""
    for patience_s, tries in ((0.0, 1), (0.05, 2)):
        client = Early(misses=10**6)
        vote = Vote(decision_id="d1", kind=FeedbackKind.THUMB, value=1.0)
        with pytest.raises(UnknownDecision):
            asyncio.run(say.asend(client, vote, patience_s)) if awaiting else say.send(client, vote, patience_s)
        assert len(client.votes) >= tries


@pytest.mark.parametrize("said", [say.thumb, partial(say.outcome, value=True)])
def test_a_decision_on_its_way_to_a_slow_journal_is_found(tmp_path: Path, said: Callable[[Client, Any], Any]) -> None:
    """Feedback on an answer or a run is not lost if the journal is slower than the answer."""

    class Slow(MemoryJournal):
        """Durable once it is let go."""

        def __init__(self) -> None:
            super().__init__()
            self.held: list[Callable[[], Any]] | None = None

        def append(self, *entries: Any) -> Any:
            if self.held is None:
                return super().append(*entries)
            from concurrent.futures import Future

            promised: Future[int] = Future()
            self.held.append(lambda: promised.set_result(super(Slow, self).append(*entries).result()))
            return promised

    journal = Slow()
    with Client(LocalBackend(make_router(tmp_path, journal=journal))) as client:
        client.models()
        journal.held = []
        reply = ask(client)
        assert not reply.about.logged
        with mock.patch.object(recorder, "STORE_WAIT_S", 0.1), pytest.raises(UnknownDecision):
            client.feedback(Vote(decision_id=reply.about.decision_id, kind=FeedbackKind.THUMB, value=1.0))
        held, journal.held = journal.held, None
        later = threading.Timer(0.2, lambda: [settle() for settle in held])
        later.start()
        assert said(client, reply)
        later.join()


def test_feedback_is_accepted_in_any_order(asked: tuple[Client, Router]) -> None:
    """Votes on earlier answers after later ones, and changed votes, are all accepted."""
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
def test_share_changed_is_in_the_unit_interval(original: str, final: str) -> None:
    """It lies in [0, 1], is 0 for an unchanged text, and ignores white space."""
    share = say.share_changed(original, final)
    assert 0.0 <= share <= 1.0
    assert say.share_changed(original, original) == 0.0
    assert say.share_changed(original, f"  {original}\n") == 0.0


def test_a_discarded_text_counts_as_fully_changed() -> None:
    """An empty text, or nothing in common, is 1."""
    assert say.share_changed("All of this.", "") == say.share_changed("one two", "three four") == 1.0


ID = "01a1fad0-3427-71da-a770-733f08a8d2d7"
TOLD = {"decision_id": ID}
HELD: dict[str, Any] = {
    "its id": ID,
    "the id of a gateway's reply": f"chatcmpl-{ID}",
    "what was decided": SimpleNamespace(decision_id=ID),
    "a client's reply": SimpleNamespace(about=SimpleNamespace(decision_id=ID)),
    "a LangChain message": SimpleNamespace(response_metadata=TOLD),
    "a LangChain message of ChatOpenAI": SimpleNamespace(response_metadata={"headers": {"x-fitrouter-decision": ID}}),
    "the same without headers": SimpleNamespace(response_metadata={"id": f"chatcmpl-{ID}", "finish_reason": "stop"}),
    "the last piece of a stream": SimpleNamespace(id=ID, type="AIMessageChunk", response_metadata={"cost_usd": 0.1}),
    "all pieces of a stream": [
        SimpleNamespace(id=ID, type="AIMessageChunk", response_metadata=TOLD),
        SimpleNamespace(id=ID, type="AIMessageChunk", response_metadata={}),
    ],
    "an agent's state": {
        "messages": [
            SimpleNamespace(type="ai", response_metadata={"decision_id": "earlier"}),
            SimpleNamespace(type="ai", response_metadata=TOLD),
            SimpleNamespace(type="tool", response_metadata={}),
        ]
    },
    "a schema's answer with the raw one": {"raw": SimpleNamespace(response_metadata=TOLD), "parsed": None},
    "an OpenAI reply": SimpleNamespace(model_extra={"fitrouter": TOLD}),
    "a piece of an OpenAI stream": SimpleNamespace(model_extra={}, id=f"chatcmpl-{ID}"),
    "a raw OpenAI response": SimpleNamespace(headers={"x-fitrouter-decision": ID}),
    "a reply as JSON": {"id": f"chatcmpl-{ID}", "fitrouter": TOLD},
    "a reply of litellm": SimpleNamespace(id=f"chatcmpl-{ID}", fitrouter=TOLD),
    "a result of pydantic-ai": SimpleNamespace(response=SimpleNamespace(provider_response_id=f"chatcmpl-{ID}")),
}


@table_driven("held", HELD)
def test_decision_of_finds_the_decision(held: str) -> None:
    """Every form of an answer leads to its decision; of a history the last answer counts."""
    assert say.decision_of(HELD[held]) == ID


NOTHING: list[Any] = [
    None,
    "",
    7,
    {},
    [],
    SimpleNamespace(response_metadata={}),
    SimpleNamespace(id="chatcmpl-AbC123"),
    {"messages": [SimpleNamespace(response_metadata=TOLD, type="ai"), SimpleNamespace(id="run-1", type="ai")]},
]


@pytest.mark.parametrize("answer", NOTHING)
def test_objects_without_a_decision_are_refused(answer: Any) -> None:
    """The message says where the id is. If the last answer is another model's, no earlier one is used."""
    with pytest.raises(InvalidRequest, match="x-fitrouter-decision"):
        say.thumb(Early(0), answer)


def test_a_url_is_a_client(tmp_path: Path) -> None:
    """A gateway's URL is enough, also in another process; objects that cannot send feedback are an error."""
    router = make_router(tmp_path)
    with serving(router) as url:
        with connect(url) as client:
            reply = ask(client)
            say.rate(url, reply.about.decision_id, 5)
            asyncio.run(say.athumb(url, reply, user="ann"))
        assert [event.kind for event in heard(router)] == [FeedbackKind.RATING, FeedbackKind.THUMB]
    with pytest.raises(InvalidRequest, match="first give a client"):
        say.rate(reply, url, 5)  # type: ignore[arg-type]


def test_clients_without_afeedback_run_in_a_thread() -> None:
    """An adapter with only `feedback` works with the async helpers."""

    class Plain:
        def feedback(self, vote: Vote) -> str:
            return f"{vote.decision_id} in {threading.current_thread() is threading.main_thread()}"

    assert asyncio.run(say.arate(Plain(), "d1", 4)) == "d1 in False"


def test_feedback_from_a_later_process(tmp_path: Path) -> None:
    """Another process sends feedback on the first one's answers, and a pair before the ratings of its members."""
    path = tmp_path / "fitrouter.yaml"
    path.write_text(
        "providers: {s: {kind: simulated, options: {a: {length: 1}, b: {length: 9}}}}\n"
        "models: [{name: a, provider: s}, {name: b, provider: s}]\n",
        encoding="utf-8",
    )
    with connect(path) as client:
        first, second = ask(client).about.decision_id, ask(client).about.decision_id
    with connect(path) as later:
        say.compare(later, better=second, worse=first, user="ann")
        say.rate(later, second, 5)
        say.rate(later, first, 2)
        say.rate(later, first, 2)
        backend = later.backend
        assert isinstance(backend, LocalBackend)
        rows = backend.router._journal.tail(0, 1000)
    events = [row.event for row in rows if isinstance(row.event, Feedback)]
    assert [(event.kind, event.decision_id) for event in events] == [
        (FeedbackKind.PAIR, second),
        (FeedbackKind.RATING, second),
        (FeedbackKind.RATING, first),
        (FeedbackKind.RATING, first),
    ]


def test_invalid_numbers_and_names_are_refused(asked: tuple[Client, Router]) -> None:
    """NaN, infinities and invalid names are refused; later votes are accepted."""
    client, router = asked
    reply = ask(client)
    for value, scale in ((None, (1, 5)), ("five", (1, 5)), (float("nan"), (1, 5)), (3, (5, 1)), (3, ("a", "b"))):
        with pytest.raises(InvalidRequest):
            say.rate(client, reply, value, scale)  # type: ignore[arg-type]
    for up in (None, "up", 0.5):
        with pytest.raises(InvalidRequest, match="True or False"):
            say.thumb(client, reply, up)  # type: ignore[arg-type]
    for dimension in (3, ""):
        with pytest.raises(InvalidRequest, match="dimension"):
            say.thumb(client, reply, dimension=dimension)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest):
        client.feedback(Vote(decision_id=reply.about.decision_id, kind="great", value=1.0))  # type: ignore[arg-type]
    assert not heard(router)
    client.feedback(Vote(decision_id=reply.about.decision_id, kind=FeedbackKind.THUMB, value=True))
    assert say.rate(client, reply, 4)
    assert len(heard(router)) == 2


def test_errors_are_the_routers(asked: tuple[Client, Router]) -> None:
    """A rating off its scale, another user's answer and an invalid text raise the router's exceptions."""
    client, _ = asked
    reply = ask(client)
    with pytest.raises(InvalidRequest, match="scale"):
        say.rate(client, reply, 9)
    with pytest.raises(NotAuthorized):
        say.thumb(client, reply, user="bob")
    with pytest.raises(InvalidRequest, match="NoneType"):
        say.edited(client, reply, "text", None)  # type: ignore[arg-type]


def test_helpers_have_their_own_signatures() -> None:
    """Names, documentation and signatures are those of the helper, with the client first."""
    assert list(inspect.signature(say.rate).parameters) == ["client", "answer", "stars", "scale", "dimension", "user"]
    for name in HELPERS:
        for made in (getattr(say, name), getattr(say, "a" + name)):
            assert made.__doc__
        assert getattr(say, "a" + name).__name__ == "a" + name
