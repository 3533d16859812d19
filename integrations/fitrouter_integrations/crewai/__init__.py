"""fitrouter for CrewAI."""

from __future__ import annotations

import os

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # CrewAI imports litellm, which else downloads prices

from fitrouter.errors import MissingExtra

try:
    from fitrouter_integrations.crewai._llm import FitrouterLLM
    from fitrouter_integrations.crewai._signals import FitrouterSignals
except ModuleNotFoundError as error:
    raise MissingExtra.of(error.name, "the CrewAI adapter") from None

__all__ = ["FitrouterLLM", "FitrouterSignals"]
