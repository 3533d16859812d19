"""Report of an evaluation: plain values for JSON, text and HTML."""

from __future__ import annotations

import msgspec


class _Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the report's values: frozen, with keyword arguments only."""


class Window(_Value, frozen=True, kw_only=True):
    """The population that was evaluated, and its limits."""

    source: str
    since: float
    until: float
    """Seconds since the epoch of the first and the last decision that counts."""
    decisions: int
    """Decisions in the evaluated units."""
    units: int
    draws: int
    users: int
    labelled: int
    """Units with at least one label: a requested one, where not all outcomes are known."""
    left_out: int = 0
    """Decisions of the log whose rating does not count for others, so that it was left out."""
    complete: bool = False
    """Every decision has its outcome."""
    unit: str = "closed session"
    cluster: str = "session"
    horizon_s: float = 0.0
    """Younger decisions are excluded, labelled or not."""
    idle_s: float = 0.0
    """Silence that closes a session."""
    excluded: dict[str, int] = {}
    """Reason → excluded decisions."""


class PolicyEstimate(_Value, frozen=True, kw_only=True):
    """An estimate with an interval for a single look."""

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
    """Such as `role=nurse`; empty for all units."""
    n: int = 0
    alpha: float = 0.05
    """Of this interval, corrected for several slices."""
    biased: str = ""
    """Why this estimate is biased; empty if it is not."""


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
    """A check of the log, or a rule of the gate, with its outcome."""

    name: str
    ok: bool
    """Nothing speaks against it."""
    detail: str
    checked: bool = True
    """False: the log has nothing that it could be checked by."""


class Diagnostics(_Value, frozen=True, kw_only=True):
    """Overlap of a policy with the log."""

    policy: str
    n: int
    ess: float
    """Effective sample size (Σw)²/Σw²."""
    max_weight: float
    mean_weight: float
    mean_weight_se: float
    unsupported: float
    """The policy's mass where the logged probability is 0."""
    manski_low: float
    manski_high: float
    """The value if unsupported mass had the worst or the best outcome."""
    dm_dr_gap: float
    """Direct method − doubly robust."""
    slice: str = ""


class WeightHistogram(_Value, frozen=True, kw_only=True):
    """Importance weights of one policy; edges has one more entry than counts."""

    policy: str
    edges: list[float]
    counts: list[int]


class ArmShare(_Value, frozen=True, kw_only=True):
    """Mean probabilities of an arm over the draws at which it was eligible."""

    arm: str
    logged: float
    against: float
    candidate: float
    draws: int


class UserSatisfaction(_Value, frozen=True, kw_only=True):
    """Distribution of users' true means under the candidate and under `against`, clustered by user."""

    role: str
    """Empty for all users."""
    users: int
    mean: float
    sd: float
    """Of users' true means, without sampling noise."""
    sd_low: float
    sd_high: float
    worst_decile: float
    """Mean over the tenth of the users with the lowest true means."""
    worst_decile_low: float
    worst_decile_high: float
    worse_off: float
    """Share of users whose true mean is lower than under `against`."""
    worse_off_low: float
    worse_off_high: float
    sd_against: float
    worst_decile_against: float


class GateDecision(_Value, frozen=True, kw_only=True):
    """The gate's decision."""

    verdict: str
    """promote, keep, or not enough evidence."""
    reasons: list[str]
    rules: list[Check] = []
    """Each rule of the gate and its state."""


class Report(_Value, frozen=True, kw_only=True):
    """All results of an evaluation."""

    candidate: str
    against: str
    """Descriptions of the two policies."""
    metric: str
    window: Window
    alpha: float
    estimates: list[PolicyEstimate]
    bands: list[Band]
    diagnostics: list[Diagnostics]
    checks: list[Check]
    """Audits of the log."""
    histograms: list[WeightHistogram] = []
    arms: list[ArmShare] = []
    satisfaction: list[UserSatisfaction] = []
    personal: list[Band] = []
    """Value of personalisation (personal − user-blind), per role and declared group."""
    correction: str = ""
    """Correction for several slices."""
    sensitivity: str = ""
    """Assumption about non-response, and its effect."""
    advice: list[str] = []
    """What keeps the log from a better answer, and what to change."""
    warnings: list[str] = []
    refused: str = ""
    """Why nothing may be concluded from the estimates; empty if something may."""
    gate: GateDecision | None = None
    version: str = ""
    """Of fitrouter."""
    made: float = 0.0
    """Seconds since the epoch."""
