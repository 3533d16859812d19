"""Document of a profile: its fields, checks, and the merging of several."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Annotated, Literal, TypeVar

import msgspec

from fitrouter.errors import InvalidRequest
from fitrouter.posterior.tastes import TasteParams
from fitrouter_evaluators.personal.scores import CLAIM

UNIT = TasteParams().declared
"""Shift of a taste that a declared ±1 stands for."""
MOST_GOALS, MOST_EXAMPLES, MOST_COMMENTS = 32, 64, 200
LONGEST_PROMPT, LONGEST_TEXT = 2000, 8000
"""Characters of an example."""
_LEAST = 0.1
"""Smallest value that is worth declaring."""

T = TypeVar("T")
Value = Annotated[float, msgspec.Meta(ge=-1.0, le=1.0)]
Finite = Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)]
Name = Annotated[str, msgspec.Meta(max_length=256)]
Line = Annotated[str, msgspec.Meta(max_length=1000)]


class Learnt(msgspec.Struct, frozen=True):
    """Learnt taste of a person in a feature: rating on a scale from 0 to 1 per standard deviation."""

    mean: Finite
    """Deviation from everybody's taste."""
    sd: Annotated[float, msgspec.Meta(gt=0.0, le=1e6)]


class Given(msgspec.Struct, frozen=True):
    """Feedback of one kind on all answers."""

    number: Annotated[int, msgspec.Meta(ge=0)]
    mean: Finite | None = None
    """Of the values, from 0 to 1; seconds for dwell."""


class Difference(msgspec.Struct, frozen=True):
    """A dimension in which what was learnt contradicts what was declared."""

    dimension: Name
    declared: Value
    learnt: Finite
    sure: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
    """Probability of the learnt sign."""


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that the person marked as good or bad. It is read as better or worse than the average answer."""

    good: bool
    features: Annotated[dict[Name, Annotated[float, msgspec.Meta(ge=-10.0, le=10.0)]], msgspec.Meta(max_length=64)] = {}
    """Named features of the text, in standard deviations: all that is kept of it where `content` keeps no texts."""
    prompt: Annotated[str, msgspec.Meta(max_length=LONGEST_PROMPT)] = ""
    text: Annotated[str, msgspec.Meta(max_length=LONGEST_TEXT)] = ""
    decision: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """Id of the logged answer that it is, where it was marked."""

    def same(self, other: Example) -> bool:
        """Whether both mark the same answer."""
        return msgspec.structs.replace(self, good=other.good) == other


class Comment(msgspec.Struct, frozen=True):
    """A person's comment on an answer."""

    ts: Annotated[float, msgspec.Meta(ge=0.0, le=1e12)]
    """In seconds since the epoch."""
    text: Line


class Approval(msgspec.Struct, frozen=True):
    """A person's statement that a document describes them."""

    ts: Annotated[float, msgspec.Meta(ge=0.0, le=1e12)]
    """In seconds since the epoch."""
    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    """SHA-256 of the rest of the document as `digest_of` computes it."""


Kinds = Annotated[dict[Annotated[str, msgspec.Meta(max_length=64)], Given], msgspec.Meta(max_length=16)]
Goals = Annotated[tuple[Line, ...], msgspec.Meta(max_length=MOST_GOALS)]
Priorities = Annotated[dict[Name, Annotated[float, msgspec.Meta(ge=0.0, le=10.0)]], msgspec.Meta(max_length=256)]
Examples = Annotated[tuple[Example, ...], msgspec.Meta(max_length=MOST_EXAMPLES)]
Comments = Annotated[tuple[Comment, ...], msgspec.Meta(max_length=MOST_COMMENTS)]


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """A person's portable profile."""

    object: Literal["fitrouter.profile"] = "fitrouter.profile"
    version: Literal[1, 2] = 2
    """Version 1 has no goals, priorities, examples and comments."""
    role: str | None = None
    goals: Goals = ()
    """What the person wants to reach, in their words."""
    priorities: Priorities = {}
    """Dimension → how much more it counts for the person than for everybody: 1 as much, 0 not at all, 3 three times."""
    declared: Annotated[dict[str, Value], msgspec.Meta(max_length=256)] = {}
    """Dimension → −1 (wants less) … 1 (wants more), as the person said."""
    topics: Annotated[tuple[Line, ...], msgspec.Meta(max_length=64)] = ()
    """Statements about topics, as the person said."""
    examples: Examples = ()
    """Answers that the person marked as good or bad."""
    comments: Comments = ()
    """What the person said about answers, where `content` keeps it; the latest last."""
    learnt: Annotated[dict[str, Learnt], msgspec.Meta(max_length=256)] = {}
    """Feature → what the person's feedback says."""
    said: Kinds = {}
    """Ratings, thumbs, comparisons, by kind."""
    did: Kinds = {}
    """What became of answers: accepted, copied, edited, read, asked for again."""
    differs: Annotated[tuple[Difference, ...], msgspec.Meta(max_length=256)] = ()
    """Where saying and doing differ, surest first."""
    approved: Approval | None = None
    """That the person has read the document, if they said so; it ends with any change."""


