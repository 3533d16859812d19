"""Diagnosis of where a chat system's personalisation fails, from recorded conversations."""

from fitrouter_evaluators.personal.diagnose.asking import AttributeJudge
from fitrouter_evaluators.personal.diagnose.attributes import Attribute, StatedAttributes
from fitrouter_evaluators.personal.diagnose.conversations import FAILURES, Conversation, parsed
from fitrouter_evaluators.personal.diagnose.diagnosis import Agreement, Diagnosis, Diagnostician, Failure, Rate

__all__ = [
    "FAILURES",
    "Agreement",
    "Attribute",
    "AttributeJudge",
    "Conversation",
    "Diagnosis",
    "Diagnostician",
    "Failure",
    "Rate",
    "StatedAttributes",
    "parsed",
]
