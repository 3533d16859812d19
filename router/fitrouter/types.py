"""Frozen value types: calls to models, and the events of the journal.

*Calls* travel between the caller, the router and a provider (`Request`, `Call`, `Completion`, `Chunk`). Each *event* is
one row of the journal, and all learned state is a fold over the events. Arrays in events are raw little-endian bytes
(`pack`, `unpack`), so that an event reads back bit for bit. Values are encoded with msgspec.
"""

from __future__ import annotations

import enum
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from fitrouter.plain import convert_fields, make_plain, with_packed_rows, with_rows

AUTO = "fitrouter/auto"
"""The model name that requests routing."""

Floats: TypeAlias = NDArray[np.float64]
Message: TypeAlias = dict[str, Any]
"""One chat message in the OpenAI format."""


class _Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of the immutable value types."""


class _Logged(_Value, frozen=True, kw_only=True):
    """Base of values in events; it converts numpy scalars in its fields to plain Python values.

    Raises:
        TypeError: a field holds something that is no number, or no text.
    """

    def __post_init__(self) -> None:
        make_plain(self)


# --- calls ---------------------------------------------------------------------------------------------------------


class Identity(_Logged, frozen=True, kw_only=True):
    """The caller of a request: tenant, user, role, task, session, and the run of an agent that it is a step of.

    In a `Request` the fields hold the caller's values. In events `user` is a subject, a random token that only
    `identities.db` maps to a person, and `session` and `run` are hashes.
    """

    tenant: str = "default"
    user: str | None = None
    role: str | None = None
    task: str | None = None
    session: str | None = None
    run: str | None = None


class Payer(_Value, frozen=True, kw_only=True):
    """An API key that has a limit of its own."""

    name: str
    usd_per_day: float
    """Per day (UTC)."""


class Request(_Value, frozen=True, kw_only=True):
    """One chat completion request."""

    messages: tuple[Message, ...]
    model: str = AUTO
    params: dict[str, Any] = {}
    """Sampling options, tools, response_format …; passed through, never transport settings."""
    identity: Identity = Identity()
    stream: bool = False
    n: int = 1
    """Number of choices; one model draws them all, and the first is scored."""
    deadline_s: float | None = None
    """Seconds for the whole request; None for the configured deadline."""
    implicit: bool = True
    """Whether the last message may be read as a remark on the answer before it."""
    payer: Payer | None = None
    """Key whose limit the calls count towards, besides the tenant's budget."""
    key: str = ""
    """Name of the API key that sent it."""
    tier: str = ""
    """How much price counts: quality, balanced or economy; empty for balanced (`fitrouter.routing.tiers`)."""
    plan: str = ""
    """Plan that was looked at and is to be run (`Router.look`): its pick, or the alternative that `model` names."""
    person: bool = False
    """Whether a trusted caller says that a person chose that alternative."""


UNPRICED = (
    "A model without a price is weighed at the highest input and output prices that are configured, in decisions and "
    "budgets; where none is configured, its cost is not weighed. Hard limits exclude it. Sums of money leave it "
    "out and say so."
)
"""How models without a price are weighed (`Config.cards`)."""


_LEAST = 1e-9
"""Price below which nothing is in proportion to it."""


