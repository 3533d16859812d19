"""Reward models as plug-ins: outputs of Hugging Face models and of judges as response features."""

from __future__ import annotations

from fitrouter_evaluators.scoring.models.reward_model import Item, ModelError, RewardModel, ScriptedModel, SlowModel
from fitrouter_evaluators.scoring.models.reward_models import RewardModels

__all__ = ["Item", "ModelError", "RewardModel", "RewardModels", "ScriptedModel", "SlowModel"]
