"""Eligibility of models for a request: capabilities, context window, vendor-bound history, and parameters.

Everything is read from the request and the model card; no provider is called. Models that cannot take a request are
excluded with a reason, before any probabilities are computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from fitrouter.context.features import estimate_tokens, needs
from fitrouter.routing.parameters import NEUTRAL, UNKNOWN, doubtful, effort_of, effort_wish, family, lineage, takes
from fitrouter.routing.variants import called, effort_level
from fitrouter.types import Message, ModelCard, Request

DROPPABLE = (
    *("prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier", "store"),
    *("chat_template_kwargs", "enable_thinking", "include_reasoning", "reasoning", "reasoning_effort"),
    *("reasoning_format", "thinking", "thinking_budget", "top_k", "verbosity"),
)
"""Bookkeeping between a client and its provider; how long a model thinks and writes, and from how many tokens it draws,
which agents send with every request, whatever the model: what is asked does not change."""

STATE = "history: "
"""Begins what is left out of the messages: reasoning that a model cannot read."""

_MEDIA = {
    "input_audio": "audio",
    "audio_url": "audio",
    "file": "files",
    "input_file": "files",
    "document": "files",
    "video_url": "video",
    "input_video": "video",
}
"""Type of a message part → the capability that it needs."""


class Wants(msgspec.Struct, frozen=True, kw_only=True):
    """What a request needs from a model."""

    capabilities: tuple[str, ...] = ()
    """Sorted; any of audio, files, images, json, streaming, tools, video."""
    prompt_tokens: int = 0
    """Estimated, tools included."""
    history_tokens: int = 0
    """Of the messages alone."""
    answer_tokens: int = 0
    """The caller's limit; 0 if there is none."""
    choices: int = 1
    """Answers that are drawn."""
    bound: dict[str, str] = {}
    """Vendor → content of the history that only this vendor's models can read; reasoning, others can do without."""
    params: dict[str, Any] = {}

    @property
    def tokens(self) -> int:
        """Number of tokens that must fit into the context window."""
        return self.prompt_tokens + self.answer_tokens


class Eligible(msgspec.Struct, frozen=True, kw_only=True):
    """Eligible and excluded models, both in canonical order (sorted by arm)."""

    cards: tuple[ModelCard, ...]
    excluded: tuple[tuple[str, str], ...] = ()
    """(arm, reason) of the excluded models."""
    dropped: dict[str, tuple[str, ...]] = {}
    """Arm → parameters to leave out of the call, and reasoning, which begins with `STATE`."""


def wants(request: Request) -> Wants:
    """Determine what a request needs from a model; malformed parts are ignored, nothing is raised."""
    capabilities = set(needs(request))
    bound: dict[str, str] = {}
    for message in request.messages:
        for block in _blocks(message):
            kind = block.get("type")
            if isinstance(kind, str) and kind in _MEDIA:
                capabilities.add(_MEDIA[kind])
            if (owner := _owner(block)) is not None and (owner[0] not in bound or owner[1] in _NEEDED):
                bound[owner[0]] = owner[1]
    params = request.params
    if any(tool.get("type") == "custom" for tool in _dicts(params.get("tools"))):
        bound.setdefault("openai", "custom tools")
    history_tokens = estimate_tokens(request.messages, {})
    modalities = params.get("modalities")
    if isinstance(params.get("audio"), dict) or (isinstance(modalities, (list, tuple)) and "audio" in modalities):
        capabilities.add("audio")
    return Wants(
        capabilities=tuple(sorted(capabilities)),
        prompt_tokens=history_tokens + estimate_tokens((), params),
        history_tokens=history_tokens,
        answer_tokens=max(_count(params.get("max_tokens")), _count(params.get("max_completion_tokens"))),
        choices=request.n,
        bound=bound,
        params=params,
    )


