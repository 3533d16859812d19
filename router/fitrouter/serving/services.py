"""Background services: threads that step until stopped, whose failures are reported and retried."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import metadata
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from fitrouter.errors import ConfigError, FitrouterError, in_words
from fitrouter.hooks import Hooks
from fitrouter.posterior.tastes import TastePrior
from fitrouter.state.learner import Learner
from fitrouter.stores.identities import Identities
from fitrouter.stores.journal import Journal
from fitrouter.types import Floats, Identity, Message

if TYPE_CHECKING:
    from fitrouter.config import Config


EXIT_S = 60.0
"""Seconds that the exit of the process waits for a service's last step."""


class Failing(msgspec.Struct, frozen=True, kw_only=True):
    """A part whose steps fail, one after another."""

    since: float
    """First of these failures, in seconds since the epoch."""
    times: int
    error: str


class Service:
    """Thread that calls `step` repeatedly: at once while it returns work done, else after `idle_s`.

    An exception is reported to the hooks as trouble of `part`; the service continues after `retry_s`.

    Args:
        part: name of the service.
        step: does what there is to do and returns how much that was.
        hooks: notified of exceptions.
        idle_s: pause after a step that did little.
        retry_s: pause after a step that failed.
        full: least result of a step that is not followed by a pause. Above 1, where a step has a fixed cost, work is
            collected for `idle_s`.
    """

    def __init__(
        self,
        part: str,
        step: Callable[[], int],
        hooks: Hooks,
        *,
        idle_s: float = 0.1,
        retry_s: float = 1.0,
        full: int = 1,
    ) -> None:
        self.part, self.step, self.hooks = part, step, hooks
        self.idle_s, self.retry_s, self.full = idle_s, retry_s, full
        self.failing: Failing | None = None
        """Since its last step that succeeded; None if that was the last one."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"fitrouter-{part}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop after the current step; one that takes too long is abandoned, and waited for when the process exits."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            # A daemon thread that is inside DuckDB when the interpreter ends aborts the process.
            atexit.register(self._thread.join, EXIT_S)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                pause, self.failing = 0.0 if self.step() >= self.full else self.idle_s, None
            except Exception as error:  # noqa: BLE001 - a failing service must not end the process
                self.hooks.trouble(self.part, error)
                text = str(error) if isinstance(error, FitrouterError) else in_words(error)
                before = self.failing or Failing(since=time.time(), times=0, error="")
                self.failing = Failing(since=before.since, times=before.times + 1, error=text)
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


class ParsedRemark(NamedTuple):
    """Dimensions and directions parsed from words about an answer."""

    moved: dict[str, float]
    """Dimension → −1 (less of it is wanted) … 1 (more)."""
    y: float | None = None
    """1 for praise, 0 for a rejection of the answer as a whole."""
    not_understood: tuple[str, ...] = ()
    """Clauses without a known dimension."""
    reasons: Mapping[str, str] = MappingProxyType({})
    """Why a clause was not understood, where more is known than that."""


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

    def reasons(self, statements: Sequence[str]) -> dict[str, str]:
        """Return why statements were not understood, where that is known: statement → sentence."""
        ...

    def topics(self, statements: Sequence[str]) -> Sequence[str]:
        """The statements of preference about topics, which answers are compared with."""
        ...

    def comment(self, text: str) -> ParsedRemark:
        """Parse a comment on an answer."""
        ...

    def overhear(self, message: str) -> ParsedRemark | None:
        """Find a remark about the previous answer in a user's message, in microseconds; None if there is none."""
        ...

    def read(self, answers: Sequence[tuple[str, str]], declared: Sequence[str], named: Collection[str] = ()) -> Floats:
        """Compute features of texts, float64[n, dim], NaN where missing: always for models with weights and judges.

        Args:
            answers: (prompt, text) each.
            declared: statements about topics.
            named: features that the person's profile names, by which they consent that their endpoints get the texts.
        """
        ...

    def judge(self, name: str, identity: Identity, messages: Sequence[Message], answer: Message) -> float:
        """Let a judge judge an answer, −1 … 1; NaN if no principle is concerned, or it said nothing. Takes seconds."""
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


def load_scorer(config: Config, **options: Any) -> ScorerPlugin | None:
    """Load the installed scorer; None for `encoder: none`.

    Args:
        config: all settings.
        options: further arguments of the scorer, such as `remote` of the shipped one.

    Raises:
        ConfigError: none is installed.
    """
    if config.scorer.encoder == "none":
        return None
    for entry_point in metadata.entry_points(group="fitrouter.scorer"):
        # Reward models also need a folder for their state, and judges a provider.
        more = {"data": config.data, "providers": config.providers} if config.scorer.models else {}
        plugin: ScorerPlugin = entry_point.load()(config.scorer, **more, **options)
        return plugin
    raise ConfigError(
        "scorer: no scorer is installed; install the whole fitrouter package, or set 'scorer: {encoder: none}'"
    )
