"""Reward models: answers as features, and what is computed from them."""

from __future__ import annotations

from fitrouter_evaluators.reward._answer import Answer, ToolCall, arguments_fit
from fitrouter_evaluators.reward.device_heads import DeviceHeads, found_device
from fitrouter_evaluators.reward.features import TOOLS, ResponseFeatures
from fitrouter_evaluators.reward.style import STYLE, Dimension, measure, standardise

__all__ = [
    "STYLE",
    "TOOLS",
    "Answer",
    "DeviceHeads",
    "Dimension",
    "ResponseFeatures",
    "ToolCall",
    "arguments_fit",
    "found_device",
    "measure",
    "standardise",
]
