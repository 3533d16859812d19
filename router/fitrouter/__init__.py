"""Picks the model that fits this user and this task, with exact propensities, and learns from what people say.

    from fitrouter import Request, Router, load_config

    async with Router.from_config(load_config("fitrouter.yaml")) as router:
        answer = await router.complete(Request(messages=({"role": "user", "content": "Hello"},)))

Everything heavy is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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
    Request,
    Score,
)

if TYPE_CHECKING:
    from fitrouter.config import Config, load_config, parse_config
    from fitrouter.errors import FitrouterError
    from fitrouter.router import Router
    from fitrouter.serving.answers import Answer, Stream
    from fitrouter.serving.external import AttemptReport, Outcome, Plan, PlannedCall
    from fitrouter.sync import SyncRouter

__all__ = [
    "AUTO",
    "Answer",
    "AttemptReport",
    "Chunk",
    "Completion",
    "Config",
    "Decision",
    "Execution",
    "Feedback",
    "FeedbackKind",
    "FitrouterError",
    "Identity",
    "Mode",
    "ModelCard",
    "Outcome",
    "Plan",
    "PlannedCall",
    "Request",
    "Router",
    "Score",
    "Stream",
    "SyncRouter",
    "load_config",
    "parse_config",
]

_LAZY = {
    "Answer": "fitrouter.serving.answers",
    "PlannedCall": "fitrouter.serving.external",
    "Config": "fitrouter.config",
    "Outcome": "fitrouter.serving.external",
    "FitrouterError": "fitrouter.errors",
    "Plan": "fitrouter.serving.external",
    "Router": "fitrouter.router",
    "Stream": "fitrouter.serving.answers",
    "SyncRouter": "fitrouter.sync",
    "AttemptReport": "fitrouter.serving.external",
    "load_config": "fitrouter.config",
    "parse_config": "fitrouter.config",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("fitrouter")
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'fitrouter' has no attribute {name!r}")