class Prices(_Logged, frozen=True, kw_only=True):
    """USD per million tokens. A part that has no price of its own costs what `WHOLE` says."""

    input: float = 0.0
    """Price of a million prompt tokens in USD."""
    output: float = 0.0
    """Price of a million completion tokens in USD."""
    cache_read: float | None = None
    """Price of a million prompt tokens that were read from the provider's cache."""
    cache_write: float | None = None
    """Price of a million prompt tokens that were written to the provider's cache."""
    cache_write_1h: float | None = None
    """Price of a million prompt tokens that the provider's cache keeps for an hour."""
    reasoning: float | None = None
    """Price of a million tokens of hidden reasoning."""
    audio_input: float | None = None
    """Price of a million audio tokens of the prompt."""
    audio_output: float | None = None
    """Price of a million audio tokens of the answer."""
    request: float = 0.0
    """Fee of a call in USD, besides its tokens."""
    long_above: int | None = None
    """Tokens of a prompt above which `long_input` and `long_output` count, and other parts in proportion."""
    long_input: float | None = None
    """Price of a million tokens of so long a prompt."""
    long_output: float | None = None
    """Price of a million completion tokens after it."""
    known: bool = True
    """False if none were configured; `input` and `output` are then assumed (`Config.cards`)."""

    def of(self, part: str, prompt_tokens: float = 0.0) -> float:
        """Price of a part of a call's tokens, a field of these prices; without one, that of what it is a part of."""
        found: float | None = getattr(self, part)
        if found is None:
            return self.of(WHOLE[part], prompt_tokens)
        if self.long_above is None or prompt_tokens <= self.long_above:
            return found
        answer = part in {"output", "reasoning", "audio_output"}
        usual, long = (self.output, self.long_output) if answer else (self.input, self.long_input)
        if long is None or found == usual:
            return found if long is None else long
        return found * (long / usual) if usual > _LEAST else found


WHOLE = {
    "cache_read": "input",
    "cache_write": "input",
    "cache_write_1h": "cache_write",
    "reasoning": "output",
    "audio_input": "input",
    "audio_output": "output",
}
"""Price of a part of the tokens → the one that counts where it is not configured."""


class Variant(_Logged, frozen=True, kw_only=True):
    """A system prefix and parameters that make a variant of a model.

    Its arms share correction and cost (but for efforts), and have response profiles of their own.
    """

    name: str
    prefix: str = ""
    """Prepended to the caller's system prompt, which takes precedence."""
    params: dict[str, Any] = {}
    """Defaults for sampling options that the caller omits."""


class Check(_Logged, frozen=True, kw_only=True):
    """What checks the answers of a model: a program, a JSON schema, the request's own schema, or a judge."""

    command: tuple[str, ...] = ()
    """Program, with arguments."""
    schema: dict[str, Any] = {}
    """Of the content of the answer."""
    of_request: bool = False
    """Whether the schema is the one that the request names in `response_format`."""
    judge: str = ""
    """Name of a reward model of the scorer."""
    least: float = 0.0
    """Lowest verdict of the judge that an answer passes with."""

    @property
    def name(self) -> str:
        """What it is, in a word."""
        return self.judge or (self.command[0] if self.command else "schema")


class ModelCard(_Logged, frozen=True, kw_only=True):
    """Static description of a model: provider, prices, limits and capabilities."""

    name: str
    """Name that requests may give."""
    provider: str
    """Key of the provider in the configuration."""
    target: str = ""
    """The provider's name of the model; empty for `name`."""
    prices: Prices = Prices()
    context_window: int = 128_000
    """Tokens of prompt and answer."""
    capabilities: tuple[str, ...] = ("streaming", "tools", "json")
    """Any of: streaming, tools, json, images, audio, files, video."""
    revision: str = ""
    """Revision in the configuration; a new one is learnt anew."""
    parameters: tuple[str, ...] | None = None
    """Supported request parameters; null for those that its provider is known to support."""
    max_output_tokens: int | None = None
    """Most tokens of an answer."""
    effort: tuple[str, ...] = ()
    """Levels of effort, each of which becomes an arm of its own."""
    variants: tuple[Variant, ...] = ()
    """Each variant becomes an arm of its own (`fitrouter.routing.variants`)."""
    variant: Variant | None = None
    """The variant that this card describes."""
    check: Check | None = None
    """What checks its answers (`fitrouter.providers.checks`)."""

    @property
    def arm(self) -> str:
        """Key of the arm, `name#variant@revision`: a new revision is a new arm."""
        variant = f"#{self.variant.name}" if self.variant else ""
        revision = f"@{self.revision}" if self.revision else ""
        return f"{self.name}{variant}{revision}"


class Call(_Value, frozen=True, kw_only=True):
    """One call of one model, as passed to a provider."""

    target: str
    messages: tuple[Message, ...]
    params: dict[str, Any] = {}
    stream: bool = False
    n: int = 1
    """Number of choices to ask for, of a model that draws several in one call; fewer may come."""
    timeout_s: float = 60.0
    """Seconds left for this attempt; the router cancels it afterwards."""


