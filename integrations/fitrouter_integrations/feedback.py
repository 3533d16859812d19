"""Feedback on an answer in one line, whatever client or framework the answer came from.

    rate(model, reply, 4)                    thumb("http://127.0.0.1:8484", decision_id, up=False)
    compare(client, better=a, worse=b)       await aedited(model, reply, draft, sent)

The first argument of every helper is the client: a `Client`, a `ChatFitrouter`, a `FitrouterLLM` … (anything with
`feedback`), a target of `connect`, such as a gateway's URL, or OpenAI's client of a gateway. The second is the answer:
its decision id, or any object that `decision_of` accepts. Helpers prefixed with `a` are for `await`. Feedback may come
days later and from another process; if it overtakes its decision on the way to the journal, it is retried for a moment.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from difflib import SequenceMatcher
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

from fitrouter.errors import InvalidRequest, UnknownDecision
from fitrouter.identity import decision_id_of
from fitrouter.posterior.tastes import OVERALL
from fitrouter.router import Router
from fitrouter.serving.feedback import Understood
from fitrouter.serving.runs import Reported
from fitrouter.state.quality_floor import BASE
from fitrouter.types import FeedbackKind
from fitrouter_integrations.client import Client, Comment, RunVote, Target, Vote, connect

TOOLS = "tools"
"""Dimension for whether an answer's tool calls worked; separate, since a tool may fail by itself."""
PATIENCE_S = 2.0
"""How long feedback waits for its decision to become durable."""
_PAUSES_S = (0.02, 0.05, 0.1, 0.25)
_TOKEN = re.compile(r"\w+|[^\w\s]")

P = ParamSpec("P")
T = TypeVar("T")


class FeedbackClient(Protocol):
    """A client that sends feedback."""

    def feedback(self, vote: Vote) -> str:
        """Record feedback; returns its id once durable."""
        ...


class AsyncFeedbackClient(Protocol):
    """A client that sends feedback without blocking an event loop."""

    async def afeedback(self, vote: Vote) -> str:
        """Record feedback; returns its id once durable."""
        ...


def send(client: FeedbackClient | Target, vote: Vote, patience_s: float = PATIENCE_S) -> str:
    """Send feedback; returns its id once durable.

    Args:
        client: sends it; or a target of `connect`.
        vote: the feedback.
        patience_s: how long to wait for a decision that is not in the log yet.

    Raises:
        InvalidRequest: the value is not on its scale, or a pair is invalid.
        UnknownDecision: the decision is not in the log in time.
        NotAuthorized: the user is not the one who got the answer.
        StoreError: it cannot be made durable now; try again.
    """
    sender: FeedbackClient = carrier(client)
    return _patiently(functools.partial(sender.feedback, vote), patience_s)


async def asend(
    client: AsyncFeedbackClient | FeedbackClient | Target, vote: Vote, patience_s: float = PATIENCE_S
) -> str:
    """Send feedback, see `send`; a client without `afeedback` sends it from a thread."""
    given: Any = client
    if hasattr(given, "feedback") and not hasattr(given, "afeedback"):
        return await asyncio.to_thread(send, given, vote, patience_s)
    sender: AsyncFeedbackClient = carrier(given, "afeedback")
    return await _apatiently(functools.partial(sender.afeedback, vote), patience_s)


def outcome(
    client: Any,
    run: Any,
    value: float | bool,
    *,
    kind: str = "success",
    scale: tuple[float, float] | None = None,
    source: str = "check",
    user: str | None = None,
) -> Reported:
    """Report how a run of an agent ended.

    Args:
        client: gave the answers.
        run: its id, or any of its answers.
        value: true or false for success; the rating; or the number.
        kind: success, rating or number.
        scale: worst and best value of a rating or number.
        source: person, check (a program) or adapter.
        user: of the run's requests.
    """
    ended = run_vote(run, value, kind=kind, scale=scale, source=source, user=user)
    sender = carrier(client, "outcome")
    found: Reported = _patiently(functools.partial(sender.outcome, ended))
    return found


