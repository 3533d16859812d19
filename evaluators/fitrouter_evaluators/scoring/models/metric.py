"""Metrics of one's own: a Python function or an HTTP endpoint that gives the answer to a prompt a number.

Both come from the configuration alone. They run on a thread of their own, for `timeout_s` at most, and each value that
is no number between −1e9 and 1e9 is an error. It says which type the value had, not what it was, since that may repeat
what a person wrote. An endpoint gets the texts of people who have consented by naming the metric in their profile, at
public addresses unless the configuration allows others; redirects are not followed.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeGuard

import msgspec
import numpy as np

from fitrouter.config import ProviderConfig
from fitrouter.errors import FitrouterError, ProviderError
from fitrouter.providers import build_provider
from fitrouter.types import Floats
from fitrouter_evaluators.scoring.models.reward_model import Description, Item, ModelError
from fitrouter_evaluators.scoring.text.reading import clip_text

if TYPE_CHECKING:
    from fitrouter.config import RewardModelConfig

METRICS = ("function", "http")
"""Kinds of reward models that are metrics of one's own."""
RETRY_S = 60.0
"""Seconds that a metric that was late is left alone."""
_LARGEST = 1e9
"""Largest value: squares of larger ones would leave no variance that is a number."""
_AT_ONCE = 32
"""Answers in a request to an endpoint."""
_LONGEST_REPLY = 65_536
_CHARACTERS_PER_TOKEN = 4

Values = Callable[[Sequence[Item]], Sequence[object]]
"""Gives each item a value, or the exception that it raised."""


class _Scores(msgspec.Struct):
    scores: list[Any]


class Metric:
    """A reward model with one output: the value of a metric. Thread-safe.

    Args:
        entry: the configuration.
        report: called with the first failure of a batch.
        timer: monotonic seconds.
    """

    def __init__(
        self,
        entry: RewardModelConfig,
        report: Callable[[Exception], None],
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._entry, self._report, self._timer = entry, report, timer
        self._running, self._resting = threading.Lock(), -np.inf
        self._values: Values = self.within(lambda: prepare(entry))

    def score(self, items: Sequence[Item]) -> Floats:
        """Compute the values, float64[n, 1]; NaN without a text or consent, and where the metric failed.

        Raises:
            ModelError: it was late, tried to exit, or the endpoint failed.
        """
        out, http = np.full((len(items), 1), np.nan), self._entry.kind == "http"
        named = f"rm.{self._entry.name}.score"
        asked = [i for i, item in enumerate(items) if item.answer.has_text and not (http and named not in item.named)]
        if not asked:
            return out
        found = self.within(lambda: self._values([items[i] for i in asked]))
        wrong = []
        for i, value in zip(asked, found, strict=True):
            if _is_number(value) and -_LARGEST <= value <= _LARGEST:
                out[i] = float(value)
            else:
                wrong.append(_said(value))
        if wrong:
            self._report(ModelError(f"the metric failed on {len(wrong)} of {len(asked)} answers: {wrong[0]}"))
        return out

    def within(self, work: Callable[[], Any]) -> Any:
        """Do work on a thread of its own and return what it gives, within `timeout_s`."""
        limit, again = self._entry.timeout_s, f"it is tried again after {RETRY_S:g} s"
        if self._timer() < self._resting:
            raise ModelError(f"the metric was late; {again}")
        if not self._running.acquire(timeout=limit):
            self._resting = self._timer() + RETRY_S
            raise ModelError(f"the metric is still busy with earlier answers; {again}")
        done: Future[Any] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except FitrouterError as error:
                done.set_exception(error)
            except BaseException as error:  # noqa: BLE001 - code of others, which may even exit
                done.set_exception(ModelError(f"the metric failed: {_said(error)}"))
            finally:
                self._running.release()

        threading.Thread(target=run, name=f"metric {self._entry.name}", daemon=True).start()
        try:
            return done.result(limit)
        except TimeoutError:
            self._resting = self._timer() + RETRY_S
            raise ModelError(f"the metric gave nothing within {limit:g} s ('timeout_s'); {again}") from None


def describe(entry: RewardModelConfig) -> Description:
    """Describe a metric by where it comes from; a new name or place is a new scale."""
    return Description(("score",), hashlib.sha256(f"{entry.function} {entry.url}".encode()).hexdigest())


def prepare(entry: RewardModelConfig) -> Values:
    """Import the function, or prepare to ask the endpoint.

    Raises:
        FitrouterError: there is no such function, or no key.
        Exception: whatever the import of its module raises.
    """
    if entry.kind == "http":
        settings = ProviderConfig(kind="openai_compatible", base_url=entry.url, api_key_env=entry.api_key_env)
        build_provider(entry.name, settings)  # refuses a missing key at once
        return lambda items: asyncio.run(_asked(entry, settings, items))
    module, _, name = entry.function.partition(":")
    function = getattr(import_module(module), name, None)
    if not callable(function):
        raise ModelError(f"{module!r} has no function {name!r}; correct 'function', which is MODULE:FUNCTION")

    def value(item: Item) -> object:
        try:
            return function(item.answer.prompt, item.answer.text)
        except Exception as error:  # noqa: BLE001 - of others; told by `score`
            return error

    return lambda items: [value(item) for item in items]


async def _asked(entry: RewardModelConfig, settings: ProviderConfig, items: Sequence[Item]) -> list[object]:
    """Ask an endpoint for the values of answers."""
    client: Any = build_provider(entry.name, settings, public=not entry.private_addresses, max_bytes=_LONGEST_REPLY)
    longest, found = entry.max_tokens * _CHARACTERS_PER_TOKEN // 2, list[object]()
    try:
        for start in range(0, len(items), _AT_ONCE):
            batch = [item.answer for item in items[start : start + _AT_ONCE]]
            texts = [
                {key: clip_text(text, longest).encode("utf-8", "replace").decode() for key, text in each.items()}
                for each in ({"prompt": answer.prompt, "answer": answer.text} for answer in batch)
            ]
            reply = await client.post({"items": texts}, 2.0 * entry.timeout_s)  # `within` is earlier
            try:
                scores = msgspec.json.decode(reply, type=_Scores).scores
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                raise ModelError('the endpoint\'s reply is not JSON of the form {"scores": [numbers]}') from None
            if len(scores) != len(batch):
                raise ModelError(f"the endpoint gave {len(scores)} scores for {len(batch)} answers; give one for each")
            found.extend(scores)
    except ProviderError as error:  # with a status it has the endpoint's words, which may repeat a prompt
        raise ModelError(f"the endpoint answered {error.status}" if error.status else str(error)) from None
    finally:
        await client.aclose()
    return found


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _said(value: object) -> str:
    """Say what was wrong with a value without repeating it: an exception's type and place, or a value's type."""
    if isinstance(value, BaseException):
        frames = traceback.extract_tb(value.__traceback__)
        place = f" in {frames[-1].name}, line {frames[-1].lineno}" if frames else ""
        return f"{type(value).__name__}{place}"
    if _is_number(value):
        return f"a number that is not finite, or beyond ±{_LARGEST:g}"
    return f"a value of type {type(value).__name__}, not a number"
