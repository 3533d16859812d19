"""What every test runs under: no hub, no network price map, quiet telemetry."""

from __future__ import annotations

import os

os.environ.update(
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    LITELLM_LOCAL_MODEL_COST_MAP="True",
    OTEL_SDK_DISABLED="true",
    TOKENIZERS_PARALLELISM="false",
)
