"""The configured reward models of a scorer, and the response features that they add."""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from fitrouter.errors import ProviderError, for_log
from fitrouter.serving.services import ModelHealth
from fitrouter.types import Floats
from fitrouter_evaluators.scoring.models import embedding, judge, metric, sequence_classification
from fitrouter_evaluators.scoring.models.reward_model import Description, Item, ModelError, RewardModel, SlowModel
from fitrouter_evaluators.scoring.models.state import ModelState, load_state

if TYPE_CHECKING:
    from fitrouter.config import ProviderConfig, RewardModelConfig
    from fitrouter.providers import Provider

RETRY_S = 60.0
"""Seconds until a model that could not be loaded is tried again."""

_WAITING = 64
"""Answers that wait for a slow model at most; further ones stay in the spool unread."""

_DESCRIBE: Mapping[str, Callable[[RewardModelConfig], Description]] = {
    "sequence_classification": sequence_classification.describe,
    "embedding": embedding.describe,
    "judge": judge.describe,
    **dict.fromkeys(metric.METRICS, metric.describe),
}


class _Started(NamedTuple):
    """An answer that a slow model is scoring or has scored, with the future of its outputs."""

    item: Item
    future: Future[Floats]


class _Entry:
    """A configured model, loaded when it is first needed; whatever it raises costs its own features only."""

    def __init__(self, config: RewardModelConfig, folder: Path | None, load: Callable[[_Entry], RewardModel]) -> None:
        self.config, self._load = config, load
        self.path = folder and folder / f"{config.name}.json"
        self.error: str = ""
        self.early: list[Exception] = []
        """Failures before there was a function to report them to."""
        self.report: Callable[[str, Exception], None] = lambda _part, error: self.early.append(error)
        self.state = load_state(self.path, self.failed)
        self.started: dict[str, _Started] = {}
        self.answers = self.missing = 0
        self.seconds = 0.0
        self.model: RewardModel | None = None
        self._retry_at, self._reported = 0.0, False
        try:
            self.state.begin(_short(found := _DESCRIBE[config.kind](config)), found.dimensions)
        except ModelError as error:
            self.failed(error)
            if not self.state.dimensions:  # never loaded yet: what is configured, or one output
                self.state.begin("", config.dimensions or ("score",))

    def failed(self, error: Exception) -> None:
        """Record a failure of the model and report it."""
        self._reported = True
        self.error = for_log(error) if isinstance(error, ProviderError) else str(error) or type(error).__name__
        self.report(f"reward model {self.config.name}", error)

    def ready(self) -> RewardModel | None:
        """Return the model, loading it if it is time to try; None if it cannot be used now."""
        if self.model is None and time.monotonic() >= self._retry_at:
            try:
                self._unchanged()
                self.model, self.error = self._load(self), ""
            except Exception as error:  # noqa: BLE001 - other models and the built-in features go on
                self._retry_at = time.monotonic() + RETRY_S
                self.failed(error)
        return self.model

    def features(self, items: Sequence[Item]) -> Floats:
        """Compute the model's standardised outputs, float64[n, dimensions]; NaN where it has failed."""
        self._reported = False
        shape = len(items), len(self.state.dimensions)
        out, model, began = np.full(shape, np.nan), self.ready(), time.perf_counter()
        if model is not None:
            try:
                found = self._finished(items, shape) if isinstance(model, SlowModel) else model.score(items)
                self._check(items, found, shape)
                out = self.state.standardise(found)
                self.state.save(self.path)
            except Exception as error:  # noqa: BLE001 - as above
                self.failed(error)
        self.answers += len(items)
        self.missing += int(np.isnan(out).all(axis=1).sum())
        self.seconds += time.perf_counter() - began
        return out

    def measured(self, items: Sequence[Item]) -> Floats:
        """Compute a metric's outputs on the scale on disk, float64[n, dimensions]; NaN for other models."""
        out = np.full((len(items), len(self.state.dimensions)), np.nan)
        if self.config.kind in metric.METRICS and (model := self.ready()) is not None:
            try:
                state = load_state(self.path, self.failed) if self.path else self.state
                state.begin(self.state.fingerprint, self.state.dimensions)
                out = state.scaled(model.score(items))
            except Exception as error:  # noqa: BLE001 - as above
                self.failed(error)
        return out

    def _finished(self, items: Sequence[Item], shape: tuple[int, int]) -> Floats:
        out = np.full(shape, np.nan)
        for row, item in zip(out, items, strict=True):
            if (started := self.started.pop(item.decision_id, None)) is not None:
                row[:] = started.future.result()
                item.sampled.update(started.item.sampled)
        return out

    def _unchanged(self) -> None:
        found = _DESCRIBE[self.config.kind](self.config)
        if _short(found) != self.state.fingerprint:
            raise ModelError(f"its weights, or its outputs {found.dimensions}, are new; restart to use them")

    def _check(self, items: Sequence[Item], found: Floats, shape: tuple[int, int]) -> None:
        """Report outputs that are not numbers; those features are missing. A judge may abstain.

        Raises:
            ModelError: there are more or fewer outputs than dimensions.
        """
        if found.shape != shape:
            raise ModelError(f"it gave outputs of shape {found.shape}, not {shape}; correct its 'dimensions'")
        spoken = np.array([item.answer.has_text for item in items], dtype=bool)
        broken = int((~np.isfinite(found[spoken])).any(axis=1).sum())
        if broken and self.config.kind in {"sequence_classification", "embedding"} and not self._reported:
            self.failed(ModelError(f"outputs for {broken} of {int(spoken.sum())} answers are no finite numbers"))
        elif np.isfinite(found).any() and not self._reported:
            self.error = ""

    def resume(self) -> None:
        """Take over the statistics that another process has written."""
        found = load_state(self.path, self.failed)
        if (found.fingerprint, found.dimensions) == (self.state.fingerprint, self.state.dimensions):
            for name in found.__struct_fields__:
                setattr(self.state, name, getattr(found, name))


