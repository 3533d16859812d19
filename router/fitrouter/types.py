"""Values that cross boundaries: frozen, slotted, and encoded by msgspec as they are.

Two families. *Calls* travel between the caller, the router and a provider (`Request`, `Call`, `Completion`, `Chunk`).
*Events* are what happened: each is one row of the journal, and everything the router knows is a fold over them.
Arrays inside events are raw little-endian bytes (`pack`, `unpack`), so that an event reads back bit for bit.
"""

from __future__ import annotations

import abc
import enum
from typing import Any, ClassVar, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from fitrouter.plain import convert_fields, make_plain

AUTO = "fitrouter/auto"
"""The model name that asks for routing."""

Floats: TypeAlias = NDArray[np.float64]
Message: TypeAlias = dict[str, Any]
"""One chat message in the OpenAI format."""


class _Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A frozen value."""


class _Logged(_Value, frozen=True, kw_only=True):
    """A value that events hold: its numbers and texts are plain Python values, whatever numpy scalars were given.

    Raises:
        TypeError: a field holds something that is no number, or no text.
    """

    def __post_init__(self) -> None:
        make_plain(self)


# --- calls ---------------------------------------------------------------------------------------------------------


class Identity(_Logged, frozen=True, kw_only=True):
    """Who asks, and for what.

    In a `Request` the fields hold what the caller sent. In events `user` is the subject, a random token that
    only `identities.db` can lead back to a person, and `session` is a hash.
    """

    tenant: str = "default"
    user: str | None = None
    role: str | None = None
    task: str | None = None
    session: str | None = None


class Request(_Value, frozen=True, kw_only=True):
    """One chat completion as the caller asked for it."""

    messages: tuple[Message, ...]
    model: str = AUTO
    params: dict[str, Any] = {}
    """Sampling options, tools, response_format …: passed through, never transport."""
    identity: Identity = Identity()
    stream: bool = False
    deadline_s: float | None = None
    """Seconds for the whole request; the configured deadline where None."""


class Prices(_Logged, frozen=True, kw_only=True):
    """USD per million tokens."""

    input: float = 0.0
    output: float = 0.0


class Variant(_Logged, frozen=True, kw_only=True):
    """A way of asking a model: its arms share how right it is and what it costs, and differ in how it writes."""

    name: str
    prefix: str = ""
    """Goes in front of the caller's system text, which therefore has the last word."""
    params: dict[str, Any] = {}
    """Sampling options where the caller gives none."""


class ModelCard(_Logged, frozen=True, kw_only=True):
    """What is known of a model before it is asked."""

    name: str
    provider: str
    """Key of the provider in the configuration."""
    target: str = ""
    """What the provider calls it; the name where empty."""
    prices: Prices = Prices()
    context_window: int = 128_000
    """Tokens of prompt and answer together."""
    capabilities: tuple[str, ...] = ("streaming", "tools", "json")
    """Any of: streaming, tools, json, images, audio, files, video."""
    revision: str = ""
    parameters: tuple[str, ...] | None = None
    """Request parameters that it takes; None: what its provider is known to take."""
    max_output_tokens: int | None = None
    cache_discount: float = 0.5
    """Share of the input price that a cached prompt saves."""
    variants: tuple[Variant, ...] = ()
    """Further ways of asking it; each becomes an arm of its own (`fitrouter.routing.variants`)."""
    variant: Variant | None = None
    """The way of asking that this card stands for."""

    @property
    def arm(self) -> str:
        """The identity that posteriors are kept for, `name#variant@revision`: a new revision is a new arm."""
        variant = f"#{self.variant.name}" if self.variant else ""
        revision = f"@{self.revision}" if self.revision else ""
        return f"{self.name}{variant}{revision}"


class Call(_Value, frozen=True, kw_only=True):
    """One attempt at one model, as a provider sees it."""

    target: str
    messages: tuple[Message, ...]
    params: dict[str, Any] = {}
    stream: bool = False
    timeout_s: float = 60.0
    """Seconds that are left for this attempt; the router cancels it then."""


class Usage(_Value, frozen=True, kw_only=True):
    """Tokens as the provider counted them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt's, those that the provider had in its cache."""
    reasoning_tokens: int = 0
    """Of the completion's, those that the model thought and nobody reads."""


class Completion(_Value, frozen=True, kw_only=True):
    """A whole answer. `message` is the assistant message in the OpenAI format, relayed unmodified."""

    message: Message
    finish_reason: str = "stop"
    usage: Usage = Usage()


class Chunk(_Value, frozen=True, kw_only=True):
    """A piece of a streamed answer: the `delta` of the OpenAI format, relayed unmodified."""

    delta: Message = {}
    finish_reason: str | None = None
    usage: Usage | None = None


# --- events --------------------------------------------------------------------------------------------------------


