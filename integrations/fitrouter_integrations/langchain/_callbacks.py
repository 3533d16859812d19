"""Feedback from the runs of an agent: failed tools, retries, and users' feedback on runs.

A run's id leads to the last decision under it: of the model's own run and of every run around it, since LangSmith users
rate the outermost one. Feedback on a run that has not ended waits for its end.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import LLMResult

from fitrouter.errors import UnknownDecision
from fitrouter.posterior.tastes import OVERALL
from fitrouter.serving.feedback import on_scale
from fitrouter.state.quality_floor import BASE
from fitrouter.types import FeedbackKind
from fitrouter_integrations._outbox import Outbox
from fitrouter_integrations.client import RunVote, Target, Vote
from fitrouter_integrations.feedback import PATIENCE_S, TOOLS, FeedbackClient, asend, carrier

LIMIT = 4096
"""Maximum number of remembered runs, decisions, tool calls and waiting votes; the oldest are dropped."""
_A_RUN = 64
"""Maximum number of votes that wait for one run."""
_RETRY = re.compile(r"retry:attempt:\d+")
_WORDS = {"up": 1.0, "good": 1.0, "yes": 1.0, "correct": 1.0, "down": 0.0, "bad": 0.0, "no": 0.0, "incorrect": 0.0}
"""Values as text, as in annotation queues."""

KEYS: dict[str, tuple[FeedbackKind | None, str]] = {
    **dict.fromkeys(("accept", "accepted"), (FeedbackKind.ACCEPT, OVERALL)),
    **dict.fromkeys(("copied", "copy"), (FeedbackKind.COPY, OVERALL)),
    **dict.fromkeys(("correct", "correctness", "task", "task_success"), (FeedbackKind.THUMB, BASE)),
    "dwell": (FeedbackKind.DWELL, OVERALL),
    **dict.fromkeys(("edit", "edited"), (FeedbackKind.EDIT, OVERALL)),
    **dict.fromkeys(("rating", "stars"), (FeedbackKind.RATING, OVERALL)),
    **dict.fromkeys(("regenerate", "regenerated"), (FeedbackKind.REGENERATE, OVERALL)),
    **dict.fromkeys(("score", "user_score"), (None, OVERALL)),
    **dict.fromkeys(("thumb", "thumbs"), (FeedbackKind.THUMB, OVERALL)),
}
"""LangSmith key → (kind, dimension). Without a kind, 0, 1 and words are a thumb, other numbers a rating. Any other key
is a dimension.
"""

_log = logging.getLogger(__name__)
V = TypeVar("V")


def _vote(kind: FeedbackKind, value: float, dimension: str = OVERALL, **more: Any) -> Vote:
    """Create a vote whose decision is not known yet; see `_send`."""
    return Vote(decision_id="", kind=kind, value=value, dimension=dimension, **more)


class FitrouterCallbackHandler(BaseCallbackHandler):
    """Turns events of runs, and feedback on runs, into feedback on decisions. It never fails a run.

        signals = FitrouterCallbackHandler(model)
        agent.invoke(question, {"callbacks": [signals], "run_id": run_id})
        signals.create_feedback(run_id, "user_score", score=1)

    - a tool call fails, names no tool or is invalid JSON: `thumb` 0 in the dimension `tools`; if all work: 1
    - a chain of `with_retry` runs again after an answer: `regenerate` 1 of that answer
    - the outermost run fails: its outcome is a failure, as an adapter's report (`fitrouter.serving.runs`)
    - `create_feedback`, with the arguments of LangSmith's client: see `KEYS`

    Feedback is sent in the background; failures are logged. `flush` waits for it.

    Args:
        router: gave the answers: a `ChatFitrouter`, `FitrouterMiddleware` or `Client`, or a target of `connect`.
        keys: more keys, see `KEYS`.
        patience_s: how long feedback waits for a decision that is not in the log yet.
    """

    run_inline = True  # keeps the order of events; the handlers do not block

    def __init__(
        self,
        router: FeedbackClient | Target,
        *,
        keys: Mapping[str, tuple[FeedbackKind | None, str]] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        client = carrier(router)

        async def sent(said: Vote | RunVote) -> None:
            if isinstance(said, Vote):
                await asend(client, said, patience_s)
                return
            with suppress(UnknownDecision):  # its calls have no run: neither a thread nor a `run_id` was given
                await carrier(client, "aoutcome").aoutcome(said)

        self._outbox: Outbox[Vote | RunVote] = Outbox("feedback", sent, size=LIMIT)
        self._keys = {**KEYS, **(keys or {})}
        self._mutex = threading.RLock()
        self._parents: OrderedDict[str, str | None] = OrderedDict()
        self._decided: OrderedDict[str, str] = OrderedDict()
        """Run → the last decision under it."""
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._met: OrderedDict[str, int] = OrderedDict()
        """Decision → its tool calls that have not come back."""
        self._calls: OrderedDict[tuple[str, str], str] = OrderedDict()
        """(outermost run, tool call) → the decision that asked for it."""
        self._broken: OrderedDict[str, set[str]] = OrderedDict()
        """Decision → its tool calls that failed."""
        self._waiting: OrderedDict[str, list[Vote]] = OrderedDict()

    # --- feedback ---

    def create_feedback(
        self,
        run_id: UUID | str | None = None,
        key: str = "score",
        *,
        score: float | bool | None = None,
        value: float | bool | str | Mapping[str, Any] | None = None,
        trace_id: UUID | str | None = None,
        feedback_config: Mapping[str, Any] | None = None,
        feedback_source_type: Any = "api",
        user: str | None = None,
        **_ignored: Any,
    ) -> bool:
        """Record feedback on a run, with the arguments of LangSmith's `Client.create_feedback`.

        Before the run has ended it waits; later feedback with the same key replaces it.

        Args:
            run_id: of the model's run, or of any run around it, whose last answer is meant.
            key: see `KEYS`.
            score: a number, or whether it was good.
            value: the same, also as text, used if there is no score.
            trace_id: of the outermost run, used if there is no `run_id`.
            feedback_config: `min` and `max` of a score that is not on [0, 1].
            feedback_source_type: "model" is refused: a judge model is not a user.
            user: author; must be the user who got the answer, if given.
            _ignored: comments, corrections and other arguments of LangSmith, which are not stored.

        Returns:
            Whether it was accepted; refusals are logged.
        """
        try:
            run = _run(run_id or trace_id, getattr(feedback_source_type, "value", feedback_source_type))
            self._take(run, self._read(key, value if score is None else score, feedback_config or {}, user))
        except Exception as error:  # noqa: BLE001 - feedback must not fail its author
            _log.warning("feedback %r was refused: %s", key, error)
            return False
        return True

    def flush(self, timeout_s: float | None = 30.0) -> bool:
        """Wait until feedback on known answers is sent; returns whether that happened in time."""
        return self._outbox.flush(timeout_s)

    def _read(self, key: str, score: Any, config: Mapping[str, Any], user: str | None) -> Vote:
        kind, dimension = self._keys.get(key.lower().replace("-", "_").replace(" ", "_"), (None, key))
        if isinstance(score, str):
            score = _WORDS.get(score.strip().lower(), score)
        if not isinstance(score, int | float):
            raise ValueError(f"{score!r} is not a score; give a number, True, False or one of {', '.join(_WORDS)}")  # noqa: TRY004
        low, high = config.get("min"), config.get("max")
        scale = (0.0 if low is None else float(low), 1.0 if high is None else float(high))
        if kind is None:
            kind = FeedbackKind.THUMB if scale == (0.0, 1.0) and score in (0, 1) else FeedbackKind.RATING
        if kind is not FeedbackKind.RATING and scale != (0.0, 1.0):
            score, scale = (score - scale[0]) / (scale[1] - scale[0]), (0.0, 1.0)
        on_scale(kind, float(score), scale)
        return _vote(kind, float(score), dimension, scale=scale, user=user)

    def _take(self, run: str, said: Vote) -> None:
        with self._mutex:
            if run in self._ended and run in self._decided:
                self._send(self._decided[run], said)
                return
            if run in self._ended:
                raise ValueError(f"run {run} ended without an answer of the router")
            if run not in self._waiting and len(self._waiting) >= LIMIT:
                lost, _ = self._waiting.popitem(last=False)
                _log.warning("feedback on run %s was dropped: too many unknown runs have waiting feedback", lost)
            waiting = self._waiting.setdefault(run, [])
            waiting.append(said)
            del waiting[:-_A_RUN]

    # --- events; LangChain calls these ---

    def on_chat_model_start(
        self,
        *_args: Any,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        **_more: Any,
    ) -> None:
        """Note the start of a run: a model call, chain, agent, graph node or tool."""
        parent = None if parent_run_id is None else str(parent_run_id)
        with self._mutex:
            _keep(self._parents, str(run_id), parent)
            again = parent is not None and any(_RETRY.fullmatch(tag) for tag in tags or ())
            if again and (decision := self._decided.get(parent or "")) is not None:
                self._send(decision, _vote(FeedbackKind.REGENERATE, 1.0))

    on_llm_start = on_chain_start = on_tool_start = on_chat_model_start

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_more: Any) -> None:
        """Note a model's answer."""
        said = [getattr(each, "message", None) for group in response.generations for each in group]
        self._finished(run_id, [message for message in said if isinstance(message, BaseMessage)])

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **_more: Any) -> None:
        """Note the end of a chain, agent or node."""
        self._finished(run_id, list(_messages(outputs)))

    def on_tool_end(self, output: Any, *, run_id: UUID, **more: Any) -> None:
        """Note the end of a tool."""
        call = more.get("tool_call_id") or getattr(output, "tool_call_id", None)
        self._tool(run_id, call, worked=getattr(output, "status", "success") != "error")
        self._finished(run_id, [])

    def on_tool_error(self, *_args: Any, run_id: UUID, **more: Any) -> None:
        """Note the failure of a tool."""
        self._tool(run_id, more.get("tool_call_id"), worked=False)
        self._finished(run_id, [])

    def on_chain_error(self, *_args: Any, run_id: UUID, **_more: Any) -> None:
        """Note the failure of a chain, agent, node or model."""
        run = str(run_id)
        with self._mutex:
            if self._parents.get(run) is None and (decision := self._decided.get(run)) is not None:
                self._outbox.put(RunVote(run=decision, value=False, source="adapter"))
        self._finished(run_id, [])

    on_llm_error = on_chain_error

    # --- state ---

    def _finished(self, run_id: UUID, messages: list[BaseMessage]) -> None:
        run = str(run_id)
        with self._mutex:
            last = next((each for each in reversed(messages) if isinstance(each, AIMessage)), None)
            if last is not None:
                self._note_answer(run, last)
            for message in messages:
                if isinstance(message, ToolMessage) and message.status == "error":
                    self._tool(run_id, message.tool_call_id, worked=False)
            _keep(self._ended, run, None)
            waiting = self._waiting.pop(run, [])
            for said in waiting:
                if run in self._decided:
                    self._send(self._decided[run], said)
                else:
                    _log.warning("feedback on run %s was dropped: it ended without an answer of the router", run)

    def _note_answer(self, run: str, said: AIMessage) -> None:
        """Note a new answer, the runs that it belongs to, and its tool calls."""
        decision = said.response_metadata.get("decision_id")
        if not isinstance(decision, str) or decision in self._met:
            return
        _keep(self._met, decision, len(said.tool_calls))
        around = list(self._around(run))
        for each in around:
            _keep(self._decided, each, decision)
        for call in said.tool_calls:
            if call["id"]:
                _keep(self._calls, (around[-1], call["id"]), decision)
        if said.invalid_tool_calls:
            _keep(self._broken, decision, {"invalid"})
            self._send(decision, _vote(FeedbackKind.THUMB, 0.0, dimension=TOOLS))

    def _tool(self, run_id: UUID, call: str | None, *, worked: bool) -> None:
        """Note the result of a tool call. A call that fails and works when repeated counts as good."""
        with self._mutex:
            *_, outermost = self._around(str(run_id))
            decision = self._calls.get((outermost, call or ""))
            if call is None or decision is None:
                return
            broken = self._broken.get(decision, set())
            before = bool(broken)
            broken = broken - {call} if worked else broken | {call}
            _keep(self._broken, decision, broken)
            left = max(self._met.get(decision, 0) - int(worked), 0)
            _keep(self._met, decision, left)
            if broken and not before:
                self._send(decision, _vote(FeedbackKind.THUMB, 0.0, dimension=TOOLS))
            elif not broken and not left:
                self._send(decision, _vote(FeedbackKind.THUMB, 1.0, dimension=TOOLS))

    def _around(self, run: str) -> Iterator[str]:
        """Yield the run and its ancestors, the outermost last."""
        at: str | None = run
        while at is not None:
            yield at
            at = self._parents.get(at)

    def _send(self, decision: str, said: Vote) -> None:
        self._outbox.put(msgspec.structs.replace(said, decision_id=decision))


def _run(run_id: UUID | str | None, source: Any) -> str:
    if run_id is None:
        raise ValueError("it has no run; give run_id or trace_id")
    if source == "model":
        raise ValueError("it comes from a model; only feedback from people counts")
    return str(run_id)


def _keep(kept: OrderedDict[Any, V], key: Any, value: V) -> None:
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > LIMIT:
        kept.popitem(last=False)


def _messages(outputs: Any, depth: int = 3) -> Iterator[BaseMessage]:
    """Yield the messages in a chain's output: a message, an agent's state, a command that updates it, or a list."""
    if isinstance(outputs, BaseMessage):
        yield outputs
    elif depth:
        found = getattr(outputs, "update", None) if type(outputs).__name__ == "Command" else outputs
        if isinstance(found, Mapping):
            found = found.get("messages")
        if isinstance(found, list | tuple):
            for each in found:
                yield from _messages(each, depth - 1)
        elif isinstance(found, BaseMessage):
            yield found
