"""Settings of the policy, budgets, sessions, the objective and feedback."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import pydantic
from pydantic import Field

from fitrouter import policies
from fitrouter.config._section import Fraction, _Section


class _Algorithm(_Section):
    """Algorithm and parameters of a policy: the live one, or a shadow candidate whose pmf every decision logs."""

    algorithm: str = Field(default="linear_thompson", description=f"Name of a policy: {policies.named()}.")

    @property
    def parameters(self) -> dict[str, float]:
        """Parameters of all policies, by name."""
        return {name: getattr(self, name) for name in policies.parameters()}


if TYPE_CHECKING:
    CandidateConfig = _Algorithm
else:  # the parameters are those that the policies declare
    CandidateConfig = pydantic.create_model(
        "CandidateConfig",
        __base__=_Algorithm,
        __module__=__name__,
        __doc__=_Algorithm.__doc__,
        **policies.as_fields(),
    )


class PolicyConfig(CandidateConfig, _Section):
    """Policy settings: the algorithm and its exploration."""

    floor: Fraction = 0.02
    """Exploration floor: every eligible model keeps a probability of at least floor / K."""
    uniform_slice: Fraction = 0.0
    """Share of the traffic routed uniformly, for estimators that need it."""
    friction: Fraction = 0.0
    """Share of the traffic spread over the models that are good for everybody, whatever a person's taste: answers from
    outside the bubble. What it costs is in `fitrouter audits exposure`."""
    newcomer_floor: Fraction = 0.25
    """Exploration share of new models: on every eligible request until `newcomer_pulls` calls, then until
    `newcomer_labels` labels only where their mean + 1 sd exceeds the best mean."""
    newcomer_pulls: int = Field(default=20, ge=0)
    """Calls for which a new model has the raised floor on every eligible request."""
    newcomer_labels: int = Field(default=60, ge=0)
    """Labels until which it keeps the raised floor on requests where it may be the best."""
    personal: bool = True
    """False ignores user and role terms."""
    pooling: Literal["none", "shared"] = "none"
    """What tenants learn from each other. `none`: nothing; no request, vote or report of one changes a decision of
    another. `shared`: each other tenant's model places up to 2% of a tenant's traffic, less with its own labels."""
    base_delta: float | None = Field(default=None, gt=0, lt=1)
    """Quality floor: models that fail labels of the dimension `base` more often are excluded; the best one never is."""
    impersonal_roles: tuple[str, ...] = ()
    """Roles whose requests are never personalised."""
    sensitive_roles: tuple[str, ...] = ()
    """Roles in which a user's own terms start with almost no weight, until labels in such roles show that they help."""
    high_stakes_roles: tuple[str, ...] = ()
    """Roles that are personalised only after `fitrouter audits role` has passed for them and the present models."""
    prior: Path | None = None
    """Prior of the models, a file made by `fitrouter train policy`."""
    candidates: dict[str, CandidateConfig] = Field(default={})
    """Shadow policies by name; `fitrouter policy promote NAME` makes one live."""

    @pydantic.model_validator(mode="after")
    def _of_their_algorithms(self) -> Self:
        sections: list[tuple[str, _Algorithm]] = [("", self), *self.candidates.items()]
        for name, each in sections:
            # A written-out configuration has the defaults of every policy.
            set_ = [
                field for field, value in each.parameters.items() if value != type(each).model_fields[field].default
            ]
            if wrong := policies.unread(set_, each.algorithm):
                raise ValueError(f"candidates.{name}: {wrong}" if name else wrong)
        return self


class TenantBudgetConfig(_Section):
    """Spending limits of a tenant. The dual variable λ, rating per USD, rises while spending is above the limit."""

    usd_per_request: float | None = Field(default=None, gt=0)
    """Limit of the mean cost per request."""
    usd_per_period: float | None = Field(default=None, gt=0)
    """Limit of the cost per period. With `hard`, every call reserves what it may cost at most first, also of a named
    model; a request that what is left does not cover is limited to it, waits for it, or gets a 402. See
    [Hard limits](deployment.md#hard-limits)."""
    min_answer_tokens: int = Field(default=256, ge=1)
    """Where a hard limit, also one of a key, does not cover an answer, `max_tokens` is lowered to this at the least."""
    period_s: float = Field(default=86_400.0, gt=0)
    """Length of a period in seconds."""
    usd_per_request_max: float | None = Field(default=None, gt=0)
    """Models with a higher expected cost are excluded, and refused by name; the cheapest never is."""
    hard: bool = True
    """False: only λ steers; no model is excluded and no request refused by the budget. A hard limit excludes models
    without a price."""