class EmbeddingCall(_Value, frozen=True, kw_only=True):
    """One call of a model for embeddings."""

    target: str
    params: dict[str, Any]
    """`input`, and options."""
    timeout_s: float = 60.0


class Usage(_Value, frozen=True, kw_only=True):
    """Token counts reported by the provider; parts are within the whole, and apart from each other."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens read from the provider's cache."""
    written_tokens: int = 0
    """Prompt tokens written to the provider's cache."""
    written_1h_tokens: int = 0
    """Those of them that it keeps for an hour."""
    reasoning_tokens: int = 0
    """Completion tokens spent on hidden reasoning."""
    audio_prompt_tokens: int = 0
    """Audio tokens of the prompt, but for cached ones."""
    audio_completion_tokens: int = 0
    calls: int = 1
    """Number of calls that it is the sum of."""
    estimated: bool = False
    """Whether a count is estimated from the text: the provider reported none, or an impossible one."""
    cost_usd: float | None = None
    """What the provider says that the call cost."""
    details: dict[str, dict[str, int]] = {}
    """Further counts, such as those of images, by OpenAI's object that holds them; passed on, never logged."""


class Completion(_Value, frozen=True, kw_only=True):
    """A complete answer. `message` is the assistant message in the OpenAI format, unmodified."""

    message: Message
    finish_reason: str = "stop"
    usage: Usage = Usage()
    """Of all choices."""
    logprobs: dict[str, Any] | None = None
    others: tuple[Completion, ...] = ()
    """The choices after the first, without usage of their own."""
    further: dict[str, Any] = {}
    """Fields beside the choices that are not OpenAI's, such as citations; passed on, never logged."""
    beside: dict[str, Any] = {}
    """Those of the choice, such as what a filter found."""


class Embeddings(_Value, frozen=True, kw_only=True):
    """Vectors of texts: `data` is the JSON of OpenAI's list of embeddings, as the provider sent it."""

    data: msgspec.Raw
    usage: Usage = Usage()


class Chunk(_Value, frozen=True, kw_only=True):
    """A chunk of a streamed answer: the `delta` of the OpenAI format. An empty one says that the model is alive."""

    delta: Message = {}
    finish_reason: str | None = None
    usage: Usage | None = None
    logprobs: dict[str, Any] | None = None
    index: int = 0
    """Of the choice."""
    further: dict[str, Any] = {}
    """As those of a `Completion`."""
    beside: dict[str, Any] = {}


# --- events --------------------------------------------------------------------------------------------------------


class Mode(enum.StrEnum):
    """How a decision chose its model."""

    ONLINE = "online"
    UNIFORM = "uniform"
    SHADOW = "shadow"
    """The default model's share of the traffic; the policy's pmf is logged."""
    STICKY = "sticky"
    PINNED = "pinned"
    FORCED = "forced"

    @property
    def drawn(self) -> bool:
        """Whether the model was drawn from the logged pmf, which then sums to 1 and holds the floor."""
        return self in _DRAWN


_DRAWN = frozenset({Mode.ONLINE, Mode.UNIFORM, Mode.SHADOW})


class PolicyVersion(_Logged, frozen=True, kw_only=True):
    """Algorithm, hash of its settings, and last sequence number folded into its state."""

    algorithm: str
    """Algorithm of the policy."""
    config_hash: str = ""
    """Hash of the settings that decisions depend on."""
    seq: int = 0
    """Last position of the journal that the policy had learnt from."""


class _Event(_Logged, frozen=True, kw_only=True):
    id: str
    """UUIDv7 of the event; appending it again is a no-op."""
    ts: float
    """Seconds since the epoch."""


FULL_SHARE = "share 1"
"""Name of the live policy without the default model's share among the candidates of a decision."""


