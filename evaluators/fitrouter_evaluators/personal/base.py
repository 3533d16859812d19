"""Common base that everybody gets, whatever their taste: faults of an answer that no preference outweighs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from fitrouter_evaluators.scoring.text.language import OTHER, language_of
from fitrouter_evaluators.scoring.text.reading import Reading
from fitrouter_evaluators.scoring.text.sound import grader_talk

Check = Literal["exact", "contains", "all", "json"]
"""How an answer is compared with right ones: it is one of them, contains one, contains all, or is the same JSON."""
LEAST = 0.9
"""Share of answers without a fault below which a model cannot be first."""
_REPEATED = 0.5
"""Share of repeated word triples from which a text is degenerate."""
_SECRET = re.compile(
    r"\bsk-[A-Za-z0-9_-]{20,}|\bAKIA[0-9A-Z]{16}\b|\bghp_[A-Za-z0-9]{36}\b|\bxox[bp]-[A-Za-z0-9-]{20,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
_NOT = r"(?:can['’]t|cannot|can not|won['’]t|will not|unable to|not able to|not comfortable|not equipped to)"
_REFUSES = re.compile(
    rf"\bI(?:['’]m| am)? {_NOT}(?! (?:wait|believe|stop|thank|help but|stress|overstate|say enough))"
    r"|\bcan(?:['’]t|not) (?:help|assist|provide)\b|\b(?:must|have to) (?:decline|refuse)\b"
    r"|\bas an ai\b|against my (?:\w+ )?guidelines",
    re.IGNORECASE,
)
"""That the writer does not do it. Regret alone is no refusal: "I'm sorry to hear that"."""
_GOES_ON = re.compile(r"\b(?:however|instead|nevertheless|that said)\b", re.IGNORECASE)
_OPENING, _SHORT = 200, 400
"""Characters in which a refusal stands, and of a refusal at most."""
_TRANSLATE = re.compile(r"\b(?:translat\w*|languages?)\b", re.IGNORECASE)
_GRADER = 1.2
"""In log phrases: more than two that talk to a grader, as ordinary answers often have one or two."""
_DATA = re.compile(r"```.*?(?:```|\Z)|[\"']?\b\w+[\"']?\s*(?:[:+-]?=|[\"']:)", re.DOTALL)
"""Code, and names of data: `"score": 4` and `score = 4` address nobody."""
_FENCED = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_VERDICT = re.compile(
    r"\b(?i:verdict|winner|preferred|grade)\s*:?=+\s*\[*([ABC]|tie)\b(?!\s*(?:if|else)\b|[.(\[]\w|\s*[+*/-])"
)
_AROUND = " .!\"'()[]*`"
_TRIPLES = 30
"""Words from which repetition is measured."""


def faults(prompt: str, answer: str) -> tuple[str, ...]:
    """Names of the faults of an answer: empty, refused, repeated, another language, secret, grader."""
    text = answer.strip()
    if not text:
        return ("empty",)
    reading = Reading(text)
    words = reading.words
    triples = list(zip(words, words[1:], words[2:], strict=False))
    found = {
        "refused": len(text) < _SHORT and _REFUSES.search(text[:_OPENING]) is not None and not _GOES_ON.search(text),
        "repeated": len(words) >= _TRIPLES and 1.0 - len(set(triples)) / len(triples) > _REPEATED,
        "language": len(words) >= _TRIPLES and _other_language(prompt, text),
        "secret": _SECRET.search(text) is not None,
        "grader": grader_talk(Reading(_spoken(text))) > grader_talk(Reading(prompt)) + _GRADER,
    }
    return tuple(name for name, present in found.items() if present)


def _spoken(text: str) -> str:
    """The part of a text that may address a grader: names of data too, beside `verdict = A` of one side alone."""
    prose = _FENCED.sub(" ", text)
    return prose if len(set(_VERDICT.findall(prose))) == 1 else _DATA.sub(" ", text)


def _other_language(prompt: str, text: str) -> bool:
    """Whether a text is in a known language that the prompt is not in and does not ask for.

    Lists of names, hashtags and tables have no function words: that they are not English is not known.
    """
    own, asked = language_of(text), language_of(prompt)
    known = OTHER not in (own, asked)
    return known and own != asked and own.lower() not in prompt.lower() and not _TRANSLATE.search(prompt)


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """How well a model's answers meet the common base: number, share without faults, and counts of faults."""

    answers: int
    sound: float
    """Share without a fault."""
    faults: dict[str, int]
    """Fault → answers that have it."""


