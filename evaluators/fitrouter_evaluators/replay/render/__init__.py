"""Reports as text and as one HTML page."""

from fitrouter_evaluators.replay.render._words import verdict

__all__ = ["verdict"]