def approve(profile: Profile, ts: float) -> Profile:
    """Return the document with its person's approval at a time, in seconds since the epoch."""
    return msgspec.structs.replace(profile, approved=Approval(ts, digest_of(profile)))


def digest_of(profile: Profile) -> str:
    """SHA-256 of the document without an approval, as JSON with sorted keys."""
    bare = msgspec.structs.replace(profile, approved=None)
    return hashlib.sha256(msgspec.json.encode(bare, order="sorted")).hexdigest()


def differences(declared: Mapping[str, float], learnt: Mapping[str, Learnt]) -> tuple[Difference, ...]:
    """Dimensions whose learnt sign is the opposite of the declared one with a probability of .8 or more."""
    found = []
    for name, value in declared.items():
        own = learnt.get(name)
        if own is not None and value * own.mean < 0.0:
            sure = NormalDist().cdf(abs(own.mean) / own.sd)
            if sure >= CLAIM:
                found.append(Difference(name, value, own.mean, sure))
    return tuple(sorted(found, key=lambda each: -each.sure))


def values_of(profile: Profile, moved: Mapping[str, float] | None = None) -> dict[str, float]:
    """Declared values equivalent to a profile: the stated value of a dimension, else one derived from learnt taste.

    Args:
        profile: the document.
        moved: what its goals, priorities and examples declare besides, of which the learnt tastes are the sum with
            what feedback taught.
    """
    learnt = {}
    for name, each in profile.learnt.items():
        total, known = each.mean / UNIT, (moved or {}).get(name, 0.0)
        rest = 0.0 if min(known, 0.0) < total < max(known, 0.0) else total - known
        if abs(rest) >= _LEAST:
            learnt[name] = min(max(rest, -1.0), 1.0)
    return {**learnt, **profile.declared}


def merged(profiles: Sequence[Profile]) -> Profile:
    """Merge several profiles of one person: later words and marks win, learnt deviations are weighted by precision.

    It has no approval: its person has not read it.
    """
    learnt: dict[str, Learnt] = {}
    for name in dict.fromkeys(name for profile in profiles for name in profile.learnt):
        each = [profile.learnt[name] for profile in profiles if name in profile.learnt]
        weights = [1.0 / one.sd**2 for one in each]
        mean = sum(weight * one.mean for weight, one in zip(weights, each, strict=True)) / sum(weights)
        learnt[name] = Learnt(mean, 1.0 / math.sqrt(sum(weights)))
    comments = {each: None for profile in profiles for each in profile.comments}
    return Profile(
        role=next((profile.role for profile in reversed(profiles) if profile.role), None),
        goals=joined([profile.goals for profile in profiles])[:MOST_GOALS],
        priorities={name: weight for profile in profiles for name, weight in profile.priorities.items()},
        declared={name: value for profile in profiles for name, value in profile.declared.items()},
        topics=joined([profile.topics for profile in profiles])[:64],
        examples=with_examples((), [each for profile in profiles for each in profile.examples]),
        comments=tuple(sorted(comments, key=lambda each: each.ts))[-MOST_COMMENTS:],
        learnt=learnt,
    )


def joined(parts: Sequence[Sequence[T]]) -> tuple[T, ...]:
    """Concatenate sequences without duplicates, in order."""
    return tuple(dict.fromkeys(item for part in parts for item in part))


def with_examples(known: Sequence[Example], added: Sequence[Example]) -> tuple[Example, ...]:
    """Add examples to known ones: a later mark of the same answer replaces the earlier, and the latest 64 are kept."""
    found = list(known)
    for each in added:
        found = [*(one for one in found if not one.same(each)), each]
    return tuple(found[-MOST_EXAMPLES:])


def parsed(value: object) -> Profile:
    """Parse and check a profile from a JSON value.

    Raises:
        InvalidRequest: it does not fit the schema (docs/profile.schema.json), or was changed after its approval.
    """
    try:
        found = msgspec.convert(value, Profile)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"profile: {error}; the schema is docs/profile.schema.json") from None
    if found.approved is not None and found.approved.digest != digest_of(found):
        raise InvalidRequest(
            "profile: approved: the document was changed after its person approved it; "
            "let them approve it again (fitrouter personal profile approve), or remove the field"
        )
    return found
