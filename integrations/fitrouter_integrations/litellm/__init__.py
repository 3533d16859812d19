"""fitrouter for litellm: a custom provider, and a callback that observes existing traffic."""

from __future__ import annotations

import os

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or litellm downloads prices when it is imported

from fitrouter.errors import MissingExtra

try:
    from fitrouter_integrations.litellm._observer import FitrouterObserver, observer
    from fitrouter_integrations.litellm._provider import FitrouterProvider, handler, register
except ModuleNotFoundError as error:
    raise MissingExtra.of(error.name, "the litellm adapter") from None

__all__ = ["FitrouterObserver", "FitrouterProvider", "handler", "observer", "register"]