class Grounds(_Logged, frozen=True, kw_only=True):
    """Terms of a decision's predicted ratings at the time, kept to explain it later."""

    terms: tuple[tuple[float, ...], ...] = ()
    """Of the prediction that decided, to 1e-4, since they only explain: population, role_taste, user_taste, correction,
    role_offset, user_offset. The correction is empty where all together are the decision's mean, which is exact."""
    summands: bytes = b""
    """The terms in logs of earlier versions, float32[6, K]."""
    features: tuple[str, ...] = ()
    """Names of the response features that moved the predictions most."""
    profile: tuple[tuple[float, ...], ...] | bytes = ()
    """Expected values of each of these features, to .01 of its deviation; in earlier logs float32[K, features]."""
    tastes: bytes = b""
    """Their weights, float32[3, features]: of the population, and what role and user add."""
    own: float | None = None
    """Weight of the heads with terms of this user or role; None without labels."""
    answers: tuple[int, ...] = ()
    labels: tuple[int, ...] = ()
    """Answers and labels of each arm, of all users, that had been folded."""


class Decision(_Event, frozen=True, kw_only=True, tag="decision"):
    """The model chosen for a request, and the probability of every eligible model. `id` is the decision id.

    Arrays follow `eligible`, the arms in canonical (sorted) order. `draw_id` is the decision that drew the model: this
    one, or for a sticky turn the session's last draw.
    """

    draw_id: str
    """Decision that drew the model; another one for the later turns of a session that keep its model."""
    identity: Identity
    mode: Mode
    """How the model was chosen. online and uniform, drawn; shadow, the default model; sticky, kept from the session's
    last draw; pinned, named by the request; forced, by an administrator."""
    eligible: tuple[str, ...]
    """Models that could answer, as `name#variant@revision`."""
    excluded: tuple[tuple[str, str], ...] = ()
    """Models that could not, with the reason."""
    probs: tuple[float, ...] = ()
    """Probability of each model."""
    chosen: str
    propensity: float
    """Probability with which the chosen model was drawn."""
    features: bytes = b""
    """Context x exactly as the policy read it, float32[d]: one number for each feature of the request."""
    mean: tuple[float, ...] = ()
    """Predicted rating of each model."""
    sd: tuple[float, ...] = ()
    """Standard deviation of the predicted rating."""
    cost: tuple[float, ...] = ()
    """Expected cost in USD."""
    unpriced: tuple[str, ...] = ()
    """Eligible models without a configured price, whose `cost` is at an assumed one."""
    latency: tuple[float, ...] = ()
    """Expected seconds."""
    availability: tuple[float, ...] = ()
    """Probability that the model answers."""
    cost_weight: float = 0.0
    """Rating given up to save `cost_unit_usd`."""
    cost_unit_usd: float = 0.0
    """Unit of `cost_weight`."""
    tier: str = ""
    """Cost tier that the request asked for, which `cost_weight` follows: quality or economy; empty for balanced."""
    latency_weight: float = 0.0
    """Rating given up to save `latency_unit_s`."""
    latency_unit_s: float = 0.0
    """Unit of `latency_weight`."""
    budget_weight: float = 0.0
    """Rating given up to save `budget_unit_usd` while the tenant's budget is short: λ, its dual variable, on top of
    `cost_weight`."""
    budget_unit_usd: float = 0.0
    """Unit of `budget_weight`."""
    switch: tuple[float, ...] = ()
    """Redraws: rating given up to leave the session's model."""
    floor: float = 0.0
    """Probability that is spread over all eligible models: each has at least floor / K."""
    share: float = 1.0
    """Share of the traffic that the policy routed; the rest went to the default model."""
    twin: tuple[float, ...] = ()
    """Probabilities of the user-blind twin: the same policy without knowledge of user and role."""
    personal: tuple[float, ...] = ()
    """Probabilities with knowledge of user and role, where that is switched off and `probs` is user-blind."""
    candidates: dict[str, tuple[float, ...]] = {}
    """Shadow candidate → the probabilities that it would have had. `share 1`, where a share of the traffic goes to the
    default model: those of the policy for all of it. With a share of 0 the candidates' are for all of it, too."""
    new: tuple[str, ...] = ()
    """Models with the raised exploration share of new ones."""
    rest: tuple[float, ...] = ()
    """Probability of each model that exploration rules set, not the policy: probs = (1 − Σ rest) · policy + rest."""
    steps: float = 0.0
    """Number of labels learnt from so far; exploration shrinks with it."""
    user_turn: bool = True
    """Whether a message of the user began the turn; false for further steps of an agent."""
    turn: int = 0
    """Number of user messages in the request."""
    redraw: str = ""
    """Why the session's model was drawn anew; empty for first draws and sticky turns."""
    stuck: str = ""
    """Sign of being stuck for which the session's model was drawn: loop, error, idle, rejected or edited."""
    asked: bool = False
    """Whether the answer asked for feedback."""
    asked_probability: float = 0.0
    """Probability with which it asked."""
    deadline_s: float = 0.0
    """Deadline of the request in seconds; 0 for the configured one."""
    policy: PolicyVersion
    registry: str = ""
    encoder: str = ""
    seed: int = 0
    """Seed of the installation's draws."""
    grounds: Grounds | None = None
    packed: bytes = b""  # rows of an encoded decision
    payer: str = ""
    """API key with a limit of its own that pays for the calls."""
    key: str = ""
    """Name of the API key that sent the request."""
    look: str = ""
    """Of a plan to be looked at: keyed hash of the request that it is for. It is served only if it is run."""
    plan: str = ""
    """Of a pinned decision: the plan to which a named model was preferred."""
    worker: int = 0
    """Of a stream: number of the process that serves it (`serving.sweeper`)."""


