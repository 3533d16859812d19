"""The scorer as the core's plug-in (entry point group `fitrouter.scorer`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fitrouter.config import ProviderConfig, ScorerConfig
from fitrouter.context.encoders import get_encoder
from fitrouter.hooks import Hooks
from fitrouter.posterior.tastes import TastePrior
from fitrouter.serving.services import ModelHealth
from fitrouter.state.learner import Learner
from fitrouter.stores.identities import Identities
from fitrouter.stores.journal import Journal
from fitrouter_evaluators.scoring import DeviceHeads, ResponseFeatures, found_device, global_scalar
from fitrouter_evaluators.scoring.models import RewardModels
from fitrouter_evaluators.scoring.prior import load_prior, shipped_prior
from fitrouter_evaluators.scoring.scorer import Scorer
from fitrouter_evaluators.scoring.statements.declared import DeclaredValues, is_readable
from fitrouter_evaluators.scoring.statements.topics import topic_units

_SURE = 0.5
"""Standard deviations from which a statement counts for a dimension."""


class ScorerService:
    """Response features by the configured encoder and reward models, and a scorer over them once it is attached."""

    def __init__(
        self,
        config: ScorerConfig,
        data: Path | None = None,
        providers: Mapping[str, ProviderConfig] | None = None,
        **replaced: Any,
    ) -> None:
        self._batch, self._device = config.batch, config.device
        encoder = get_encoder(config.encoder, config.device)
        self._features = ResponseFeatures(encoder, scalar=global_scalar(encoder), declared=True)
        self.schema, self.names = self._features.schema, self._features.names
        self._models: RewardModels | None = None
        if config.models:
            self._models = RewardModels(config.models, data, device=config.device, providers=providers, **replaced)
            self.schema, self.names = f"{self.schema}/{self._models.schema}", self.names + self._models.names
        self.dim = len(self.names)
        self.prior = _prior(config.prior, self.names, encoder.id)
        self._scorer: Scorer | None = None

    def attach(
        self,
        journal: Journal,
        identities: Identities,
        learner: Learner,
        hooks: Hooks,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create the scorer over a journal, identities, reward heads, hooks and a clock."""
        device = found_device(self._device)
        heads = (
            learner if device == "cpu" else DeviceHeads(learner.heads, self.dim, device, dimensions=learner.dimensions)
        )
        if self._models is not None:
            self._models.clock = clock
            self._models.attach(hooks.trouble)
        self._scorer = Scorer(
            journal,
            identities,
            self._features,
            heads,
            models=self._models,
            batch=self._batch,
            clock=clock,
            hook=hooks.trouble,
            happened=hooks.happened,
        )

    def understand(self, statements: Sequence[str]) -> dict[str, dict[str, float]]:
        """Map stated preferences: statement → dimension → −1 … 1; empty for one that was not understood."""
        declared = DeclaredValues(self._features.encoder)
        found = {}
        for statement in statements:
            taste = declared.read(statement)
            found[statement] = {
                name: belief.mean
                for name, belief in taste.values.items()
                if name in self.names and belief.mean**2 > _SURE**2 * belief.variance
            }
        return found

    def topics(self, statements: Sequence[str]) -> tuple[str, ...]:
        """The statements of preference about topics, which the feature `declared_fit` compares answers with."""
        return tuple(statement for statement in statements if is_readable(statement) and topic_units(statement))

    def step(self) -> int:
        """Score one batch if this process holds the lease."""
        return self._attached().step()

    def lag(self) -> tuple[int, float]:
        """Number of waiting answers, and age of the oldest in seconds."""
        return self._attached().lag()

    def models(self) -> Mapping[str, ModelHealth]:
        """State of each reward model by name."""
        return {} if self._models is None else self._models.health()

    @property
    def leading(self) -> bool:
        """Whether this process holds the lease."""
        return self._attached().leading

    def _attached(self) -> Scorer:
        if self._scorer is None:
            raise RuntimeError("the scorer is not attached; call attach() first")
        return self._scorer


def _prior(name: str, names: Sequence[str], encoder: str) -> TastePrior | None:
    if name == "none":
        return None
    return shipped_prior(names, encoder) if name == "shipped" else load_prior(Path(name), names, encoder)


def make_scorer(
    config: ScorerConfig,
    data: Path | None = None,
    providers: Mapping[str, ProviderConfig] | None = None,
    **replaced: Any,
) -> ScorerService:
    """The entry point.

    Args:
        config: the settings.
        data: folder for the state of reward models; None keeps it in memory.
        providers: of the judges, by name.
        replaced: `connected` and `loaded` of `RewardModels`: instances to use instead of configured ones.

    Raises:
        ConfigError: there is no such encoder, or no such prior.
    """
    return ScorerService(config, data, providers, **replaced)
