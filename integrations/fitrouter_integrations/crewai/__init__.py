"""fitrouter for CrewAI."""

from __future__ import annotations

from fitrouter_integrations.crewai._llm import FitrouterLLM
from fitrouter_integrations.crewai._signals import FitrouterSignals

__all__ = ["FitrouterLLM", "FitrouterSignals"]