class Attempt(_Logged, frozen=True, kw_only=True):
    """One call of one model: its probability given the earlier failures, and its result."""

    model: str
    probability: float
    error: str | None = None
    ms: float = 0.0
    probe: bool = False
    """Whether it was the probe of an open circuit breaker."""
    cost_usd: float | None = None
    """USD that it was billed as far as known, or may have been; None where that is not known, or nothing."""


RECORDED = "recorded"
"""Status of an Execution without a call: the answer had been recorded earlier. It can be compared; of cost, latency and
availability it tells nothing."""


DECLINED = "declined"
"""Status of an Execution of a plan that was looked at and not run: no model was called, and it tells nothing."""


class Execution(_Event, frozen=True, kw_only=True, tag="execution"):
    """How a request ended; `OUTCOMES` has each `status` and what it counts as."""

    decision_id: str
    identity: Identity
    chosen: str
    served_by: str | None
    status: str
    """ok; failed; partial (broke off); refused (no model was called); rejected (by the provider, as wrong); cancelled
    (by the caller); lost (nobody reported the end); recorded (no request); declined (a plan that was looked at and not
    run)."""
    attempts: tuple[Attempt, ...] = ()
    """Models that were called in turn, each with its probability, error, milliseconds, whether it was the probe of an
    open circuit breaker, and its cost in USD."""
    features: bytes = b""
    """Copy of the decision's x, so that a fold needs no lookup."""
    prompt_tokens: int = 0
    """Tokens of the prompt."""
    completion_tokens: int = 0
    """Tokens of the answer."""
    cached_tokens: int = 0
    """Tokens of the prompt that were read from the provider's cache."""
    written_tokens: int = 0
    """Tokens of the prompt that were written to it."""
    written_1h_tokens: int = 0
    """Those of them that it keeps for an hour."""
    reasoning_tokens: int = 0
    """Tokens of the answer that were hidden reasoning."""
    cost_usd: float = 0.0
    """Cost of all calls in USD. Where `cost_assumed`, no sum may count it; the views leave it out."""
    cost_assumed: bool = False
    """Whether the model has no known price, so that the cost is at an assumed one."""
    ttft_ms: float | None = None
    """Milliseconds to the first token."""
    latency_ms: float = 0.0
    """Milliseconds to the end of the answer."""
    finish_reason: str | None = None
    """Why the model stopped."""
    overhead_ms: float = 0.0
    """Milliseconds spent in the router."""
    believed: bool = True
    """False if a key that is not trusted reported it: nothing that all users share is learnt from it."""
    estimated: bool = False
    """Whether tokens or cost are estimated: of answers left early, of abandoned calls, or where none were reported."""
    payer: str = ""
    key: str = ""
    """The decision's."""

    @property
    def known_usd(self) -> float | None:
        """`cost_usd`; None if the price is not known."""
        return None if self.cost_assumed else self.cost_usd


