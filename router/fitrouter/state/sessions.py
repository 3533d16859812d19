"""Sessions: which model a conversation lives on, when it is drawn again, and what it costs to leave.

A session's first decision is a draw; its later turns are sticky. It is drawn again by rules that every candidate
shares (every n user turns, the stay failed, the prompt outgrew it, silence) and never by what a policy believes: a
switch that follows the policy's own means biases replay (by +.10 where the mean weight was 1.00). The new draw is over
the stay and all other models, with the cost of leaving inside the logged pmf.

`Sessions` is a fold over decisions and executions; the rest is pure functions of a session.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence

import msgspec
import numpy as np

from fitrouter.types import Decision, Execution, Floats, Message, Mode, ModelCard, Projection

EVERY = 8
"""User turns after which a session is drawn again."""
IDLE_S = 3600.0
"""A session that was silent for longer begins anew."""
CACHE_S = 300.0
"""Providers keep a prompt for at least this long."""
CACHE_TOKENS = 1024
"""Prompts shorter than this are not cached."""
LIMIT = 4096
"""Sessions that are remembered, the last ones first."""

_TOOL_PARTS = ("tool_result", "function_call_output")


class Session(msgspec.Struct, frozen=True, array_like=True):
    """What a conversation lives on."""

    draw_id: str
    """The decision whose draw it was."""
    arm: str
    """The model that was drawn: the stay."""
    ts: float
    """Of the last decision, seconds since the epoch."""
    turns: int = 0
    """User turns on this draw, its own included; an agent's steps within a turn do not count."""
    failures: int = 0
    """Turns in a row at which the stay did not answer."""
    cached_arm: str = ""
    """Who answered last, and so has the prompt in its cache."""
    cached_tokens: int = 0
    """Tokens of that prompt."""
    cached_ts: float = 0.0

    def _sound(self) -> bool:
        counts = min(self.turns, self.failures, self.cached_tokens)
        return bool(self.draw_id and self.arm and math.isfinite(self.ts + self.cached_ts) and counts >= 0)


class Sessions(Projection):
    """The sessions of the last conversations, least recently used first. A fold: no clock, no I/O, nothing random."""

    stored_type = list[tuple[str, Session]]

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self._known: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def get(self, key: str) -> Session | None:
        """The session of a key, None where none is known."""
        return self._known.get(key)

    def observe_decision(self, decision: Decision, *, user_turn: bool = True) -> None:
        """Fold a decision. Pinned and forced ones are the caller's own choice and move no session.

        Args:
            decision: as it was logged.
            user_turn: a person began it, see `begins_turn`; False for an agent's steps.
        """
        key = decision.identity.session
        if key is None or decision.mode in {Mode.PINNED, Mode.FORCED}:
            return
        after = moved(self._known.get(key), decision, user_turn)
        self._known[key] = after
        self._known.move_to_end(key)
        if len(self._known) > self.limit:
            self._known.popitem(last=False)

    def observe_execution(self, execution: Execution) -> None:
        """Fold how an answer of the stay ended; those of earlier draws and of pinned models say nothing about it."""
        key = execution.identity.session
        before = None if key is None else self._known.get(key)
        if key is None or before is None or execution.chosen != before.arm:
            return
        after = before
        # A request that was refused is at fault itself; one that was given up says nothing.
        if any(attempt.model == before.arm and attempt.error not in _NO_FAILURE for attempt in execution.attempts):
            after = msgspec.structs.replace(after, failures=before.failures + 1)
        elif execution.served_by == before.arm:
            after = msgspec.structs.replace(after, failures=0)
        if execution.served_by is not None and execution.prompt_tokens > 0:
            after = msgspec.structs.replace(
                after,
                cached_arm=execution.served_by,
                cached_tokens=execution.prompt_tokens,
                cached_ts=execution.ts,
            )
        self._known[key] = after

    def _store(self) -> list[tuple[str, Session]]:
        return list(self._known.items())

    def _restore(self, stored: list[tuple[str, Session]]) -> bool:
        known = OrderedDict(stored)
        if len(known) < len(stored) or len(stored) > self.limit or not all(s._sound() for s in known.values()):
            return False
        self._known = known
        return True


def moved(before: Session | None, decision: Decision, user_turn: bool) -> Session:
    """A session after one more decision, as long as nobody knows how its answer ended."""
    turn = int(user_turn)
    if before is None:
        return Session(decision.draw_id, decision.chosen, decision.ts, turn)
    if decision.draw_id == before.draw_id:
        return msgspec.structs.replace(before, ts=decision.ts, turns=before.turns + turn)
    # The last answer's prompt stays in its cache, whoever is drawn now.
    cached = before.cached_arm, before.cached_tokens, before.cached_ts
    return Session(decision.draw_id, decision.chosen, decision.ts, turn, 0, *cached)


_NO_FAILURE = (None, "ProviderRejected")


def begins_turn(messages: Sequence[Message]) -> bool:
    """Whether a request begins a user turn: its last message is a person's words, and no tool's output.

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


def why_redraw(
    session: Session,
    *,
    eligible: Collection[str],
    excluded: Sequence[tuple[str, str]] = (),
    now: float,
    user_turn: bool = True,
    every: int = EVERY,
    idle_s: float = IDLE_S,
) -> str:
    """Why a session's next turn is a draw; empty where it is sticky.

    * ``idle``: it was silent for too long. Nothing is left of it: the draw is a new session's.
    * ``context``: the prompt has outgrown the stay.
    * ``ineligible``: the stay cannot take this request for another reason, or is gone.
    * ``failed``: the stay did not answer at its last turn.
    * ``turns``: it is time; never inside an agent's run, which begins with a user turn.

    Args:
        session: as it stands.
        eligible: arms that can take the request.
        excluded: (arm, reason) of the others.
        now: seconds since the epoch.
        user_turn: the request begins a user turn, see `begins_turn`.
        every: user turns on one draw; 0 for no limit.
        idle_s: seconds of silence that end a session.
    """
    if now - max(session.ts, session.cached_ts) > idle_s:
        return "idle"
    if session.arm not in eligible:
        return "context" if "context: " in dict(excluded).get(session.arm, "") else "ineligible"
    if session.failures:
        return "failed"
    return "turns" if user_turn and 0 < every <= session.turns else ""


def switch_cost(
    cards: Sequence[ModelCard],
    session: Session,
    prompt_tokens: int,
    now: float,
    *,
    cache_s: float = CACHE_S,
    cache_tokens: int = CACHE_TOKENS,
) -> Floats:
    """float64[K] in USD: what the prompt costs more at each model, because another has the session's prefix cached.

    Everybody's expected cost already has the prompt at its full price. The model that answered last pays
    input price × (1 − cache_discount) on the part that it has seen, so going to any other forgoes
    input price × cache_discount × min(cached, prompt) tokens: the same sum for all of them, and 0 for itself.

    Args:
        cards: the eligible models.
        session: as it stands.
        prompt_tokens: of the request, estimated.
        now: seconds since the epoch.
        cache_s: how long prompts are kept.
        cache_tokens: the shortest prompt that is.
    """
    cost = np.zeros(len(cards))
    cached = min(session.cached_tokens, prompt_tokens)
    if cached < cache_tokens or now - session.cached_ts > cache_s:
        return cost
    for k, card in enumerate(cards):
        if card.arm == session.cached_arm:
            cost[:] = card.prices.input * card.cache_discount * cached / 1e6
            cost[k] = 0.0
    return cost
