"""Provider with simulated models: personas that differ in style, skill and speed."""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from fitrouter.errors import ConfigError, ProviderUnavailable
from fitrouter.providers import _sentences as bank
from fitrouter.providers._texts import last_user_text, stream, usage_of, whole
from fitrouter.types import Call, Chunk, Completion, Floats

T = TypeVar("T")
Fraction = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
_MAX_POINTS = 40
_PIECE = 24
_STOP = (
    "about",
    "after",
    "again",
    "could",
    "please",
    "should",
    "their",
    "there",
    "these",
    "this",
    "which",
    "would",
    "write",
)
_WORD = re.compile(r"[^\W\d_]{4,}")


class Persona(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Style settings of a simulated model. Each moves one property of the text, monotonically.

    A text is a list of points, each a sentence. The settings from 0 to 1 are frequencies for a point (`bullets`,
    `hedging`, `formality`, `numbers`, `examples`, `boldness`), for a group of three points (`headings`, `code`), or for
    the text (`warmth`: a warm opening, a warm closing, and exclamations in between; `flattery`: praise at the opening
    and between points).
    """

    length: Annotated[float, msgspec.Meta(ge=1.0, le=30.0)] = 5.0
    """Average number of points; a prompt gets from three to six fifths of it."""
    bullets: Fraction = 0.0
    """Points that are list items (`- …`)."""
    headings: Fraction = 0.0
    """Groups of points under a heading (`## …`)."""
    hedging: Fraction = 0.1
    """Points that begin with perhaps, it seems that, I think …"""
    warmth: Fraction = 0.2
    """Kind words to the reader."""
    formality: Fraction = 0.5
    """Points in formal words (furthermore, one should …); the others have contractions."""
    code: Fraction = 0.0
    """Groups of points with a fenced block of code."""
    numbers: Fraction = 0.1
    """Points with a figure."""
    examples: Fraction = 0.1
    """Points that an example follows."""
    boldness: Fraction = 0.0
    """Points that a claim of certainty follows."""
    flattery: Fraction = 0.0
    """Praise of the reader."""
    skill: dict[str, Fraction] = {}
    """Topic → share of points about the prompt's own subject instead of generalities. Topics are code, math, writing,
    advice, science, business and general; a topic without a value has that of general."""
    latency_s: Annotated[float, msgspec.Meta(ge=0.0)] = 0.5
    """Average seconds for a whole answer; two fifths of them before the first piece."""
    failure: Fraction = 0.0
    """Share of the calls that fail as unavailable."""

    def strength(self, topic: str) -> float:
        """The skill in a topic, in [0, 1]; ½ by default."""
        return self.skill.get(topic, self.skill.get("general", 0.5))


class Simulated:
    """Provider with simulated models that answer from sentence banks, deterministically by (seed, model, prompt).

    `call.target` is the name of the persona. Latency is slept, `speed` times faster; failures depend on the number of
    the call.
    """

    def __init__(
        self,
        models: Mapping[str, Persona],
        seed: int = 0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        speed: float = 1.0,
    ) -> None:
        if not speed > 0:
            raise ConfigError(f"speed is {speed!r}; it must be above 0 (infinity does not sleep)")
        self.models = dict(models)
        self._seed = seed
        self._sleep = sleep
        self._speed = speed
        self._calls = dict.fromkeys(self.models, 0)

    @classmethod
    def from_options(
        cls, options: Mapping[str, Any], sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> Simulated:
        """Build the provider from `options`: name → persona (flat, or under `style`), `seed` and `speed`.

        Raises:
            ConfigError: a persona has an unknown setting, or a value out of its range.
        """
        models = {}
        for name, given in options.items():
            if name in {"seed", "speed"}:
                continue
            try:
                flat = {**given.get("style", {}), **{key: value for key, value in given.items() if key != "style"}}
                models[name] = msgspec.convert(flat, Persona)
            except (msgspec.ValidationError, AttributeError, TypeError) as error:
                raise ConfigError(
                    f"the simulated model {name!r} is {given!r}: {error}. "
                    f"Allowed are {', '.join(Persona.__struct_fields__)}"
                ) from None
        seed, speed = options.get("seed", 0), options.get("speed", 1.0)
        if not isinstance(seed, int) or not isinstance(speed, int | float):
            raise ConfigError(f"the simulated provider has seed {seed!r} and speed {speed!r}; both must be numbers")
        return cls(models, seed, sleep, float(speed))

    async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
        """Return a completion or a stream of chunks; see `Provider`."""
        persona = self.models.get(call.target)
        if persona is None:
            raise ProviderUnavailable(
                f"there is no simulated model {call.target!r}; there are {sorted(self.models)}", 404
            )
        number = self._calls[call.target]
        self._calls[call.target] += 1
        if _philox(self._seed, call.target, f"failure {number}").random() < persona.failure:
            await self._sleep(0.1 * persona.latency_s / self._speed)
            raise ProviderUnavailable(f"simulated failure of {call.target!r}", 503)
        prompt = last_user_text(call.messages)
        text = write(persona, prompt, self._seed, call.target)
        jitter = 0.75 + 0.5 * _philox(self._seed, call.target, f"latency {number}").random()
        seconds = persona.latency_s * jitter / self._speed
        usage = usage_of(call.messages, text)
        if not call.stream:
            await self._sleep(seconds)
            return whole(text, usage)
        later = math.ceil(len(text) / _PIECE) - 1

        async def pause(i: int) -> None:
            await self._sleep(0.4 * seconds if i == 0 else 0.6 * seconds / later)

        return stream(text, usage, pause, _PIECE)

    async def aclose(self) -> None:
        """Do nothing: no connection is open."""


def topic_of(prompt: str) -> str:
    """The topic with most keywords in the prompt; general if there are none.

    >>> topic_of("Fix the bug in this Python function"), topic_of("Hello")
    ('code', 'general')
    """
    words = set(re.findall(r"\w+", prompt.casefold()))
    hits = {topic: len(words.intersection(keywords)) for topic, keywords in bank.KEYWORDS.items()}
    best = max(hits, key=hits.__getitem__)
    return best if hits[best] else "general"


def write(persona: Persona, prompt: str, seed: int, name: str) -> str:
    """Write the answer of a persona to a prompt, deterministically.

    All random numbers are drawn beforehand, independently of the settings, and an effect occurs if its number is below
    its setting (common random numbers): a higher setting adds to the same text.
    """
    rng = _philox(seed, name, prompt)
    chance = rng.random((_MAX_POINTS, 12))
    count = max(1, round(persona.length * (0.6 + 0.6 * chance[0, 11])))
    words = _subjects(prompt)
    order = rng.permutation(len(bank.POINTS))
    strength = persona.strength(topic_of(prompt))
    lines: list[str] = []
    paragraph: list[str] = []

    def flush() -> None:
        if paragraph:
            lines.append(" ".join(paragraph))
            paragraph.clear()

    if chance[0, 8] < persona.flattery:
        paragraph.append(_pick(bank.PRAISE, chance[0, 10]))
    if chance[0, 9] < persona.warmth:
        paragraph.append(_pick(bank.WARM_OPENINGS, chance[1, 10]))
    for i in range(count):
        draw = chance[i]
        if i % 3 == 0 and chance[i, 6] < persona.headings:
            flush()
            lines.append(f"## {bank.HEADINGS[i // 3 % len(bank.HEADINGS)]}")
        sentences = _point(persona, draw, bank.POINTS[order[i % len(order)]], words[i % len(words)], strength)
        if draw[7] < persona.bullets:
            flush()
            lines.append("- " + " ".join(sentences))
        else:
            paragraph.extend(sentences)
        if i % 3 == 2 and chance[i - 1, 6] < persona.code:
            flush()
            lines.append(f"```python\n{_pick(bank.CODE, draw[10]).format(v=words[0].lower())}\n```")
    if chance[1, 9] < persona.warmth:
        paragraph.append(_pick(bank.WARM_CLOSINGS, chance[2, 10]))
    flush()
    return "\n\n".join(lines).replace("\n\n- ", "\n- ")


def _point(persona: Persona, draw: Floats, wordings: tuple[str, ...], word: str, strength: float) -> list[str]:
    """Write the sentences of one point of an answer."""
    vague, casual = draw[0] >= strength, draw[1] >= persona.formality
    sentence = wordings[2 * vague + casual].format(t=word)
    if draw[2] < persona.hedging:
        sentence = f"{_pick(bank.HEDGES, draw[10])} {sentence[0].lower()}{sentence[1:]}"
    if draw[3] < persona.numbers:
        sentence += ", " + _pick(bank.NUMBERS, draw[10]).format(n=10 + int(89 * draw[11]))
    sentences = [f"{sentence}."]
    if draw[4] < persona.examples:
        sentences.append(_pick(bank.EXAMPLES, draw[11]).format(t=word) + ".")
    if draw[5] < persona.boldness:
        sentences.append(_pick(bank.BOLD, draw[10]))
    if draw[8] < 0.5 * persona.flattery:
        sentences.append(_pick(bank.PRAISE, draw[11]))
    if draw[9] < 0.3 * persona.warmth:
        sentences.append("You've got this!")
    return sentences


def _subjects(prompt: str) -> list[str]:
    """Up to four subject words of the prompt: its longest ones, in order."""
    words = list(dict.fromkeys(word for word in _WORD.findall(prompt[:2000]) if word.casefold() not in _STOP))
    longest = sorted(words, key=len, reverse=True)[:4]
    return [word for word in words if word in longest] or ["this"]


def _pick(choices: tuple[T, ...], chance: float) -> T:
    return choices[int(chance * len(choices))]


def _philox(seed: int, name: str, what: str) -> np.random.Generator:
    digest = hashlib.sha256(f"{seed}\x00{name}\x00{what}".encode("utf-8", "surrogatepass")).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
