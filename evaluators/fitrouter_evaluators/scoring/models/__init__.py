"""Reward models as plug-ins: outputs of Hugging Face models and of judges as response features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fitrouter_evaluators.scoring.models.reward_model import Item, ModelError, RewardModel, ScriptedModel, SlowModel

if TYPE_CHECKING:
    from fitrouter_evaluators.scoring.models.reward_models import RewardModels

__all__ = ["Item", "ModelError", "RewardModel", "RewardModels", "ScriptedModel", "SlowModel"]


def __getattr__(name: str) -> Any:
    if name == "RewardModels":  # with all kinds of models, which most installations have none of
        from fitrouter_evaluators.scoring.models.reward_models import RewardModels

        return RewardModels
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