async def aoutcome(client: Any, run: Any, value: float | bool, **more: Any) -> Reported:
    """Report how a run of an agent ended, see `outcome`."""
    sender, ended = carrier(client, "aoutcome"), run_vote(run, value, **more)
    found: Reported = await _apatiently(functools.partial(sender.aoutcome, ended))
    return found


def run_vote(run: Any, value: float | bool, **more: Any) -> RunVote:
    """Build the outcome of a run, which is named by its id or by one of its answers."""
    return RunVote(run=run if isinstance(run, str) else decision_of(run), value=value, **more)


def carrier(client: Any, method: str = "feedback") -> Any:
    """Return the client that sends feedback: the object itself, or that of a target of `connect` or OpenAI's client.

    Raises:
        InvalidRequest: it is neither.
    """
    if hasattr(client, method):
        return client
    if isinstance(client, Router | str | os.PathLike):
        return connect(client)
    if isinstance(getattr(client, "client", None), Client):
        return client.client
    url, key = getattr(client, "base_url", None), getattr(client, "api_key", None)
    if url is not None and isinstance(key, str):  # OpenAI's client, blocking or not
        return connect(str(url), key)
    raise InvalidRequest(
        f"feedback: {type(client).__name__} cannot send feedback; first give a client, a model of an adapter, "
        "or a gateway's URL, then the answer"
    )


# --- answers -------------------------------------------------------------------------------------------------------

