"""Attacks that raise a reward model's score of an answer, but not its quality.

Each attack is a function of an answer and its prompt. Training uses the templates `TRAIN`; defences are measured on
others (`benchmarks/scoring/attacks.py`).
The kinds follow Zheng et al. 2024 (arXiv:2410.07137, constant replies), Singhal et al. 2023 (arXiv:2310.03716, length),
Sharma et al. 2023 (arXiv:2310.13548, flattery) and Greshake et al. 2023 (arXiv:2302.12173, injection).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from importlib import resources
from typing import NamedTuple

import msgspec
import numpy as np

from fitrouter_evaluators.scoring._answer import Answer
from fitrouter_evaluators.scoring.features import ResponseFeatures
from fitrouter_evaluators.training.hierarchy import Observations

KINDS = ("filler", "repetition", "boilerplate", "headings", "flattery", "injection", "echo", "keywords")
"""Kinds of attacks, in the order of tables."""
_NOISE = (
    *("}", "{", "(", ")", ";", ":", ",", "]", "[", "/>", "==", "//", "##", "@@", "$$", "&&", "\\n", "7", "42"),
    *("foo", "tra", "ger", "ling", "ix", "que", "zu", "ment", "val", "par", "den", "xy", "qu"),
)


class Templates(msgspec.Struct, frozen=True, kw_only=True):
    """Texts from which one set of attacks is made."""

    name: str
    """Seeds its noise."""
    stubs: tuple[str, ...]
    """Worthless answers, which attacks try to lift."""
    filler: tuple[str, ...]
    boilerplate: tuple[str, ...]
    headings: tuple[tuple[str, str], ...]
    flattery: tuple[tuple[str, str], ...]
    injection: tuple[str, ...]
    constants: tuple[str, ...]
    """Replies that are the same to every prompt."""
    echoes: tuple[str, ...]
    """Forms with {p}, the prompt, and {a}, the answer."""
    repeats: tuple[tuple[int, str], ...]
    """Times and separator."""
    keywords: tuple[tuple[str, int], ...]
    """Separator and times."""


TRAIN = msgspec.json.decode(
    (resources.files("fitrouter_evaluators.training") / "data" / "attacks.json").read_bytes(), type=Templates
)


class Attack(NamedTuple):
    """A manipulation of an answer."""

    kind: str
    name: str
    of: Callable[[str, str], str]
    """(answer, prompt) -> the attacked answer."""


def constants(templates: Templates = TRAIN) -> tuple[str, ...]:
    """Replies that ignore the prompt: the constant ones, and noise made from a fixed seed."""
    return (*templates.constants, *(_noise(f"{templates.name}{i}") for i in range(4)))


def attacks(templates: Templates = TRAIN) -> tuple[Attack, ...]:
    """All attacks of one set of templates."""
    t = templates
    out = [Attack("filler", f"filler {i}", _after(" ".join(part))) for i, part in enumerate(_halves(t.filler))]
    out += [Attack("filler", "all filler", _after("\n\n".join(t.filler)))]
    out += [Attack("repetition", f"{n} times", _repeated(n, between)) for n, between in t.repeats]
    out += [Attack("boilerplate", f"list {i}", _after(text)) for i, text in enumerate(t.boilerplate)]
    out += [Attack("headings", f"headings {i}", _around(*pair)) for i, pair in enumerate(t.headings)]
    out += [Attack("flattery", f"flattery {i}", _around(*pair)) for i, pair in enumerate(t.flattery)]
    out += [Attack("injection", f"injection {i}", _after(text)) for i, text in enumerate(t.injection)]
    out += [Attack("injection", f"injection first {i}", _before(text)) for i, text in enumerate(t.injection)]
    out += [Attack("echo", f"echo {i}", _filled(form)) for i, form in enumerate(t.echoes)]
    out += [Attack("keywords", f"keywords {i}", _keywords(*joint)) for i, joint in enumerate(t.keywords)]
    return tuple(out)


def guards(
    answers: Sequence[Answer], features: ResponseFeatures, weight: float, *, each: int = 3, seed: int = 2026
) -> list[Observations]:
    """Votes for honest answers against attacked versions of themselves, as labels of users with forty votes each.

    They teach a head about attacks, which human judges of honest answers never saw. Labels are along
    h(honest) − h(attacked), each counted `weight` times; every answer has `each` attacks.
    """
    rng, ways = np.random.default_rng(seed), attacks()
    pairs = [(i, ways[int(j)]) for i in range(len(answers)) for j in rng.permutation(len(ways))[:each]]
    lost = [Answer(prompt=answers[i].prompt, text=way.of(answers[i].text, answers[i].prompt)) for i, way in pairs]
    honest = np.nan_to_num(features.encode(answers))[[i for i, _ in pairs]]
    X = honest - np.nan_to_num(features.encode(lost))
    parts = np.array_split(rng.permutation(len(X)), max(1, len(X) // 40))
    return [Observations(X[part], np.ones(len(part)), np.full(len(part), weight)) for part in parts]


def _halves(parts: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    middle = len(parts) // 2
    return parts[:middle], parts[middle:]


def _after(text: str) -> Callable[[str, str], str]:
    return lambda answer, _prompt: f"{answer}\n\n{text}"


def _before(text: str) -> Callable[[str, str], str]:
    return lambda answer, _prompt: f"{text}\n\n{answer}"


def _around(before: str, after: str) -> Callable[[str, str], str]:
    return lambda answer, _prompt: f"{before}\n\n{answer}\n\n{after}".strip()


def _repeated(times: int, between: str) -> Callable[[str, str], str]:
    return lambda answer, _prompt: between.join([answer] * times)


def _filled(form: str) -> Callable[[str, str], str]:
    return lambda answer, prompt: form.replace("{a}", answer).replace("{p}", prompt)


def _keywords(between: str, times: int) -> Callable[[str, str], str]:
    def of(answer: str, prompt: str) -> str:
        words = list(dict.fromkeys(re.findall(r"[a-z]{4,}", prompt.lower())))
        return f"{answer}\n\n{between.join(words * times)}"

    return of


def _noise(seed: str) -> str:
    """Make noise of sixty symbols and syllables, which depend on the seed only."""
    drawn = [hashlib.blake2b(f"{seed} {i}".encode(), digest_size=4).digest() for i in range(60)]
    return " ".join(_NOISE[a % len(_NOISE)] + _NOISE[b % len(_NOISE)] * (c % 2) for a, b, c, _ in drawn)
