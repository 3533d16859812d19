"""Base of the sections of fitrouter.yaml."""

from __future__ import annotations

from typing import Annotated

import pydantic
from pydantic import Field

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class _Section(pydantic.BaseModel):
    # Deferred: most sections are only validated as part of `Config`, and building each alone doubles the import's time.
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)
