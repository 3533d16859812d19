"""fitrouter for CrewAI."""

from __future__ import annotations

from fitrouter_integrations.crewai._llm import FitrouterLLM

__all__ = ["FitrouterLLM"]
