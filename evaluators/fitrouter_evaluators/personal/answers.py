"""Answer pool of the quiz: recorded answers of the configured models to the same prompts, with their features."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fitrouter.config import Config
from fitrouter.context.encoders import get_encoder
from fitrouter.context.features import context_features, read_prompt
from fitrouter.errors import ConfigError
from fitrouter.providers import Recorded
from fitrouter.router import Router
from fitrouter.routing.variants import called
from fitrouter.types import Floats, Message, ModelCard, Request
from fitrouter_evaluators.scoring import Answer, ResponseFeatures, global_scalar

ASKED = "quiz-answers.jsonl"
"""File in the data folder with the answers that `fitrouter personal quiz --ask` collected."""
PROMPTS = 60
"""Most prompts of a pool that models are ranked on, and most that questions are taken from."""
READABLE = 3000
"""Characters of a prompt or an answer up to which it is preferred for a quiz."""
PAIRS = 5
"""Pairs of average length that the words of a quiz suffice for, so that a prompt's answers make short questions."""

_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\s\u3040-\u30ff\u3400-\u9fff]+")
"""A Chinese or Japanese character, or a run of others: people read as many of either a minute."""


class AnswerPool(NamedTuple):
    """Recorded answers of K models to P prompts, with their features."""

    id: str
    """Digest of the texts and names."""
    prompts: tuple[str, ...]
    models: tuple[str, ...]
    """Names as a request pins them."""
    texts: tuple[tuple[str, ...], ...]
    """Answers by prompt and model."""
    x: Floats
    """Contexts, float64[P, d]."""
    h: Floats
    """Response features, NaN where missing, float64[P, K, D]."""
    names: tuple[str, ...]
    """Of the response features."""
    words: NDArray[np.int64]
    """Of each prompt and answer, int[P, 1 + K]."""
    typical: NDArray[np.bool_]
    """Whether a prompt is one of those that models are ranked on, bool[P]; the others only make short questions."""


class NoAnswers(ConfigError):
    """There are no recorded answers of the configured models, or nothing that reads them."""


class PoolReader:
    """Reads the recorded answers of an installation, once. Thread-safe.

    Args:
        router: whose models answered.
        config: locates the file, and names the encoders.
        file: instead of the configured one.
    """

    def __init__(self, router: Router, config: Config, file: Path | None = None) -> None:
        self._router, self._config, self._file = router, config, file
        self._pool: AnswerPool | None = None
        self._reading = threading.Lock()

    def __call__(self) -> AnswerPool:
        """Return the pool. Blocks for seconds at first.

        Raises:
            ConfigError: the file cannot be used, or there is no scorer; `NoAnswers` if there are no answers.
        """
        with self._reading:
            if self._pool is None:
                file = self._file or answers_file(self._config)
                self._pool = read_pool(file, self._router.models.values(), self._config)
            return self._pool


def answers_file(config: Config) -> Path:
    """Return the path of the configured file of recorded answers.

    Raises:
        NoAnswers: there is none.
    """
    recorded = [provider.path for provider in config.providers.values() if provider.kind == "recorded"]
    for file in (config.quiz.answers, config.data / ASKED, *recorded):
        if file is not None and (file == config.quiz.answers or file.is_file()):
            return file
    raise NoAnswers(
        "quiz: there are no recorded answers to compare yet; whoever runs the gateway can set 'quiz.answers', or run "
        "`fitrouter personal quiz --ask`, which has each model answer the prompts once"
    )


def read_pool(file: Path, cards: Iterable[ModelCard], config: Config) -> AnswerPool:
    """Read a pool: prompts that at least two configured models have answered, readable ones first.

    Args:
        file: recorded answers; its models are the cards' targets or names.
        cards: of the configured models; variants are left out.
        config: whose encoders read prompts and answers.

    Raises:
        ConfigError: the file cannot be used, or there is no scorer.
    """
    if config.scorer.encoder == "none":
        raise NoAnswers("quiz: tastes need a scorer; set 'scorer.encoder'")
    recorded = Recorded(file)
    plain = [card for card in cards if card.variant is None]
    keys = {called(card): next((k for k in (card.target, card.name) if k in recorded.models), "") for card in plain}
    models = tuple(sorted(name for name, key in keys.items() if key))
    if len(models) < 2:
        raise NoAnswers(
            f"quiz: {str(file)!r} has answers of {', '.join(recorded.models)}; it needs two of the configured models, "
            f"{', '.join(sorted(keys))}"
        )
    complete = [p for p in recorded.prompts if p.strip() and all(keys[m] in recorded.answers(p) for m in models)]
    if not complete:
        raise NoAnswers(f"quiz: no prompt of {str(file)!r} has an answer of each of {', '.join(models)}")

    def readable(prompt: str) -> tuple[bool, bytes]:
        answers = recorded.answers(prompt)
        longest = max(len(prompt), *(len(answers[keys[model]]) for model in models))
        return longest > READABLE, hashlib.sha256(prompt.encode("utf-8", "replace")).digest()

    def short(prompt: str) -> int:
        answers = recorded.answers(prompt)
        pair = _words(prompt) + 2 * sum(_words(answers[keys[model]]) for model in models) // len(models)
        return max(pair - config.quiz.words // PAIRS, 0)

    complete.sort(key=readable)
    typical = complete[:PROMPTS]
    prompts = tuple(dict.fromkeys((*typical, *sorted(complete, key=short)[:PROMPTS])))
    texts = tuple(tuple(recorded.answers(prompt)[keys[model]] for model in models) for prompt in prompts)
    encoder, scoring = get_encoder(config.encoder), get_encoder(config.scorer.encoder)
    features = ResponseFeatures(scoring, scalar=global_scalar(scoring), declared=True)
    answers = [Answer(prompt=p, text=text) for p, row in zip(prompts, texts, strict=True) for text in row]
    x = [context_features(read_prompt(Request(messages=messages(prompt))), encoder) for prompt in prompts]
    h = features.encode(answers).reshape(len(prompts), len(models), -1)
    digest = hashlib.sha256(repr((models, prompts, texts, features.schema)).encode("utf-8", "replace")).hexdigest()
    words = np.array([[_words(text) for text in (prompt, *row)] for prompt, row in zip(prompts, texts, strict=True)])
    ranked = np.arange(len(prompts)) < len(typical)
    return AnswerPool(digest[:16], prompts, models, texts, np.array(x), h, features.names, words, ranked)


def _words(text: str) -> int:
    """Number of words that a text takes as long to read as; without spaces, one for every twelve characters.

    >>> _words("Is tea a drink?"), _words("茶是饮料吗？")
    (4, 6)
    """
    return max(len(_WORD.findall(text)), len(text) // 12)


def messages(prompt: str) -> tuple[Message, ...]:
    """Build the conversation to which a recorded answer belongs."""
    return ({"role": "user", "content": prompt},)
