"""Sessions: the model of a conversation, when it is drawn again, and the cost of switching.

The first decision of a session is a draw; later turns keep its model (they are sticky). When a session is drawn again
depends on rules that all policies share (every n user turns, another task, a failure, a prompt that no longer fits,
silence), never on the policy's predictions: a switch that follows the policy's own means biases replay (by +.10 in a
simulation whose mean weight was 1.00). The new draw is over the present model and all others, with the switching cost
inside the logged pmf.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from fitrouter.context.features import last_user_message
from fitrouter.identity import canonical_role
from fitrouter.plain import Projection
from fitrouter.types import NOT_CALLED, Decision, Execution, Feedback, FeedbackKind, Floats, Message, Mode, ModelCard

EVERY = 8
"""Default number of user turns between draws."""
IDLE_S = 3600.0
"""Default number of idle seconds after which a session ends."""
CACHE_S = 300.0
"""Seconds for which providers keep a prompt cached, at least."""
LASTING_S = 3600.0
"""Seconds for which those keep it that were seen to keep one longer than that."""
CACHES = 8
"""Caches that are remembered of a session."""
CACHE_TOKENS = 1024
"""Length of the shortest prompt that providers cache."""
SAVED = 0.5
"""Fraction of the input price that cached tokens are expected to save, where their price is not known."""
STUCK = 2
"""Default of the most draws because an agent is stuck, within a user turn."""
EDITS = 2
"""Answers in a row that a person changed before using them, or had made again, after which a session is stuck."""
LIMIT = 4096
"""Default number of sessions kept, the most recently used."""

_TOOL_PARTS = ("tool_result", "function_call_output")


class Cache(NamedTuple):
    """A prompt that a model has cached."""

    arm: str
    tokens: int
    ts: float
    """Of the answer."""
    writes: bool
    """Whether its provider bills what it writes to the cache."""
    lasting: bool = False
    """Whether it was written for an hour, or read after more than `CACHE_S`."""

    @property
    def life_s(self) -> float:
        """Seconds for which it is expected to be kept."""
        return LASTING_S if self.lasting else CACHE_S


class Session(msgspec.Struct, frozen=True, array_like=True):
    """State of one conversation: the draw that it follows, and its prompt caches."""

    draw_id: str
    """Id of the decision that was drawn."""
    arm: str
    """The model that was drawn."""
    ts: float
    """Time of the last decision, in seconds since the epoch."""
    turns: int = 0
    """User turns since the draw, its own included; an agent's steps within a turn do not count."""
    failures: int = 0
    """Consecutive turns in which the model failed."""
    caches: tuple[Cache, ...] = ()
    """One of each model that still had one at the last answer, pinned models too; that of the last model is last."""
    answered_ts: float = 0.0
    """Time of the last answer of the session's model, or in its place."""
    last: str = ""
    """Id of the last decision, pinned ones included."""
    turn: int = 0
    """Its `Decision.turn`."""
    tier: str = ""
    """Cost tier of the draw."""
    stuck: str = ""
    """Sign for which it was drawn (`Decision.stuck`); empty for another reason."""
    tried: tuple[str, ...] = ()
    """Models that were stuck since the user turn began, or the last other draw."""
    task: str = ""
    """Task of the draw, as its request named it."""
    draws: int = 0
    """Draws of this session."""
    calls: int = 0
    """Its calls."""
    reads: int = 0
    """Its answers that read from a prompt cache."""
    edits: tuple[str, ...] = ()
    """Its last decisions in a row whose answers the person changed or had made again; `EDITS` at most."""

    def _valid(self) -> bool:
        numbers = self.turns, self.failures, self.turn, self.draws, self.calls, self.reads
        counts = min(*numbers, *(cache.tokens for cache in self.caches))
        times = sum((cache.ts for cache in self.caches), self.ts + self.answered_ts)
        return bool(self.draw_id and self.arm and math.isfinite(times) and counts >= 0)


