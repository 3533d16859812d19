"""What every test runs under: no hub, no network price map, quiet telemetry, no clock."""

from __future__ import annotations

import gc
import os

import pytest
from hypothesis import HealthCheck, settings

os.environ.update(
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    LITELLM_LOCAL_MODEL_COST_MAP="True",
    OTEL_SDK_DISABLED="true",
    TOKENIZERS_PARALLELISM="false",
    CREWAI_DISABLE_TELEMETRY="true",
    CREWAI_DISABLE_TRACKING="true",
    CREWAI_DISABLE_VERSION_CHECK="true",
    CREWAI_TRACING_ENABLED="false",
    CREWAI_TESTING="true",
)
# Machines are shared and busy: how long an example takes says nothing of the law.
settings.register_profile("fitrouter", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fitrouter")


@pytest.fixture(autouse=True, scope="module")
def _quick_garbage_collection() -> None:
    """What earlier modules imported stays: looking through it again and again would stop servers for half a second."""
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Everything may go again; bindings that count their objects at the end would call the rest a leak."""
    gc.unfreeze()