TOKENS = ("prompt_tokens", "completion_tokens", "cached_tokens", "written_tokens", "reasoning_tokens")
"""Counts of a `Usage` that an Execution keeps."""
OUTCOMES = {
    "ok": "answered",
    "failed": "failed",
    "partial": "failed",
    "refused": "refused",
    "rejected": "rejected",
    "cancelled": "cancelled",
    "lost": "unknown",
    RECORDED: "recorded",
    DECLINED: DECLINED,
}
"""Status of an Execution → what it counts as: answered; failed (a model was called, and no answer, or none to its end,
came); refused (no model was called, though the request is sound); rejected (the provider refused the request itself);
cancelled (its caller left); unknown (a plan that nobody reported, or a process that died); recorded (no request);
declined (a plan that was looked at and not run)."""
FINISH_REASONS = frozenset({"stop", "length", "tool_calls", "function_call", "content_filter", "other"})
"""Finish reasons of answers, OpenAI's; `other` for what a provider calls by a name of its own."""
NOT_CALLED = frozenset({"NotCalled", "NotCovered"})
"""Errors of attempts in which no model was called."""
NO_EVIDENCE = NOT_CALLED | {"CheckFailed", "ProviderRejected", "ContextOverflow", "CancelledError"}
"""Errors of attempts that say nothing on whether the model answers: the request, its caller or a check ended them."""


class PlanRun(_Event, frozen=True, kw_only=True, tag="plan_run"):
    """A plan that was looked at is run, once: the first event of a plan counts."""

    decision_id: str
    identity: Identity
    by: str
    """Decision that is executed: the plan, or the pinned one of an alternative."""
    nonce: str
    """Of the process that runs it, which reads it back to know that it was the first."""
    arm: str
    worker: int = 0


class Refusal(_Event, frozen=True, kw_only=True, tag="refusal"):
    """Requests of a second that were refused before a decision, alike in all fields; `identity` has no session."""

    identity: Identity
    reason: str
    """breaker (no model may be called now), paused, budget, or overloaded."""
    model: str = ""
    """Model that was named; empty for routing."""
    key: str = ""
    """Name of the API key that sent them."""
    n: int = 1
    """Number of requests."""


class Score(_Event, frozen=True, kw_only=True, tag="score"):
    """Reward-model score of an answer: a feature, never a reward. `status`: ok, expired, failed."""

    decision_id: str
    identity: Identity
    served_by: str
    features: bytes = b""
    """Copy of the decision's x."""
    h: bytes = b""
    """Response features of the answer, float32[D]; empty unless status is ok."""
    schema: str = ""
    """Name and version of the features in `h`."""
    encoder: str = ""
    mean: float = 0.0
    """Rating that the reward model expects, from 0 to 1."""
    sd: float = 0.0
    """Standard deviation of it."""
    dimensions: dict[str, tuple[float, float]] = {}
    """Mean and standard deviation of further rated dimensions, the user's other reward heads."""
    sampled: dict[str, float] = {}
    """Reward model that scores a sample → probability with which it was drawn for this answer."""
    status: str = "ok"
    """ok, expired (not scored in time) or failed."""


class FeedbackKind(enum.StrEnum):
    """Kinds of feedback."""

    THUMB = "thumb"
    """value 0 (down) or 1 (up)"""
    RATING = "rating"
    """value on scale"""
    PAIR = "pair"
    """value 1: better than the answer of `other`; 0: worse; 0.5: tie"""
    ACCEPT = "accept"
    """value 1: accepted unchanged; 0: rejected"""
    COPY = "copy"
    """value 1: copied in part; 0: not copied"""
    EDIT = "edit"
    """value: fraction of the text changed before use, 0…1"""
    DWELL = "dwell"
    """value: seconds spent reading"""
    REGENERATE = "regenerate"
    """value 1: another answer was requested; 0: not"""