class Mode(enum.StrEnum):
    """How a decision came about. Σp = 1 and the floor hold for online, uniform and shadow."""

    ONLINE = "online"
    UNIFORM = "uniform"
    SHADOW = "shadow"
    """The default model's share of the traffic: the policy proposed and was not asked."""
    STICKY = "sticky"
    PINNED = "pinned"
    FORCED = "forced"


class PolicyVersion(_Logged, frozen=True, kw_only=True):
    """Algorithm, hash of its settings, and the last sequence number folded into what it read."""

    algorithm: str
    config_hash: str = ""
    seq: int = 0


class _Event(_Logged, frozen=True, kw_only=True):
    id: str
    """UUIDv7 of the event; appending it again is a no-op."""
    ts: float
    """Seconds since the epoch."""


class Decision(_Event, frozen=True, kw_only=True, tag="decision"):
    """Which model was asked, and with what probability. `id` is the decision id.

    Arrays follow `eligible`, the arms in canonical (sorted) order. `draw_id` is the decision whose draw this one lives
    on: its own, or for a sticky turn the session's last draw.
    """

    draw_id: str
    identity: Identity
    mode: Mode
    eligible: tuple[str, ...]
    excluded: tuple[tuple[str, str], ...] = ()
    probs: tuple[float, ...] = ()
    chosen: str
    propensity: float
    features: bytes = b""
    """x, float32[d]: exactly what the policy read."""
    mean: tuple[float, ...] = ()
    """Predicted fit."""
    sd: tuple[float, ...] = ()
    cost: tuple[float, ...] = ()
    """Expected USD."""
    latency: tuple[float, ...] = ()
    """Expected seconds."""
    availability: tuple[float, ...] = ()
    """P(answers)."""
    cost_weight: float = 0.0
    cost_unit_usd: float = 0.0
    latency_weight: float = 0.0
    latency_unit_s: float = 0.0
    """Fit that a whole unit of cost, of latency takes away, and the units."""
    budget_weight: float = 0.0
    """λ: fit that a whole `budget_unit_usd` costs, on top of `cost_weight`; the tenant's dual variable."""
    budget_unit_usd: float = 0.0
    switch: tuple[float, ...] = ()
    """Fit that leaving the session's model costs, where a session is drawn again."""
    floor: float = 0.0
    """Every eligible model has at least floor / K in `probs`."""
    share: float = 1.0
    twin: tuple[float, ...] = ()
    """pmf of the user-blind twin: the same policy without the user's and the role's terms."""
    personal: tuple[float, ...] = ()
    """pmf with those terms, where they are switched off and `probs` is the twin's."""
    candidates: dict[str, tuple[float, ...]] = {}
    """Shadow candidate → its pmf: what it would have done."""
    new: tuple[str, ...] = ()
    """Arms under the raised floor of newcomers."""
    rest: tuple[float, ...] = ()
    """What no policy has a say in (floor, slice, newcomers, default): probs = (1 − Σ rest) · policy + rest."""
    steps: float = 0.0
    """Labels that the beliefs rest on; exploration shrinks with them."""
    user_turn: bool = True
    """A person's words began it; False for an agent's steps within a turn."""
    redraw: str = ""
    """Why a session was drawn again; empty for a session's first draw and its sticky turns."""
    asked: bool = False
    asked_probability: float = 0.0
    deadline_s: float = 0.0
    """Of the request, where it had one of its own."""
    policy: PolicyVersion
    registry: str = ""
    encoder: str = ""
    seed: int = 0
    """Installation seed of the draw."""


class Attempt(_Logged, frozen=True, kw_only=True):
    """One call of one model: its probability given that the earlier ones failed, and how it ended."""

    model: str
    probability: float
    error: str | None = None
    ms: float = 0.0


class Execution(_Event, frozen=True, kw_only=True, tag="execution"):
    """How the answer ended. `status`: ok, partial, cancelled, failed, lost."""

    decision_id: str
    identity: Identity
    chosen: str
    served_by: str | None
    status: str
    attempts: tuple[Attempt, ...] = ()
    features: bytes = b""
    """The decision's x again, so that a fold needs no look-up."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    ttft_ms: float | None = None
    latency_ms: float = 0.0
    finish_reason: str | None = None
    overhead_ms: float = 0.0
    """Time spent in the router itself."""


class Score(_Event, frozen=True, kw_only=True, tag="score"):
    """What the user's reward model says of an answer: a feature, never a reward. `status`: ok, expired, failed."""

    decision_id: str
    identity: Identity
    served_by: str
    features: bytes = b""
    """The decision's x again."""
    h: bytes = b""
    """Response features, float32[D]; empty unless status is ok."""
    schema: str = ""
    """Names and version of the features in h."""
    encoder: str = ""
    mean: float = 0.0
    sd: float = 0.0
    dimensions: dict[str, tuple[float, float]] = {}
    """Mean and sd of the user's other reward heads, where there are any."""
    status: str = "ok"