class Sessions(Projection):
    """States of the most recently used sessions, computed from decisions, executions and edits of answers."""

    stored_type = list[tuple[str, Session]]

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self.evicted_after_s = math.inf
        """Silence after which the last evicted session was forgotten, in this process; infinite before the first."""
        self._known: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def get(self, key: str) -> Session | None:
        """The session of a key; None for an unknown one."""
        return self._known.get(key)

    def observe_decision(self, decision: Decision, *, user_turn: bool = True) -> None:
        """Update the session of a decision; for a pinned or forced decision, only note its id.

        Args:
            decision: as logged.
            user_turn: whether it begins a user turn (`begins_turn`); False for an agent's steps.
        """
        key = decision.identity.session
        before = None if key is None else self._known.get(key)
        if decision.look:  # it counts once it is run
            return
        if key is None or decision.mode in {Mode.PINNED, Mode.FORCED}:
            if key is not None and before is not None:
                self._known[key] = msgspec.structs.replace(before, last=decision.id, turn=decision.turn)
            return
        after = advance(before, decision, user_turn)
        self._known[key] = after
        self._known.move_to_end(key)
        if len(self._known) > self.limit:
            _, evicted = self._known.popitem(last=False)
            self.evicted_after_s = max(decision.ts - max(evicted.ts, evicted.answered_ts), 0.0)

    def observe_execution(self, execution: Execution) -> None:
        """Update a session's prompt caches, and its failures by answers of its draw: not of earlier or pinned ones."""
        key = execution.identity.session
        before = None if key is None else self._known.get(key)
        if key is None or before is None:
            return
        after = before
        if execution.served_by is not None and execution.prompt_tokens > 0:
            reads = before.reads + (execution.cached_tokens > 0)
            cache = cache_after(execution, next((c for c in before.caches if c.arm == execution.served_by), None))
            warm = [c for c in before.caches if c.arm != cache.arm and execution.ts - c.ts <= c.life_s]
            after = msgspec.structs.replace(before, caches=(*warm[1 - CACHES :], cache), reads=reads)
        if execution.chosen != before.arm:
            self._known[key] = after
            return
        # A rejected request is not the model's failure, and neither is one that was not sent or was cancelled.
        if any(attempt.model == before.arm and attempt.error not in _NO_FAILURE for attempt in execution.attempts):
            after = msgspec.structs.replace(after, failures=before.failures + 1)
        elif execution.served_by == before.arm:
            after = msgspec.structs.replace(after, failures=0)
        if after.caches is not before.caches:
            after = msgspec.structs.replace(after, answered_ts=execution.ts)
        self._known[key] = after

    def observe_feedback(self, vote: Feedback) -> None:
        """Note that the session's last answer was changed before it was used, or made again, or that it was not."""
        key = vote.identity.session
        before = None if key is None else self._known.get(key)
        if key is None or before is None or vote.kind not in _EDITS or vote.decision_id != before.last:
            return
        edits = tuple(each for each in before.edits if each != vote.decision_id)
        if vote.value > 0.0:
            edits = (*edits, vote.decision_id)[-EDITS:]
        self._known[key] = msgspec.structs.replace(before, edits=edits)

    def _store(self) -> list[tuple[str, Session]]:
        return list(self._known.items())

    def _restore(self, stored: list[tuple[str, Session]]) -> bool:
        known = OrderedDict(stored)
        if len(known) < len(stored) or len(stored) > self.limit or not all(s._valid() for s in known.values()):
            return False
        self._known = known
        return True


def advance(before: Session | None, decision: Decision, user_turn: bool) -> Session:
    """Return a session's state after another decision, before its answer has ended."""
    turn = int(user_turn)
    cached: tuple[tuple[Cache, ...], float] = (), 0.0
    if before is not None:
        if decision.draw_id == before.draw_id:
            turns = before.turns + turn
            tried = () if user_turn else before.tried
            edits = before.edits if not user_turn or before.last in before.edits else ()
            known = {"turns": turns, "last": decision.id, "turn": decision.turn, "calls": before.calls + 1}
            now = msgspec.structs.replace(before, ts=decision.ts, edits=edits, **known)
            return now if tried == before.tried else msgspec.structs.replace(now, tried=tried)
        # The prompt stays cached at the models that answered, whichever is drawn now.
        cached = before.caches, before.answered_ts
    last, at, tier = decision.id, decision.turn, decision.tier
    tried = (*before.tried, before.arm) if before is not None and decision.redraw == "stuck" else ()
    drawn = decision.draw_id, decision.chosen, decision.ts
    task = canonical_role(decision.identity.task) or ""
    counts = (1, 1, 0) if before is None else (before.draws + 1, before.calls + 1, before.reads)
    return Session(*drawn, turn, 0, *cached, last, at, tier, decision.stuck, tried, task, *counts)


def cache_after(execution: Execution, before: Cache | None) -> Cache:
    """Return what the model of an answer has cached; nothing, if it was expected to read what it had, and did not."""
    tokens, read, lasting = execution.prompt_tokens, execution.cached_tokens > 0, False
    if before is not None:
        silent_s = execution.ts - execution.latency_ms / 1000.0 - before.ts
        lasting = before.lasting if silent_s <= CACHE_S else read
        if not read and silent_s <= before.life_s and tokens >= CACHE_TOKENS:
            tokens = 0
    lasting = lasting or execution.written_1h_tokens > 0
    return Cache(execution.served_by or "", tokens, execution.ts, execution.written_tokens > 0, lasting)


_EDITS = frozenset({FeedbackKind.EDIT, FeedbackKind.REGENERATE})
_NO_FAILURE = (None, "ProviderRejected", *NOT_CALLED, "CancelledError")


def begins_turn(messages: Sequence[Message]) -> bool:
    """Whether a request begins a user turn: its last message is a user's text, not the output of a tool.

    >>> begins_turn([{"role": "user", "content": "And now?"}])
    True
    >>> begins_turn([{"role": "user", "content": "Hi"}, {"role": "tool", "content": "42"}])
    False
    """
    last = messages[-1] if messages else {}
    if last.get("role") != "user":
        return False
    content = last.get("content")
    if not isinstance(content, list):
        return True
    return not any(isinstance(part, dict) and part.get("type") in _TOOL_PARTS for part in content)


