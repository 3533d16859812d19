"""Background services: threads that step until stopped, whose failures are reported and retried."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Protocol

import msgspec

from fitrouter.errors import ConfigError
from fitrouter.hooks import Hooks
from fitrouter.posterior.tastes import TastePrior
from fitrouter.state.learner import Learner
from fitrouter.stores.identities import Identities
from fitrouter.stores.journal import Journal

if TYPE_CHECKING:
    from fitrouter.config import Config


class Service:
    """Calls `step` repeatedly on its own thread: immediately while it returns work done, else after `idle_s`.

    An exception is reported to the hooks as trouble of `part`; the service continues after `retry_s`.
    """

    def __init__(
        self, part: str, step: Callable[[], int], hooks: Hooks, *, idle_s: float = 0.1, retry_s: float = 1.0
    ) -> None:
        self.part, self.step, self.hooks = part, step, hooks
        self.idle_s, self.retry_s = idle_s, retry_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"fitrouter-{part}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop after the current step; a step that hangs is left behind (the thread is a daemon)."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                pause = 0.0 if self.step() else self.idle_s
            except Exception as error:  # noqa: BLE001 - a failing service must not end the process
                self.hooks.trouble(self.part, error)
                pause = self.retry_s
            if pause:
                self._stop.wait(pause)


class ModelHealth(msgspec.Struct, frozen=True, kw_only=True):
    """State of a reward model of the scorer, counted since this process started."""

    error: str = ""
    """Why its features are missing now; empty if they are not."""
    answers: int = 0
    """Answers scored."""
    missing: int = 0
    """Answers among them without its features."""
    seconds: float = 0.0
    """Time spent in the model."""
    tokens: int = 0
    """Tokens read, without padding."""
    device_bytes: int = 0
    """Memory that this process has allocated on the GPU."""
    usd_today: float = 0.0
    """Spent by a judge."""


class ScorerPlugin(Protocol):
    """Protocol of the scorer, registered as entry point `fitrouter.scorer`."""

    dim: int
    """Length of the response features h."""
    schema: str
    """Name and version of the response features."""
    names: tuple[str, ...]
    """Name of each response feature."""
    prior: TastePrior | None
    """Prior of tastes over these features."""

    def attach(
        self, journal: Journal, identities: Identities, learner: Learner, hooks: Hooks, clock: Callable[[], float]
    ) -> None:
        """Connect the scorer to the stores, the learned heads, the hooks and the clock."""
        ...

    def understand(self, statements: Sequence[str]) -> dict[str, dict[str, float]]:
        """Parse statements of preference: statement → dimension → −1 … 1; empty if not understood."""
        ...

    def topics(self, statements: Sequence[str]) -> Sequence[str]:
        """The statements of preference about topics, which answers are compared with."""
        ...

    def step(self) -> int:
        """Score waiting answers if this process holds the scorer lease; returns their number."""
        ...

    def lag(self) -> tuple[int, float]:
        """Number of waiting answers, and the age of the oldest in seconds."""
        ...

    def models(self) -> Mapping[str, ModelHealth]:
        """State of each reward model by name."""
        ...

    @property
    def leading(self) -> bool:
        """Whether this process holds the scorer lease."""
        ...


def load_scorer(config: Config) -> ScorerPlugin | None:
    """Load the installed scorer; None for `encoder: none`.

    Raises:
        ConfigError: none is installed.
    """
    if config.scorer.encoder == "none":
        return None
    for entry_point in metadata.entry_points(group="fitrouter.scorer"):
        # Reward models also need a folder for their state, and judges a provider.
        more = {"data": config.data, "providers": config.providers} if config.scorer.models else {}
        plugin: ScorerPlugin = entry_point.load()(config.scorer, **more)
        return plugin
    raise ConfigError(
        "scorer: no scorer is installed; install the whole fitrouter package, or set 'scorer: {encoder: none}'"
    )
