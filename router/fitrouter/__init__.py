"""A model router that picks a model per user and task, with exact propensities, and learns from feedback.

    from fitrouter import Request, Router, load_config

    async with Router.from_config(load_config("fitrouter.yaml")) as router:
        answer = await router.complete(Request(messages=({"role": "user", "content": "Hello"},)))

Heavy dependencies are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fitrouter.config import Config, load_config, parse_config
    from fitrouter.errors import (
        AllModelsFailed,
        AllRateLimited,
        BudgetExhausted,
        ConfigError,
        FitrouterError,
        InvalidRequest,
        NoEligibleModel,
        NotAuthorized,
        ProviderError,
        ProviderRejected,
        StoreError,
        Unavailable,
        UnknownDecision,
    )
    from fitrouter.router import Router
    from fitrouter.routing.explanation import Explanation
    from fitrouter.serving.answers import Answer, Stream
    from fitrouter.serving.external import AttemptReport, Outcome, Plan, PlannedCall
    from fitrouter.sync import SyncRouter
    from fitrouter.types import (
        AUTO,
        Chunk,
        Completion,
        Decision,
        Execution,
        Feedback,
        FeedbackKind,
        Identity,
        Mode,
        ModelCard,
        Refusal,
        Remark,
        Request,
        Score,
    )

__all__ = [
    "AUTO",
    "AllModelsFailed",
    "AllRateLimited",
    "Answer",
    "AttemptReport",
    "BudgetExhausted",
    "Chunk",
    "Completion",
    "Config",
    "ConfigError",
    "Decision",
    "Execution",
    "Explanation",
    "Feedback",
    "FeedbackKind",
    "FitrouterError",
    "Identity",
    "InvalidRequest",
    "Mode",
    "ModelCard",
    "NoEligibleModel",
    "NotAuthorized",
    "Outcome",
    "Plan",
    "PlannedCall",
    "ProviderError",
    "ProviderRejected",
    "Refusal",
    "Remark",
    "Request",
    "Router",
    "Score",
    "StoreError",
    "Stream",
    "SyncRouter",
    "Unavailable",
    "UnknownDecision",
    "load_config",
    "parse_config",
]

_NAMES = {
    "fitrouter.config": "Config load_config parse_config",
    "fitrouter.errors": (
        "AllModelsFailed AllRateLimited BudgetExhausted ConfigError FitrouterError InvalidRequest NoEligibleModel "
        "NotAuthorized ProviderError ProviderRejected StoreError Unavailable UnknownDecision"
    ),
    "fitrouter.router": "Router",
    "fitrouter.routing.explanation": "Explanation",
    "fitrouter.serving.answers": "Answer Stream",
    "fitrouter.serving.external": "AttemptReport Outcome Plan PlannedCall",
    "fitrouter.sync": "SyncRouter",
    "fitrouter.types": (
        "AUTO Chunk Completion Decision Execution Feedback FeedbackKind Identity Mode ModelCard Refusal Remark "
        "Request Score"
    ),
}
_LAZY = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("fitrouter")
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'fitrouter' has no attribute {name!r}")