class Models:
    """The models in use; replaced when they change.

    Args:
        cards: of all arms, of any order.

    Attributes:
        cards: arm → card.
        names: name, as a request pins it → card.
        arms: the same name → arm.
        roster: checks which are eligible.
    """

    def __init__(self, cards: Iterable[ModelCard]) -> None:
        self.roster = Roster(cards)
        self.cards: Mapping[str, ModelCard] = {card.arm: card for card in self.roster.cards}
        self.names: Mapping[str, ModelCard] = {called(card): card for card in self.roster.cards}
        self.arms: Mapping[str, str] = {name: card.arm for name, card in self.names.items()}


class Roster:
    """Model cards prepared for fast eligibility checks (about a microsecond for three models).

    Args:
        cards: all models, of any order.

    >>> cards = [ModelCard(name="claude-x", provider="p"), ModelCard(name="gpt-4o", provider="p", context_window=99)]
    >>> found = Roster(cards).eligible(Wants(prompt_tokens=100, params={"seed": 7}), droppable=["seed"])
    >>> [card.arm for card in found.cards], found.dropped
    (['claude-x'], {'claude-x': ('seed',)})
    >>> found.excluded
    (('gpt-4o', 'context: needs about 100 tokens, has 99'),)
    """

    def __init__(self, cards: Iterable[ModelCard]) -> None:
        self.cards = tuple(sorted(cards, key=lambda card: card.arm))
        self._seats = [
            _Seat(
                card,
                card.arm,
                frozenset(card.capabilities),
                card.context_window,
                math.inf if card.max_output_tokens is None else card.max_output_tokens,
                family(card) if card.parameters is None else card.parameters,
                lineage(card),
                effort_level(card),
            )
            for card in self.cards
        ]
        self._kinds = {seat.kind: seat.card for seat in self._seats}
        self._makers = {seat.maker for seat in self._seats}

    def eligible(self, asked: Wants, *, droppable: Collection[str] = DROPPABLE) -> Eligible:
        """Split the models into eligible and excluded ones.

        Reasoning that only its maker can read goes to its models if there are any, else to those of unknown makers;
        where these cannot take the request, it is left out.

        Args:
            asked: requirements of the request, see `wants`.
            droppable: parameters that are left out for a model that does not support them; any other unsupported
                parameter excludes the model, unless its value is neutral (temperature 1, n 1, no penalty …).
        """
        chosen: list[ModelCard] = []
        excluded: list[tuple[str, str]] = []
        dropped: dict[str, tuple[str, ...]] = {}
        needed, tokens, answer, makers = frozenset(asked.capabilities), asked.tokens, asked.answer_tokens, asked.bound
        # Supported parameters depend on a card's API family only, or on its own list: check each kind once.
        by_kind = {kind: _parameters(card, asked.params, droppable) for kind, card in self._kinds.items()}
        for card, arm, able, window, limit, kind, maker, effort in self._seats:
            refused, left_out = by_kind[kind]
            if effort and len(self._seats) > 1 and (wish := effort_wish(card, asked.params)) not in ("", effort):
                refused = (*refused, f"effort: the request asks for {wish} itself")
            if (
                refused
                or tokens > window
                or answer > limit
                or not needed <= able
                or (makers and any(self._bars(maker, *content) for content in makers.items()))
            ):
                excluded.append((arm, "; ".join([*_reasons(card, asked, self._bars), *refused])))
                continue
            chosen.append(card)
            if left_out:
                dropped[arm] = left_out
        if not chosen and (spare := {maker: what for maker, what in makers.items() if what not in _NEEDED}):
            needed_only = {maker: what for maker, what in makers.items() if what in _NEEDED}
            found = self.eligible(msgspec.structs.replace(asked, bound=needed_only), droppable=droppable)
            for card in found.cards:
                unread = tuple(f"{STATE}{what}" for maker, what in spare.items() if not _reads(card, maker))
                found.dropped[card.arm] = (*found.dropped.get(card.arm, ()), *unread)
            return found
        return Eligible(cards=tuple(chosen), excluded=tuple(excluded), dropped=dropped)

    def _bars(self, own: str, maker: str, what: str) -> bool:
        """Whether content of one vendor excludes the models of another."""
        return own != maker and (what in _NEEDED or own not in UNKNOWN or maker in self._makers)


