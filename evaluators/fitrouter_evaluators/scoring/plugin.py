"""The scorer as the core's plug-in (entry point group `fitrouter.scorer`)."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fitrouter.config import ProviderConfig, RewardModelConfig, ScorerConfig
from fitrouter.context.encoders import get_encoder
from fitrouter.context.features import read_prompt
from fitrouter.hooks import Hooks
from fitrouter.identity import canonical_role
from fitrouter.posterior.tastes import TasteParams, TastePrior, Tastes
from fitrouter.serving.services import ModelHealth, ParsedRemark
from fitrouter.state.learner import Learner
from fitrouter.stores.identities import Identities
from fitrouter.stores.journal import Journal
from fitrouter.types import Floats, Identity, Message, Request
from fitrouter_evaluators.scoring import Answer, DeviceHeads, ResponseFeatures, found_device, global_scalar
from fitrouter_evaluators.scoring.models import Item
from fitrouter_evaluators.scoring.prior import load_prior, shipped_prior
from fitrouter_evaluators.scoring.scorer import Scorer
from fitrouter_evaluators.scoring.statements._polarity import has_attitude
from fitrouter_evaluators.scoring.statements.declared import DeclaredValues, understandable, unreadable
from fitrouter_evaluators.scoring.statements.remarks import clauses, read_remark
from fitrouter_evaluators.scoring.statements.topics import asks_for_form, topic_units

if TYPE_CHECKING:
    from fitrouter_evaluators.scoring.models import RewardModels

_CLAUSES = 16
"""Most clauses of a comment that are read."""
_OUTPUT = {"judge": "principles", "function": "score", "http": "score"}
"""Kind of reward model → its only output."""
_SURE = 0.5
"""Standard deviations from which a statement counts for a dimension."""


Remote = Callable[[str, Sequence[Item]], Floats]
"""Computes elsewhere what `ScorerService.outputs` computes here."""


class _RemoteModel:
    """A reward model whose outputs other processes compute."""

    def __init__(self, remote: Remote, name: str) -> None:
        self._remote, self._name = remote, name

    def score(self, items: Sequence[Item]) -> Floats:
        """Ask the other process for the model's outputs, float64[n, dimensions]."""
        return self._remote(self._name, items)