def previous_decision(session: Session, messages: Sequence[Message], turn: int) -> str:
    """Id of the decision whose answer the last message follows; empty if that is not certain.

    The message must be a user's, directly behind an assistant's text, and the history must have more user messages than
    the request of the session's last decision: a retry, an edited message and a history that the client cuts to a
    fixed length do not.

    Args:
        session: the session so far.
        messages: of the request.
        turn: number of user messages among them.
    """
    if len(messages) < 2 or not 0 < session.turn < turn or not begins_turn(messages):
        return ""
    answered = messages[-2].get("role") == "assistant" and not messages[-2].get("tool_calls")
    return session.last if answered and last_user_message(messages) is messages[-1] else ""


def redraw_reason(
    session: Session,
    *,
    eligible: Collection[str],
    excluded: Sequence[tuple[str, str]] = (),
    now: float,
    user_turn: bool = True,
    every: int = EVERY,
    idle_s: float = IDLE_S,
    tier: str = "",
    task: str | None = None,
    stuck: str = "",
    most_stuck: int = STUCK,
) -> str:
    """Return why the model of a session's next turn is drawn again; empty if the session keeps its model.

    * ``idle``: the session was idle for too long and has ended; a new one begins.
    * ``context``: the prompt no longer fits the model's context window.
    * ``ineligible``: the model cannot take this request for another reason, or was removed.
    * ``failed``: the model failed in the last turn.
    * ``stuck``: the agent shows a sign of being stuck, and fewer than `most_stuck` were given up for it.
    * ``tier``: the request asks for another cost tier than that of the draw.
    * ``task``: the request names another task than that of the draw.
    * ``turns``: the draw is `every` user turns old.

    The last two never between an agent's steps, only when a user turn begins.

    Args:
        session: the session so far.
        eligible: arms that can take the request.
        excluded: (arm, reason) of the others.
        now: seconds since the epoch.
        user_turn: whether the request begins a user turn (`begins_turn`).
        every: user turns between draws; 0 for no limit.
        idle_s: idle seconds that end a session.
        tier: cost tier of the request.
        task: that the request names.
        stuck: the sign that the agent is stuck, if there is one.
        most_stuck: draws for it within a user turn.
    """
    if now - max(session.ts, session.answered_ts) > idle_s:
        return "idle"
    if session.arm not in eligible:
        return "context" if "context: " in dict(excluded).get(session.arm, "") else "ineligible"
    if session.failures:
        return "failed"
    if stuck and len(session.tried) < most_stuck:
        return "stuck"
    if tier != session.tier:
        return "tier"
    if user_turn and canonical_role(task) not in {None, session.task}:
        return "task"
    return "turns" if user_turn and 0 < every <= session.turns else ""


def switch_cost(cards: Sequence[ModelCard], session: Session, prompt_tokens: int, now: float) -> Floats:
    """Cost in USD of a call that a model has and the cheapest to go on with has not, by prompt caches, float64[K].

    The expected cost of each model contains the prompt at full price. A model that has a prefix of it cached takes its
    price of cached tokens for it; half of the input price, if that is not known. Where the session's client has prompts
    written to caches at a price, the rest is. That is so in the first call. Until the next draw there will be as many
    calls as the session had for each of its draws, and as many of them will read their prompt from the model's cache:
    the cost is the mean over all of them. Where nothing is cached, all is 0.

    Args:
        cards: the eligible models.
        session: the session so far.
        prompt_tokens: estimated length of the prompt.
        now: seconds since the epoch.
    """
    cost = np.zeros(len(cards))
    caches = {
        c.arm: c for c in session.caches if now - c.ts <= c.life_s and min(c.tokens, prompt_tokens) >= CACHE_TOKENS
    }
    draws = max(session.draws, 1)
    calls = max(session.calls / draws, 1.0)
    later = min(session.reads / draws, calls - 1.0) if prompt_tokens >= CACHE_TOKENS else 0.0
    writes = any(cache.writes for cache in caches.values())  # the client marks what is to be cached
    write = "cache_write_1h" if any(cache.lasting for cache in caches.values()) else "cache_write"
    for k, (arm, prices) in enumerate((card.arm, card.prices) for card in cards):
        cached = min(caches[arm].tokens, prompt_tokens) if arm in caches else 0
        saved = prices.input * SAVED if prices.cache_read is None else max(prices.input - prices.cache_read, 0.0)
        premium = max(prices.of(write) - prices.input, 0.0) if writes else 0.0
        cost[k] = (premium * (prompt_tokens - cached) - saved * (cached + later * prompt_tokens)) / calls
    lowest = cost.min() if len(cards) else 0.0
    return (cost - lowest) / 1e6