PREFERRED = "preferred"
"""Source of comparisons of an alternative that a person chose with the pick of a plan, neither of which was read."""
CHOSEN = "chosen"
"""Source of comparisons that the router asked for because they tell most."""


class Feedback(_Event, frozen=True, kw_only=True, tag="feedback"):
    """Feedback on an answer. One vote per (decision, kind, dimension): a later one supersedes."""

    decision_id: str
    identity: Identity
    kind: FeedbackKind
    """thumb, rating, pair, accept, copy, edit, dwell or regenerate."""
    value: float
    """The value as it was given; 1 and 0 for up and down, seconds for dwell."""
    scale: tuple[float, float] = (0.0, 1.0)
    dimension: str = "overall"
    """What was rated; `overall` for the answer as a whole."""
    other: str = ""
    """A pair's other answer, by its decision id."""
    asked: bool = False
    """Whether the decision asked for the vote; false if it was volunteered."""
    source: str = "user"
    """`user`; `preferred`, of a plan's alternative and its pick; or `chosen`, of answers that were picked because a
    comparison tells most: it teaches, and is in no estimate."""
    first: str = ""
    """Of a pair that was compared blind, the decision whose answer was shown first; the order was drawn."""
    vouched: str = ""
    """Name of the untrusted key that says who voted: its users' votes count for others up to a limit."""

    def __post_init__(self) -> None:
        convert_fields(self)

    @property
    def y(self) -> float:
        """The value scaled to [0, 1]; for dwell the seconds."""
        if self.kind is FeedbackKind.DWELL:
            return self.value
        low, high = self.scale
        return (self.value - low) / (high - low)

    @property
    def rates(self) -> bool:
        """Whether it is a thumb or rating of the answer as a whole, as `stores.figures.RATED`."""
        return self.kind in {FeedbackKind.THUMB, FeedbackKind.RATING} and self.dimension == "overall"


class Remark(_Event, frozen=True, kw_only=True, tag="remark"):
    """A person's remark about an answer, as parsed; the words are not kept.

    It is no vote: it is never asked, and teaches only the person's own terms. Of a decision's remarks the last comment
    counts, and without one the implicit remark (`state.run_outcomes.standing`).
    """

    decision_id: str
    identity: Identity
    kind: str = "comment"
    """comment: given as feedback, or its correction; implicit: in passing, by the user's next message."""
    moved: dict[str, float] = {}
    """Dimension → −1 (less of it was wanted) … 1 (more)."""
    y: float | None = None
    """1 for praise, 0 for a rejection of the answer as a whole."""


class RunStep(_Event, frozen=True, kw_only=True, tag="step"):
    """A decision joined a run of an agent: its `identity.run`, under which the journal finds it."""

    decision_id: str
    identity: Identity


class RunOutcome(_Event, frozen=True, kw_only=True, tag="outcome"):
    """How the run `identity.run` of an agent ended. Of all reports one counts (`state.run_outcomes`)."""

    identity: Identity
    kind: str = "success"
    """success; rating; number, of anything that was measured."""
    value: float
    """The value as it was given; 1 for success and 0 for failure."""
    scale: tuple[float, float] = (0.0, 1.0)
    """The worst and the best value: a number beyond them counts as the end of the scale."""
    source: str = "check"
    """Who says so: person, check (a program), or adapter (a framework's exception or guardrail)."""
    vouched: str = ""
    """Name of the untrusted key that reported it, as that of a vote."""
    decisions: tuple[str, ...] = ()
    """Answers of the run that it is about: those that were complete when it was reported."""

    @property
    def y(self) -> float:
        """The value scaled to [0, 1], 1 for the best."""
        worst, best = self.scale
        return min(max((self.value - worst) / (best - worst), 0.0), 1.0)


SOURCES = ("adapter", "check", "person")
"""Who reports outcomes of runs; each counts more than those before it."""