class ScorerService:
    """Response features by the configured encoder and reward models, and a scorer over them once it is attached."""

    def __init__(
        self,
        config: ScorerConfig,
        data: Path | None = None,
        providers: Mapping[str, ProviderConfig] | None = None,
        *,
        remote: Remote | None = None,
        **replaced: Any,
    ) -> None:
        self._batch, self._device = config.batch, config.device
        encoder = get_encoder(config.encoder, config.device)
        self._features = ResponseFeatures(encoder, scalar=global_scalar(encoder), declared=True)
        self.schema, self.names = self._features.schema, self._features.names
        self._models: RewardModels | None = None
        if remote is not None:
            self._features.compute = lambda answers: remote("", [Item(answer=answer) for answer in answers])
            named = [model.name for model in config.models if model.needs_torch]
            replaced["loaded"] = {name: _RemoteModel(remote, name) for name in named}
        if config.models:
            from fitrouter_evaluators.scoring.models import RewardModels

            self._models = RewardModels(config.models, data, device=config.device, providers=providers, **replaced)
            self.schema, self.names = f"{self.schema}/{self._models.schema}", self.names + self._models.names
        self.dim = len(self.names)
        self.prior = _weighted(_prior(config.prior, self.names, encoder.id), config.models, self.names)
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

    def reasons(self, statements: Sequence[str]) -> dict[str, str]:
        """Reasons why statements that move nothing are not understood, by statement."""
        declared = DeclaredValues(self._features.encoder)
        form = "nothing measures the form or language of answers"
        return {
            said: form if asks_for_form(said) else declared.read(said).reason or "it says too little of any dimension"
            for said in statements
        }

    def topics(self, statements: Sequence[str]) -> tuple[str, ...]:
        """Select the statements of preference about topics, which the feature `declared_fit` compares answers with."""
        return tuple(
            said for said in statements if not unreadable(said) and not asks_for_form(said) and topic_units(said)
        )

    def comment(self, text: str) -> ParsedRemark:
        """Parse a comment on an answer: each clause by the grammar of remarks, else as a statement of preference."""
        found: dict[str, list[float]] = {}
        unclear: list[str] = []
        for clause, remark in islice(clauses(text), _CLAUSES):
            meant = {} if remark is None else remark.moved
            if remark is None and has_attitude(understandable(clause)):  # else it may describe a fault: "it rambles"
                meant = self.understand([clause])[clause]
            for name, value in meant.items():
                found.setdefault(name, []).append(value)
            if not meant and (remark is None or remark.y is None):
                unclear.append(clause)
        means = {name: sum(values) / len(values) for name, values in found.items() if name in self.names}
        moved = {name: mean for name, mean in means.items() if mean}
        return ParsedRemark(moved, None, tuple(unclear), self.reasons(unclear))

    def overhear(self, message: str) -> ParsedRemark | None:
        """Remark about the previous answer in a user's message; None if there is none."""
        remark = read_remark(message)
        moved = {} if remark is None else {name: value for name, value in remark.moved.items() if name in self.names}
        return ParsedRemark(moved, remark.y) if remark is not None and (moved or remark.y is not None) else None

    def read(self, answers: Sequence[tuple[str, str]], declared: Sequence[str], named: Collection[str] = ()) -> Floats:
        """Compute the features of answers, float64[n, dim]; NaN where missing, as those of models and judges are."""
        found = [Answer(prompt=prompt, text=text, declared=tuple(declared)) for prompt, text in answers]
        h = self._features.encode(found)
        if self._models is None:
            return h
        return np.hstack([h, self._models.metrics([Item(answer=each, named=frozenset(named)) for each in found])])

    def judge(self, name: str, identity: Identity, messages: Sequence[Message], answer: Message) -> float:
        """Judge an answer by one of the judges, whatever its `sample`; NaN for no verdict.

        Raises:
            ModelError: its money of the day is spent.
        """
        assert self._models is not None
        prompt = read_prompt(Request(messages=tuple(messages))).text
        return self._models.judge(name, Item(answer=Answer.of(prompt, answer), identity=identity))

    def outputs(self, model: str, items: Sequence[Item]) -> Floats:
        """Compute what is served to a `Remote`: features of answers, or outputs of a reward model.

        Args:
            model: name of the reward model; empty for the built-in features.
            items: the answers.
        """
        if not model:
            return self._features.encode([item.answer for item in items])
        if self._models is None:
            raise ValueError(f"there is no reward model {model!r}; none is configured")
        return self._models.outputs(model, items)

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


def _weighted(prior: TastePrior | None, models: Sequence[RewardModelConfig], names: Sequence[str]) -> TastePrior | None:
    """Add to a prior the weighted mean of metrics that roles are assumed to want, as strongly as one declared ±1."""
    weighted = [each for each in models if each.weights]
    given = [(list(names).index(f"rm.{each.name}.{_OUTPUT[each.kind]}"), each.weights) for each in weighted]
    if not given:
        return prior
    if prior is None:
        plain = Tastes(len(names), TasteParams(), names).population
        prior = TastePrior("none", plain.mean, plain.cov)
    means = {}
    for role in dict.fromkeys(role for _, weights in given for role in weights):
        whole, mean = sum(weights.get(role, 0.0) for _, weights in given), np.zeros(len(names))
        for column, weights in given:
            mean[column] = TasteParams().declared * weights.get(role, 0.0) / (whole or 1.0)
        means[role if role == "*" else canonical_role(role) or ""] = mean
    digest = hashlib.sha256(f"{prior.id} {[(role, mean.tolist()) for role, mean in sorted(means.items())]}".encode())
    return TastePrior(digest.hexdigest(), prior.mean + means.pop("*", 0.0), prior.cov, means)


def make_scorer(
    config: ScorerConfig,
    data: Path | None = None,
    providers: Mapping[str, ProviderConfig] | None = None,
    *,
    remote: Remote | None = None,
    **replaced: Any,
) -> ScorerService:
    """Make the scorer's service, as the entry point of the plug-in.

    Args:
        config: the settings.
        data: folder for the state of reward models; None keeps it in memory.
        providers: of the judges, by name.
        remote: computes the built-in features and those of reward models in other processes; judges stay here.
        replaced: `connected` and `loaded` of `RewardModels`: instances to use instead of configured ones.

    Raises:
        ConfigError: there is no such encoder, or no such prior.
    """
    return ScorerService(config, data, providers, remote=remote, **replaced)