class _Seat(NamedTuple):
    """A card with the fields that every eligibility check reads."""

    card: ModelCard
    arm: str
    able: frozenset[str]
    window: int
    limit: float
    kind: object
    maker: str
    effort: str


def _reasons(card: ModelCard, asked: Wants, bars: Callable[[str, str, str], bool]) -> Iterator[str]:
    """Reasons to exclude a model, except for its parameters."""
    missing = [name for name in asked.capabilities if name not in card.capabilities]
    if missing:
        yield f"capability: lacks {', '.join(missing)}, has {', '.join(sorted(card.capabilities)) or 'none'}"
    if asked.tokens > card.context_window:
        yield f"context: needs about {asked.tokens} tokens, has {card.context_window}"
    limit = card.max_output_tokens
    if limit is not None and asked.answer_tokens > limit:
        yield f"answer: needs up to {asked.answer_tokens} tokens, writes at most {limit}"
    for maker, what in asked.bound.items():
        if bars(own := lineage(card), maker, what):
            yield f"history: has {what} that only {maker} models can read, is {own}"


def _parameters(
    card: ModelCard, params: Mapping[str, Any], droppable: Collection[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the reasons to exclude a model for its parameters, and the parameters to leave out instead."""
    reasons: list[str] = []
    left_out: list[str] = []
    for name in doubtful(card, params):
        value = params[name]
        if not (reason := takes(card, name, value)):
            continue
        if value is None or name in droppable or any(value == neutral for neutral in NEUTRAL.get(name, ())):
            left_out.append(name)
        else:
            reasons.append(reason)
    return tuple(reasons), tuple(left_out)


def noted(card: ModelCard, params: Mapping[str, Any], left_out: Collection[str]) -> tuple[str, ...]:
    """Return the parameters that a caller misses of those left out: neither neutral nor translated.

    >>> noted(ModelCard(name="mistral-large", provider="mistral"), {"temperature": 1, "thinking": {}}, ["thinking"])
    ('thinking',)
    """
    return tuple(
        name
        for name in left_out
        if params.get(name, name) is not None
        and all(params.get(name) != neutral for neutral in NEUTRAL.get(name, ()))
        and not (name in ("reasoning", "thinking") and effort_of(card, params) is not None)
    )


def _count(value: object) -> int:
    """Convert a number of tokens to int; 0 if it is not a positive number."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0:
        return int(value)
    return 0


# --- vendor-bound content of the history ---------------------------------------------------------------------------

_PLAIN_MESSAGE = frozenset({"content", "name", "role", "tool_call_id", "tool_calls"})
_PLAIN_PART = frozenset({"cache_control", "text", "type"})
_PLAIN_CALL = frozenset({"function", "id", "index", "type"})
_PLAIN_FUNCTION = frozenset({"arguments", "name"})
_SIGNATURES = "thought signatures"
_OF_SIGNATURE = ("thought_signature", "thought_signatures", "thoughtSignature")
_SIGNED = frozenset({"extra_content", "provider_specific_fields", *_OF_SIGNATURE})
_NEEDED = frozenset({"custom tools", "earlier spoken answer", "encrypted search results"})
"""Content that no model can do without."""
_THOUGHT = "__thought__"
"""Separator that litellm puts between the id of a tool call and Gemini's thought signature."""


def _blocks(message: Message) -> Iterator[dict[str, Any]]:
    """The parts of a message that can carry a signature; plain text and plain tool calls are skipped for speed."""
    if not message.keys() <= _PLAIN_MESSAGE:
        yield message
        for field in ("thinking_blocks", "reasoning_items", "reasoning_details"):
            yield from _dicts(message.get(field))
    content, calls = message.get("content"), message.get("tool_calls")
    for part in () if isinstance(content, str) else _dicts(content):
        if not part.keys() <= _PLAIN_PART or part.get("type") != "text":
            yield part
    for call in _dicts(calls) if calls else ():
        function = call.get("function")
        plain = isinstance(function, dict) and function.keys() <= _PLAIN_FUNCTION and call.keys() <= _PLAIN_CALL
        if not plain or _THOUGHT in str(call.get("id")):
            yield call


def _dicts(value: object) -> Iterator[dict[str, Any]]:
    """The dicts of a list; nothing if the value is not a list."""
    if isinstance(value, (list, tuple)):
        for item in value:
            if isinstance(item, dict):
                yield item


def _owner(block: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return (vendor, kind of content) of a block that only its vendor's models can read; None for other blocks.

    Empty signatures are ignored: some gateways send them for models that sign nothing.
    """
    kind = block.get("type")
    if kind == "redacted_thinking" or (kind == "thinking" and block.get("signature")):
        return "anthropic", "signed thinking"
    if isinstance(kind, str) and kind.startswith("reasoning.") and (block.get("data") or block.get("signature")):
        return _maker(block.get("format")), "encrypted reasoning"
    if block.get("encrypted_content"):
        return "openai", "encrypted reasoning"
    if kind == "web_search_tool_result":
        return "anthropic", "encrypted search results"
    if block.get("role") == "assistant" and isinstance(block.get("audio"), dict) and block["audio"].get("id"):
        return "openai", "earlier spoken answer"
    if _thought(block):
        return "google", _SIGNATURES
    return None


def _reads(card: ModelCard, maker: str) -> bool:
    """Whether a model may read a vendor's reasoning."""
    return lineage(card) in (maker, *UNKNOWN)


def without_state(message: Message, card: ModelCard) -> Message:
    """Leave the reasoning out of a message that a model cannot read, and signatures; text and calls stay."""
    found, unsigned = dict(message), not _reads(card, "google")
    for name in ("content", "reasoning_details", "reasoning_items", "thinking_blocks", "tool_calls"):
        if isinstance(given := message.get(name), (list, tuple)):
            kept = [each for each in given if not (isinstance(each, dict) and _is_foreign(each, card))]
            found[name] = [_unsigned(each) if unsigned and isinstance(each, dict) else each for each in kept]
    if not _reads(card, "openai"):
        found.pop("encrypted_content", None)
    return _unsigned(found) if unsigned else found


def _is_foreign(block: Mapping[str, Any], card: ModelCard) -> bool:
    """Whether a block is reasoning that a model cannot read, not only signed."""
    maker, what = _owner(block) or ("", _SIGNATURES)
    return what != _SIGNATURES and not _reads(card, maker)


def _unsigned(block: Mapping[str, Any]) -> dict[str, Any]:
    """A message or call without thought signatures; its id loses the one in it, and the result's reference, too."""
    found = {name: value for name, value in block.items() if name not in _SIGNED}
    for name in ("id", "tool_call_id"):
        if isinstance(found.get(name), str):
            found[name] = found[name].partition(_THOUGHT)[0]
    if isinstance(function := found.get("function"), dict):
        found["function"] = {name: value for name, value in function.items() if name not in _SIGNED}
    return found


def _maker(form: object) -> str:
    """The vendor in OpenRouter's name of a reasoning format, such as `google-gemini-v1`; OpenAI by default."""
    maker = form.partition("-")[0] if isinstance(form, str) else ""
    return maker if maker in ("anthropic", "google", "xai") else "openai"


def _thought(block: Mapping[str, Any]) -> bool:
    """Whether a block has a Gemini thought signature, in Google's OpenAI format or in litellm's fields or call ids."""
    if _THOUGHT in str(block.get("id")):
        return True
    function, extra = block.get("function"), block.get("extra_content")
    places = [block, block.get("provider_specific_fields")]
    if isinstance(function, dict):
        places.append(function.get("provider_specific_fields"))
    if isinstance(extra, dict):
        places.append(extra.get("google"))
    return any(isinstance(place, dict) and place.get(field) for place in places for field in _OF_SIGNATURE)
