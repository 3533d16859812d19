"""What a replay found: plain values, ready for JSON, a table or a page."""

from __future__ import annotations

import msgspec


class _Value(msgspec.Struct, frozen=True, kw_only=True):
    """A frozen value."""


class Window(_Value, frozen=True, kw_only=True):
    """Whose outcomes these are: the population that every number is about."""

    source: str
    since: float
    until: float
    """Seconds since the epoch, of the first and the last decision that counts."""
    decisions: int
    """Decisions in the units that count."""
    units: int
    draws: int
    users: int
    labelled: int
    """Units with at least one label that was asked for."""
    unit: str = "closed session"
    cluster: str = "session"
    horizon_s: float = 0.0
    """Decisions younger than this are out, labelled or not."""
    idle_s: float = 0.0
    """Silence that closes a session."""
    excluded: dict[str, int] = {}
    """Reason → decisions that are not in the population."""


class PolicyEstimate(_Value, frozen=True, kw_only=True):
    """One estimate with an interval that is valid at one look."""

    policy: str
    """candidate, against, or difference (candidate − against)."""
    estimator: str
    labels: str
    """asked, powered (prediction-powered), naive (all labels alike), or observed (cost, latency, score)."""
    value: float
    se: float
    low: float
    high: float
    interval: str = "delta"
    """delta or bootstrap."""
    slice: str = ""
    """`role=nurse`; empty for everybody."""
    n: int = 0
    alpha: float = 0.05
    """Of this interval, after the correction for several slices."""
    biased: str = ""
    """Why this number is not to be believed; empty where it can be."""


class Band(_Value, frozen=True, kw_only=True):
    """A confidence sequence: valid at all times, however often it is looked at."""

    policy: str
    kind: str
    """exact or asymptotic."""
    value: float
    """The running mean at the end."""
    low: float
    high: float
    slice: str = ""
    n: int = 0
    alpha: float = 0.05
    at: list[int] = []
    """Units seen at each point of the path."""
    means: list[float] = []
    lows: list[float] = []
    highs: list[float] = []


class Check(_Value, frozen=True, kw_only=True):
    """One question that was asked of the log itself."""

    name: str
    ok: bool
    detail: str


class Diagnostics(_Value, frozen=True, kw_only=True):
    """How much the log knows of a policy."""

    policy: str
    n: int
    ess: float
    """Effective sample size (Σw)²/Σw²."""
    max_weight: float
    mean_weight: float
    mean_weight_se: float
    unsupported: float
    """Mass of the policy where the log has none."""
    manski_low: float
    manski_high: float
    """The value with the worst and the best outcome wherever there is no support."""
    dm_dr_gap: float
    """Direct method − doubly robust."""
    slice: str = ""


class WeightHistogram(_Value, frozen=True, kw_only=True):
    """Importance weights of one policy; edges has one more entry than counts."""

    policy: str
    edges: list[float]
    counts: list[int]


class ArmShare(_Value, frozen=True, kw_only=True):
    """How often an arm was drawn, and would be: mean probabilities over the draws at which it was eligible."""

    arm: str
    logged: float
    against: float
    candidate: float
    draws: int


class UserSatisfaction(_Value, frozen=True, kw_only=True):
    """Satisfaction across users under the candidate, and beside `against`. The cluster is the user."""

    role: str
    """Empty for everybody."""
    users: int
    mean: float
    sd: float
    """Of users' true means: what sampling adds is taken out."""
    worst_decile: float
    """Mean over the tenth of the users that fares worst, of their true means."""
    worst_decile_low: float
    worst_decile_high: float
    worse_off: float
    """Share of users whose true mean falls against `against`, with an interval."""
    worse_off_low: float
    worse_off_high: float
    sd_against: float
    worst_decile_against: float


class GateDecision(_Value, frozen=True, kw_only=True):
    """The gate's answer."""

    verdict: str
    """promote, keep, or not enough evidence."""
    reasons: list[str]
    rules: list[Check] = []
    """Each rule of the gate and how it stands."""


class Report(_Value, frozen=True, kw_only=True):
    """Everything that a replay found."""

    candidate: str
    against: str
    """What the two policies are, in words."""
    metric: str
    window: Window
    alpha: float
    estimates: list[PolicyEstimate]
    bands: list[Band]
    diagnostics: list[Diagnostics]
    checks: list[Check]
    """What was asked of the log: propensities, draws, structure."""
    histograms: list[WeightHistogram] = []
    arms: list[ArmShare] = []
    satisfaction: list[UserSatisfaction] = []
    personal: list[Band] = []
    """What personalisation bought: personal − blind twin, per role and taste group."""
    correction: str = ""
    """How several slices are paid for."""
    sensitivity: str = ""
    """What is assumed of those who were asked and said nothing, and what it adds."""
    warnings: list[str] = []
    gate: GateDecision | None = None
    version: str = ""
    """Of fitrouter."""
    made: float = 0.0
    """Seconds since the epoch."""
