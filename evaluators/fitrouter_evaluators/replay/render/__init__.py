"""Renders reports as text and as HTML."""

from fitrouter_evaluators.replay.render._formatting import verdict

__all__ = ["verdict"]