class BudgetConfig(TenantBudgetConfig):
    """The budget of every tenant, with overrides per tenant."""

    tenants: dict[str, TenantBudgetConfig] = Field(default={})


class SessionConfig(_Section):
    """Session settings: how long a session stays on its model."""

    redraw_every: int = Field(default=8, ge=0)
    """User turns between redraws; 0: their number redraws nothing, the [other reasons](routing.md#sessions) do."""
    redraw_stuck: int = Field(default=2, ge=0, le=8)
    """Redraws within a user turn because an agent shows that it is stuck: the same tool call a third time, the same
    error again, the same text three times without a call, a person's second no, or the
    second answer in a row that was edited or made again. 0 for none."""
    consistency: float = Field(default=0.02, ge=0)
    """Cost of switching models within a session, in rating, besides the lost prompt cache."""
    idle_s: float = Field(default=3600.0, gt=0)
    """Seconds of silence after which a session starts anew."""
    kept: int = Field(default=4096, ge=1, le=100_000)
    """Sessions that are remembered for each tenant, the last used; each takes up to 300 bytes of every snapshot.
    `fitrouter_session_memory_seconds` below `idle_s` means there are more: their next turn may change the model."""


class ObjectiveConfig(_Section):
    """Trade-off between predicted rating, cost and latency."""

    cost_weight: float = Field(default=0.0, ge=0)
    """Rating given up to save one `cost_unit_usd`."""
    cost_unit_usd: float = Field(default=0.01, gt=0)
    """USD that cost `cost_weight` of fit."""
    quality_factor: Fraction = 0.25
    """`cost_weight` of a request of the tier `quality` is multiplied by this."""
    economy_factor: float = Field(default=4.0, ge=1)
    """`cost_weight` of a request of the tier `economy` is multiplied by this."""
    economy_least: float = Field(default=0.05, ge=0)
    """What it is then at least, also where `cost_weight` is 0."""
    economy_most: float = Field(default=1.0, ge=0)
    """What it is then at most; never below `cost_weight`."""
    latency_weight: float = Field(default=0.0, ge=0)
    """Rating given up to save one `latency_unit_s`."""
    latency_unit_s: float = Field(default=10.0, gt=0)
    """Seconds that cost `latency_weight` of fit."""


class FeedbackConfig(_Section):
    """Feedback settings."""

    ask: float = Field(default=0.02, ge=0.0, le=0.05)
    """Share of the answers for which feedback is solicited."""
    votes_per_day: int = Field(default=3, ge=1)
    """Votes per user, model and day that count towards pooled terms; the user's own terms use all votes."""
    people_per_key: int = Field(default=3, ge=1)
    """As how many people together the users that a key without `trusted` names count for others, once so many people
    of other keys have voted on three days. Votes beyond that teach the users' own terms only."""
    require_token: bool = False
    """Whether feedback needs the token of the answer (`fitrouter.token`), except with admin keys. If not, it needs the
    token or the name of the user."""
    token_valid_s: float = Field(default=2_592_000.0, gt=0)
    """Seconds for which the token of an answer is valid."""
    scale: tuple[float, float] | None = None
    """Lowest and highest value of ratings that name no scale, such as `[1, 5]`. Without it such ratings are from 0 to
    1, and those of Python's `rate` from 1 to 5."""
    implicit: bool = True
    """Whether remarks in passing ("shorter, please") about the previous answer teach the user's own taste."""

    @pydantic.field_validator("scale")
    @classmethod
    def _ordered(cls, scale: tuple[float, float] | None) -> tuple[float, float] | None:
        if scale is not None and scale[0] >= scale[1]:
            raise ValueError(f"got {list(scale)}; give the lowest value, then the highest, such as [1, 5]")
        return scale