def _short(found: Description) -> str:
    return hashlib.sha256(msgspec.json.encode(found)).hexdigest()[:12]


class RewardModels:
    """All configured reward models. Used by one thread; no method raises.

    Args:
        configs: the models, in order.
        data: folder of their state; None keeps it in memory.
        device: auto, cpu or cuda.
        providers: of the judges.
        clock: seconds since the epoch, for a judge's days.
        connected: instances to use instead of the configured providers of the same names.
        loaded: instances to use instead of the configured models of the same names.
    """

    def __init__(
        self,
        configs: Sequence[RewardModelConfig],
        data: Path | None = None,
        *,
        device: str = "auto",
        providers: Mapping[str, ProviderConfig] | None = None,
        clock: Callable[[], float] = time.time,
        connected: Mapping[str, Provider] | None = None,
        loaded: Mapping[str, RewardModel] | None = None,
    ) -> None:
        self._device, self._providers, self.clock = device, providers or {}, clock
        self._connected, self._given = connected or {}, loaded or {}
        self._judges: dict[str, judge.Judge] = {}
        """Those that check answers, made when first asked; `_making` is held meanwhile."""
        self._making = threading.Lock()
        folder = data and data / "reward_models"
        self._entries = [_Entry(config, folder, self._load) for config in configs]
        self.names = tuple(f"rm.{e.config.name}.{d}" for e in self._entries for d in e.state.dimensions)
        """Names of the features."""
        self.schema = "/".join(f"rm.{e.config.name}@{e.state.fingerprint}" for e in self._entries)
        """Name and version of the features: changes with the list, the dimensions and the weights."""

    def attach(self, report: Callable[[str, Exception], None]) -> None:
        """Set the function that gets failures, and report those that happened at the start."""
        for entry in self._entries:
            entry.report = report
            for error in entry.early:
                report(f"reward model {entry.config.name}", error)
            entry.early.clear()

    def resume(self) -> None:
        """Read the models' states from disk again, since another process was the scorer before."""
        for entry in self._entries:
            entry.resume()

    def features(self, items: Sequence[Item]) -> Floats:
        """Compute the standardised outputs of all models, float64[n, len(names)]; NaN where a model has none."""
        return np.hstack([np.zeros((len(items), 0)), *(entry.features(items) for entry in self._entries)])

    @property
    def needs_consent(self) -> bool:
        """Whether texts are sent to an endpoint of a metric, to which their person consents in the profile."""
        return any(entry.config.kind == "http" for entry in self._entries)

    def metrics(self, items: Sequence[Item]) -> Floats:
        """Compute what `features` does for the metrics alone, whose statistics stay; NaN for other models."""
        return np.hstack([np.zeros((len(items), 0)), *(entry.measured(items) for entry in self._entries)])

    def outputs(self, name: str, items: Sequence[Item]) -> Floats:
        """Compute the outputs of one model on its own scale, float64[n, dimensions].

        Raises:
            ModelError: it cannot be loaded.
            Exception: whatever the model raises.
        """
        entry = next(entry for entry in self._entries if entry.config.name == name)
        if (model := entry.ready()) is None:
            raise ModelError(entry.error)
        return model.score(items)

    def judge(self, name: str, item: Item) -> float:
        """Verdict of a judge on an answer, whatever its `sample`; NaN for none. What it spends here is counted apart.

        Raises:
            ModelError: its money of the day is spent.
        """
        with self._making:
            if name not in self._judges:
                entry = next(entry for entry in self._entries if entry.config.name == name)
                config = entry.config.model_copy(update={"sample": 1.0})
                made = config, self._provider(config), ModelState(), None, entry.failed, self.clock
                self._judges[name] = judge.Judge(*made)
        (verdict,) = self._judges[name].score([item])[0].tolist()
        if item.sampled.get(name) == 0.0:
            raise ModelError(f"the judge {name!r} has spent its money of the day")
        return float(verdict)

    # --- slow models ---

    def prune(self, decision_ids: Sequence[str]) -> None:
        """Forget finished answers other than these."""
        known = {*decision_ids}
        for entry in self._entries:
            entry.started = {k: v for k, v in entry.started.items() if k in known or not v.future.done()}

    def waiting(self) -> set[str]:
        """Decision ids of the answers that slow models have not scored yet."""
        return {k for entry in self._entries for k, started in entry.started.items() if not started.future.done()}

    def start(self, items: Sequence[Item]) -> list[bool]:
        """Start the slow models on answers that are new to them; False for an answer that has to wait."""
        begun = [[self._begun(entry, item) for entry in self._entries] for item in items]
        return [all(row) for row in begun]

    @staticmethod
    def _begun(entry: _Entry, item: Item) -> bool:
        if entry.config.kind != "judge" or not isinstance(model := entry.ready(), SlowModel):
            return True
        if item.decision_id not in entry.started:
            if len(entry.started) >= _WAITING:
                return False
            future = model.start(item)
            if future is None:
                return True
            entry.started[item.decision_id] = _Started(item, future)
        return entry.started[item.decision_id].future.done()

    # --- loading ---

    def _load(self, entry: _Entry) -> RewardModel:
        config = entry.config
        if config.name in self._given:
            return self._given[config.name]
        if config.kind == "judge":
            return judge.Judge(config, self._provider(config), entry.state, entry.path, entry.failed, self.clock)
        if config.kind in metric.METRICS:
            return metric.Metric(config, entry.failed)
        try:
            import torch
        except ImportError as error:
            raise ModelError(f"reward models need {error.name!r}; `pip install 'fitrouter[reward]'`") from None
        cuda = torch.cuda.is_available()
        if self._device == "cuda" and not cuda:
            raise ModelError("the device 'cuda' is not there; set 'scorer: {device: cpu}', or check the driver")
        device = "cuda" if cuda and self._device != "cpu" else "cpu"
        load = embedding.load if config.kind == "embedding" else sequence_classification.load
        return load(config, device, entry.failed)

    def _provider(self, config: RewardModelConfig) -> Provider:
        name = config.provider or ""
        if name in self._connected:
            return self._connected[name]
        from fitrouter.providers import build_provider

        return build_provider(name, self._providers[name])

    def health(self) -> dict[str, ModelHealth]:
        """State of each model, for metrics."""
        torch = sys.modules.get("torch")
        used = torch.cuda.memory_allocated() if torch is not None and torch.cuda.is_initialized() else 0
        out = {}
        for entry in self._entries:
            transformer: Any = getattr(entry.model, "transformer", entry.model)
            out[entry.config.name] = ModelHealth(
                error=entry.error,
                answers=entry.answers,
                missing=entry.missing,
                seconds=entry.seconds,
                tokens=getattr(transformer, "tokens", 0),
                device_bytes=used,
                usd_today=entry.state.usd,
            )
        return out