_ID = re.compile(r"(?:chatcmpl-)?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
"""A decision id, or an answer's id that contains it."""
_HEADER = "x-fitrouter-decision"
_INSIDE = (
    "about",
    "fitrouter",
    "response_metadata",
    "model_extra",
    "headers",
    "message",
    "raw",
    "response",
    "messages",
)
"""Fields that hold the decision of an answer, or the answer itself."""
_DEPTH = 4


def decision_of(answer: Any) -> str:
    """Find the decision id of an answer.

    Args:
        answer: a decision id, or an answer's id that contains it; a client's `Reply` or `About`; a LangChain message,
            whole, streamed or its last chunk; an agent's final state; a gateway's response as returned
            by the clients of OpenAI, litellm or pydantic-ai, as JSON, or with its headers.

    Raises:
        InvalidRequest: it has none.

    >>> decision_of({"messages": [{"role": "user"}, {"response_metadata": {"decision_id": "0198"}}]})
    '0198'
    """
    found = decision_id_of(answer) if isinstance(answer, str) else _inside(answer, _DEPTH)[0]
    if not found:
        raise InvalidRequest(
            f"feedback: {type(answer).__name__} {answer if isinstance(answer, str) else ''!r} has no decision id; give "
            "the one in the answer's response_metadata['decision_id'] or 'x-fitrouter-decision' header, or the answer"
        )
    return found


def token_of(answer: Any) -> str | None:
    """Return the token that proves to a gateway that the caller was given an answer; None without one."""
    return None if isinstance(answer, str) else _inside(answer, _DEPTH)[1]


def _inside(answer: Any, depth: int) -> tuple[str | None, str | None]:
    """Find the decision id and the token in an answer, or in an object that contains an answer."""
    if answer is None or isinstance(answer, str | int | float) or not depth:
        return None, None
    if isinstance(answer, list | tuple):
        said = (each for each in reversed(answer) if _is_answer(each))
        return _inside(next(said, None), depth - 1)
    for name, proof in (("decision_id", "token"), (_HEADER, "x-fitrouter-token")):
        if isinstance(found := _get(answer, name), str) and found:
            token = _get(answer, proof)
            return found, token if isinstance(token, str) else None
    for name in _INSIDE:
        if (inside := _inside(_get(answer, name), depth - 1))[0]:
            return inside
    ids = (_ID.fullmatch(str(_get(answer, name))) for name in ("id", "provider_response_id"))
    return next((match[1] for match in ids if match), None), None


def _is_answer(message: Any) -> bool:
    """Whether a message of a history is an answer; messages without a role count as answers."""
    role = _get(message, "role") or _get(message, "type")
    return role in (None, "assistant", "ai", "AIMessageChunk")


def _get(place: Any, name: str) -> Any:
    return place.get(name) if hasattr(place, "get") else getattr(place, name, None)


def share_changed(original: str, final: str) -> float:
    """Share of a text that was edited, 0 to 1: tokens of either text that do not match the other's in order.

    Words and punctuation are compared; white space is ignored.

    >>> share_changed("Dear Ann, see you on Monday.", "Dear Ann,  see you on Monday.")
    0.0
    >>> round(share_changed("see you on Monday", "see you on Friday"), 2)
    0.43
    """
    if not isinstance(original, str) or not isinstance(final, str):
        raise InvalidRequest(
            f"feedback: got an edit from {type(original).__name__} to {type(final).__name__}; give the answer's text "
            "before and after the edit"
        )
    before, after = _TOKEN.findall(original), _TOKEN.findall(final)
    length = sum(map(len, before)) + sum(map(len, after))
    blocks = SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
    same = sum(len(word) for block in blocks for word in before[block.a : block.a + block.size])
    return 1.0 - 2.0 * same / length if length else 0.0


# --- helpers -------------------------------------------------------------------------------------------------------


def _rate(
    answer: Any,
    stars: float | str,
    scale: tuple[float, float] | None = None,
    *,
    dimension: str = OVERALL,
    user: str | None = None,
) -> Vote:
    """Rate an answer on a scale, given by its lowest and highest value; or "up" or "down".

    Without a scale it is the configured one (`feedback.scale`), else 1 to 5.
    """
    if stars in ("up", "down"):
        return _did(FeedbackKind.THUMB, answer, float(stars == "up"), dimension, user)
    return _did(FeedbackKind.RATING, answer, stars, dimension, user, scale=scale, default_scale=(1.0, 5.0))


def _thumb(answer: Any, up: bool = True, *, dimension: str = OVERALL, user: str | None = None) -> Vote:
    """Give a thumb up or down."""
    return _did(FeedbackKind.THUMB, answer, _yes(up), dimension, user)


def _compare(better: Any, worse: Any, *, tie: bool = False, user: str | None = None) -> Vote:
    """Prefer one answer to another of the same user, or declare a tie."""
    other = {"other": decision_of(worse), "other_token": token_of(worse)}
    return _did(FeedbackKind.PAIR, better, 0.5 if tie else 1.0, OVERALL, user, **other)


def _edited(answer: Any, original: str, final: str, *, user: str | None = None) -> Vote:
    """Report that an answer was edited before use; the share that was changed is the feedback."""
    return _did(FeedbackKind.EDIT, answer, share_changed(original, final), OVERALL, user)


def _accepted(answer: Any, taken: bool = True, *, user: str | None = None) -> Vote:
    """Report whether an answer was used as it is."""
    return _did(FeedbackKind.ACCEPT, answer, _yes(taken), OVERALL, user)


def _copied(answer: Any, part: bool = True, *, user: str | None = None) -> Vote:
    """Report whether a part of an answer was copied."""
    return _did(FeedbackKind.COPY, answer, _yes(part), OVERALL, user)


def _regenerated(answer: Any, again: bool = True, *, user: str | None = None) -> Vote:
    """Report whether another answer was requested."""
    return _did(FeedbackKind.REGENERATE, answer, _yes(again), OVERALL, user)


def _task(answer: Any, succeeded: bool, *, user: str | None = None) -> Vote:
    """Report whether the answer's task succeeded: a label of the dimension `base`, not of taste."""
    return _did(FeedbackKind.THUMB, answer, _yes(succeeded), BASE, user)


def _yes(value: object) -> float:
    if value in (True, False):  # 1 and 0, and NumPy's
        return float(bool(value))
    raise InvalidRequest(f"feedback: got {value!r}; give True or False")


def _did(kind: FeedbackKind, answer: Any, value: float | str, dimension: str, user: str | None, **more: Any) -> Vote:
    decision_id, token = decision_of(answer), token_of(answer)
    return Vote(decision_id=decision_id, kind=kind, value=value, dimension=dimension, user=user, token=token, **more)


Blocking: TypeAlias = Callable[Concatenate[FeedbackClient | Target, P], str]
Awaiting: TypeAlias = Callable[Concatenate[AsyncFeedbackClient | FeedbackClient | Target, P], Awaitable[str]]


def _helpers(build: Callable[P, Vote]) -> tuple[Blocking[P], Awaiting[P]]:
    """Make a function that sends the vote that `build` returns, and an async one that does the same."""

    @functools.wraps(build)
    def said(client: FeedbackClient | Target, /, *arguments: P.args, **named: P.kwargs) -> str:
        return send(client, build(*arguments, **named))

    @functools.wraps(build)
    async def asaid(
        client: AsyncFeedbackClient | FeedbackClient | Target, /, *arguments: P.args, **named: P.kwargs
    ) -> str:
        return await asend(client, build(*arguments, **named))

    taken = inspect.signature(build)
    first = inspect.Parameter("client", inspect.Parameter.POSITIONAL_ONLY)
    public = taken.replace(parameters=[first, *taken.parameters.values()], return_annotation="str")
    for helper, name in ((said, build.__name__[1:]), (asaid, "a" + build.__name__[1:])):
        named: Any = helper
        named.__name__ = named.__qualname__ = name
        named.__signature__ = public
    return said, asaid


def comment(
    client: Client | Target,
    answer: Any,
    text: str | None = None,
    *,
    understood: dict[str, float] | None = None,
    user: str | None = None,
) -> Understood:
    """Say what to change about an answer, or correct what was understood of that; returns what was understood."""
    said = Comment(decision_id=decision_of(answer), text=text, understood=understood, user=user, token=token_of(answer))
    found: Understood = carrier(client, "comment").comment(said)
    return found


async def acomment(
    client: Client | Target,
    answer: Any,
    text: str | None = None,
    *,
    understood: dict[str, float] | None = None,
    user: str | None = None,
) -> Understood:
    """Say what to change about an answer, see `comment`."""
    said = Comment(decision_id=decision_of(answer), text=text, understood=understood, user=user, token=token_of(answer))
    found: Understood = await carrier(client, "acomment").acomment(said)
    return found


def _patiently(call: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """Call again for a while if the decision or run is not in the log yet."""
    for pause in _pauses(patience_s):
        try:
            return call()
        except UnknownDecision:
            time.sleep(pause)
    return call()


async def _apatiently(call: Callable[[], Awaitable[T]], patience_s: float = PATIENCE_S) -> T:
    for pause in _pauses(patience_s):
        try:
            return await call()
        except UnknownDecision:
            await asyncio.sleep(pause)
    return await call()


def _pauses(patience_s: float) -> Iterator[float]:
    """Yield pauses between attempts until patience runs out; the caller makes the last attempt."""
    deadline = time.monotonic() + patience_s
    for pause in _PAUSES_S:
        if time.monotonic() >= deadline:
            return
        yield pause
    while time.monotonic() < deadline:
        yield _PAUSES_S[-1]


rate, arate = _helpers(_rate)
thumb, athumb = _helpers(_thumb)
compare, acompare = _helpers(_compare)
edited, aedited = _helpers(_edited)
accepted, aaccepted = _helpers(_accepted)
copied, acopied = _helpers(_copied)
regenerated, aregenerated = _helpers(_regenerated)
task, atask = _helpers(_task)