def describe_base(base: Base) -> str:
    """Describe a base in words."""
    named = ", ".join(f"{number} {name}" for name, number in base.faults.items())
    return f"{base.sound:.0%} of {base.answers} recorded answers without a fault" + (f" ({named})" if named else "")


def base_of(found: Sequence[Sequence[str]]) -> Base:
    """Summarise the faults of each of a model's answers as its base."""
    names = sorted({name for each in found for name in each})
    return Base(
        answers=len(found),
        sound=sum(not each for each in found) / len(found) if found else 0.0,
        faults={name: sum(name in each for each in found) for name in names},
    )


def wrong(
    answer: str, *, accepts: Sequence[str] = (), fields: Sequence[str] = (), tool: Mapping[str, Any] | None = None
) -> tuple[str, ...]:
    """Faults of an answer to a prompt whose right answers are known: empty, wrong, schema, tool.

    Args:
        answer: its text; of tool calls their JSON, a list of OpenAI's objects.
        accepts: words, one of which a right answer has; none for any.
        fields: of the JSON object that it is.
        tool: definition of the function that it calls.
    """
    if not answer.strip():
        return ("empty",)
    if accepts and not set(map(str.lower, accepts)) & set(re.findall(r"\w+", answer.lower())):
        return ("wrong",)
    if fields and _object(answer).keys() != set(fields):
        return ("schema",)
    if tool is not None and not _calls(answer, tool["function"]):
        return ("tool",)
    return ()


def unlike(answer: str, check: Check | None, reference: Sequence[str]) -> tuple[str, ...]:
    """Faults of an answer to a prompt that came with right answers: empty, wrong, schema.

    Case, white space and commas of thousands do not count, nor, for `exact`, what stands around it.

    >>> unlike("It was 1,204 km.", "contains", ["1204"]), unlike("12040", "contains", ["1204"])
    ((), ('wrong',))
    """
    if check is None:
        return ()
    if not answer.strip():
        return ("empty",)
    if check == "json":
        fenced = answer.strip().removeprefix("```json").removesuffix("```")
        try:
            found, wanted = msgspec.json.decode(fenced), [msgspec.json.decode(each) for each in reference]
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return ("schema",)
        return () if not wanted or found in wanted else ("wrong",)
    text, known = _plain(answer), [_plain(each) for each in reference]
    if check == "exact":
        return () if text.strip(_AROUND) in [each.strip(_AROUND) for each in known] else ("wrong",)
    there = [re.search(rf"(?<!\w)(?<!\d[.]){re.escape(each)}(?![.]?\w)", text) is not None for each in known]
    return () if (all if check == "all" else any)(there) else ("wrong",)


def _plain(text: str) -> str:
    return re.sub(r"(?<=\d),(?=\d{3}\b)", "", " ".join(text.casefold().split()))


def _object(text: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text.strip().removeprefix("```json").removesuffix("```"))
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _calls(text: str, function: Mapping[str, Any]) -> bool:
    try:
        calls = msgspec.json.decode(text, type=list[dict[str, Any]])
        [made] = [each["function"] for each in calls]
        arguments = msgspec.json.decode(made["arguments"], type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, ValueError, KeyError, TypeError):
        return False
    kinds: dict[str, tuple[type, ...]] = {"integer": (int,), "number": (int, float), "string": (str,)}
    wanted = function["parameters"]["properties"]
    return (
        made.get("name") == function["name"]
        and arguments.keys() == wanted.keys()
        and all(isinstance(arguments[name], kinds[each["type"]]) for name, each in wanted.items())
    )