class FeedbackKind(enum.StrEnum):
    """Signals from people."""

    THUMB = "thumb"
    """value 0 (down) or 1 (up)"""
    RATING = "rating"
    """value on scale"""
    PAIR = "pair"
    """value 1: better than the answer of `other`; 0: worse; ½: as good"""
    ACCEPT = "accept"
    """value 1: taken over as it is; 0: left"""
    COPY = "copy"
    """value 1: a part was copied; 0: nothing"""
    EDIT = "edit"
    """value: share of the text that was changed before use, 0…1"""
    DWELL = "dwell"
    """value: seconds spent on it"""
    REGENERATE = "regenerate"
    """value 1: another answer was asked for; 0: not"""


class Feedback(_Event, frozen=True, kw_only=True, tag="feedback"):
    """A person's verdict. One vote per (decision, kind, dimension): a later one supersedes."""

    decision_id: str
    identity: Identity
    kind: FeedbackKind
    value: float
    scale: tuple[float, float] = (0.0, 1.0)
    dimension: str = "overall"
    other: str = ""
    """A pair's other answer, by its decision id."""
    asked: bool = False
    """The decision had solicited it (asked stream), else volunteered."""
    source: str = "user"

    def __post_init__(self) -> None:
        convert_fields(self)

    @property
    def y(self) -> float:
        """The value on [0, 1]; for a stay its seconds."""
        if self.kind is FeedbackKind.DWELL:
            return self.value
        low, high = self.scale
        return (self.value - low) / (high - low)


class ProfileChange(_Event, frozen=True, kw_only=True, tag="profile"):
    """A user's declared profile changed."""

    identity: Identity
    declared: dict[str, float] = {}
    """Dimension → −1 (wants less of it) … 1 (wants more). It replaces what was declared before."""


class RoleText(_Event, frozen=True, kw_only=True, tag="role"):
    """A role was heard of for the first time: what its text is like."""

    tenant: str
    role: str
    """Its key, see `fitrouter.posterior.tastes.role_key`."""
    vector: bytes = b""
    """float32[m] of the prompt encoder."""


class ModelChange(_Event, frozen=True, kw_only=True, tag="model"):
    """The registry changed: the cards now in force."""

    cards: tuple[ModelCard, ...]
    registry: str


class PolicyChange(_Event, frozen=True, kw_only=True, tag="policy"):
    """What the policy is to do from now on. `action`: set, promote, restore (the version before), config (the file)."""

    action: str
    settings: dict[str, Any] = {}
    """set, promote: what differs from the configuration, see `fitrouter.state.settings.SETTINGS`."""
    name: str = ""
    """promote: the candidate."""
    config_hash: str = ""
    """The configuration that this was said under."""


class ArtifactChange(_Event, frozen=True, kw_only=True, tag="artifact"):
    """A trained file came into force; it is named by its sha256, its result is read and not recomputed."""

    name: str
    sha256: str


class Erasure(_Event, frozen=True, kw_only=True, tag="erasure"):
    """A subject was erased."""

    subject: str


class Refit(_Event, frozen=True, kw_only=True, tag="refit"):
    """Everything that the journal holds now is to be folded again, each vote as it stands."""


Event: TypeAlias = (
    Decision
    | Execution
    | Score
    | Feedback
    | ProfileChange
    | RoleText
    | ModelChange
    | PolicyChange
    | ArtifactChange
    | Erasure
    | Refit
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)


def encode_event(event: Event) -> bytes:
    """The event as msgpack bytes."""
    return _encoder.encode(event)


def decode_event(payload: bytes) -> Event:
    """The event that `encode_event` made.

    Raises:
        msgspec.DecodeError: the bytes are no event.
    """
    return _decoder.decode(payload)


def pack(values: NDArray[Any]) -> bytes:
    """float32[d] as little-endian bytes."""
    return np.ascontiguousarray(values, dtype="<f4").tobytes()


def unpack(payload: bytes) -> Floats:
    """float64[d] of the float32 bytes that `pack` made."""
    return np.frombuffer(payload, dtype="<f4").astype(np.float64)


class Projection(abc.ABC):
    """State computed from events and stored under its own name, as the msgpack of one value."""

    stored_type: ClassVar[Any]
    """Type of the value that is stored."""

    def dump(self) -> bytes:
        """The state as bytes, without loss."""
        return msgspec.msgpack.encode(self._store())

    def load(self, payload: bytes) -> bool:
        """Restore a state that `dump` returned. False, and unchanged, if the bytes are damaged or inconsistent."""
        try:
            return self._restore(msgspec.msgpack.decode(payload, type=self.stored_type))
        except (msgspec.DecodeError, ValueError):
            return False

    @abc.abstractmethod
    def _store(self) -> Any:
        """The state as a value of `stored_type`."""

    @abc.abstractmethod
    def _restore(self, stored: Any) -> bool:
        """Check all of a value of `stored_type`, then take it over. False, and unchanged, if it is inconsistent."""
