"""Response features, reward heads and declared preferences."""

from __future__ import annotations

from fitrouter_evaluators.scoring._answer import Answer, ToolCall, arguments_fit
from fitrouter_evaluators.scoring.device_heads import DeviceHeads, found_device
from fitrouter_evaluators.scoring.features import TOOLS, ResponseFeatures, Scalar
from fitrouter_evaluators.scoring.scalar import GlobalScalar, global_scalar
from fitrouter_evaluators.scoring.statements.declared import Belief, DeclaredTaste, DeclaredValues
from fitrouter_evaluators.scoring.text.style import STYLE, Dimension, measure, standardise
from fitrouter_evaluators.scoring.values import VALUES, Directions, Value, directions, value_scores

__all__ = [
    "STYLE",
    "TOOLS",
    "VALUES",
    "Answer",
    "Belief",
    "DeclaredTaste",
    "DeclaredValues",
    "DeviceHeads",
    "Dimension",
    "Directions",
    "GlobalScalar",
    "ResponseFeatures",
    "Scalar",
    "ToolCall",
    "Value",
    "arguments_fit",
    "directions",
    "found_device",
    "global_scalar",
    "measure",
    "standardise",
    "value_scores",
]