class ProfileChange(_Event, frozen=True, kw_only=True, tag="profile"):
    """A user's declared profile changed; replaces the previous one."""

    identity: Identity
    declared: dict[str, float] = {}
    """Dimension → −1 (wants less) … 1 (wants more)."""
    topics: bytes = b""
    """JSON list of the statements about topics, encrypted under the user's key; empty for none."""
    stated: bytes = b""
    """JSON of what `declared` follows from, where that is more than itself: goals, priorities, examples; encrypted
    under the user's key."""


class RoleText(_Event, frozen=True, kw_only=True, tag="role"):
    """First use of a role, with the embedding of its text; earlier versions wrote it, and none reads it."""

    tenant: str
    role: str
    """Its key, see `fitrouter.identity.role_key`."""
    vector: bytes = b""
    """float32[m] from the prompt encoder."""


class ModelChange(_Event, frozen=True, kw_only=True, tag="model"):
    """The model registry changed; holds all current cards."""

    cards: tuple[ModelCard, ...]
    registry: str


class PolicyChange(_Event, frozen=True, kw_only=True, tag="policy"):
    """A run-time change of the policy.

    `action`: set, promote, restore (previous version), budget (of a tenant), config (the file), add_model,
    remove_model.
    """

    action: str
    """set, promote, restore or config (the file changed)."""
    settings: dict[str, Any] = {}
    """set, promote: overrides of the configuration; see `fitrouter.state.settings.SETTINGS`. budget: `tenant`, and
    `usd_per_period`, None for the configuration's. add_model: see `fitrouter.config.ModelAddition`."""
    name: str = ""
    """promote: the candidate. add_model, remove_model: the model."""
    config_hash: str = ""
    """Hash of the configuration that the change overrides."""


class ArtifactChange(_Event, frozen=True, kw_only=True, tag="artifact"):
    """A trained file, identified by its sha256, came into use."""

    name: str
    sha256: str


class Spent(_Logged, frozen=True, kw_only=True):
    """Cost of an erased user's requests in one day (UTC)."""

    payer: str = ""
    """API key with a limit of its own that paid; empty without one."""
    ts: float
    """End of the day, or the time of the erasure."""
    usd: float
    requests: int


class Erasure(_Event, frozen=True, kw_only=True, tag="erasure"):
    """Subjects of one user were erased."""

    subject: str = ""
    """The token of one; empty if its events are gone from the journal too (`Journal.erase`)."""
    tenant: str = ""
    """Of the user; empty in logs of earlier versions."""
    digests: tuple[str, ...] = ()
    """sha256 of the tokens, which leads back to nobody: the warehouse deletes their rows by it."""
    spent: tuple[Spent, ...] = ()
    """Costs of the last weeks, so that an erasure lowers no spending."""


class Refit(_Event, frozen=True, kw_only=True, tag="refit"):
    """Rebuild all learned state from the journal, using the latest version of each vote."""


class Quarantine(_Event, frozen=True, kw_only=True, tag="quarantine"):
    """An event is excluded from all learned state, which is rebuilt without it; the journal keeps the event."""

    event_id: str
    reason: str = ""


class Salvage(_Event, frozen=True, kw_only=True, tag="salvage"):
    """The journal was rebuilt from a damaged file."""

    kept: int
    """Sound events."""
    lost: tuple[tuple[int, int], ...] = ()
    """First and last sequence number of each gap in them, erased events included; later events may be missing too.
    Journals of November 2026 and before also have gaps that were never events."""


Event: TypeAlias = (
    Decision
    | Execution
    | PlanRun
    | Refusal
    | Score
    | Feedback
    | Remark
    | RunStep
    | RunOutcome
    | ProfileChange
    | RoleText
    | ModelChange
    | PolicyChange
    | ArtifactChange
    | Erasure
    | Refit
    | Quarantine
    | Salvage
)


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)


def encode_event(event: Event) -> bytes:
    """Encode an event as msgpack; the rows of a decision among many models are packed, without loss."""
    return _encoder.encode(with_packed_rows(event) if isinstance(event, Decision) else event)


def decode_event(payload: bytes) -> Event:
    """Decode an event from msgpack.

    Raises:
        msgspec.DecodeError: the bytes are not an event.
    """
    event = _decoder.decode(payload)
    return with_rows(event) if isinstance(event, Decision) and event.packed else event
