"""A personal test suite as a file: a header, prompts, tasks, and contrast pairs, as JSON lines.

It names nobody, so that it can be shared: a rubric (dimension → −1 wants less … 1 wants more), what was said in words,
and texts. The texts of a person's own tasks are in it; they are left out with `own=False` when it is generated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from importlib import resources
from typing import Annotated, Any, Literal

import msgspec

from fitrouter.errors import InvalidRequest
from fitrouter_evaluators.personal.base import Check

GENERAL = ("factuality", "relevance", "usefulness")
"""What the answers of a contrast pair do not differ in."""
FIT = "fit"
MARKS = (*GENERAL, FIT)
LONGEST = 50_000
"""Characters of a text."""
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST)]
Choice = Literal["follows", "breaks", "same"]
"""The answer of a pair that a person marked as the better one."""
Style = Literal["terse", "chatty", "doubting", "forgetful"]
"""Of a simulated user."""
Marks = dict[str, dict[str, Choice]]
"""Rater → dimension → choice."""


class KnownAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt of the common base, whose right answers are known."""

    prompt: str
    accepts: tuple[str, ...] = ()
    """Words, one of which a right answer has."""
    fields: tuple[str, ...] = ()
    """Fields of the JSON object that a right answer is."""
    tool: dict[str, Any] | None = None
    """The tool that a right answer calls."""


class _Material(msgspec.Struct, frozen=True):
    known: tuple[KnownAnswer, ...]
    anchors: list[dict[str, str]]
    probes: dict[str, list[str]]


class PoolPair(msgspec.Struct, frozen=True):
    """Two answers that were written for one prompt: as good as each other, with much and with little of a dimension."""

    dimension: str
    prompt: str
    more: str
    less: str


class _Pool(msgspec.Struct, frozen=True):
    prompts: dict[str, tuple[str, ...]]
    """Domain → prompts."""
    pairs: tuple[PoolPair, ...]


_FILES = resources.files(__package__ or __name__)
MATERIAL = msgspec.json.decode(_FILES.joinpath("material.json").read_bytes(), type=_Material)
POOL = msgspec.json.decode(_FILES.joinpath("pool.json").read_bytes(), type=_Pool)
"""Prompts and answers that were written for suites, and reviewed by reading."""
KNOWN = {each.prompt: each for each in MATERIAL.known}
"""Prompts of the common base. Their answers are published here, not in suites."""
ANCHORS = tuple(each["prompt"] for each in MATERIAL.anchors)
"""Prompts that all suites have, so that scores of different people can be equated."""


class Prompt(msgspec.Struct, frozen=True, kw_only=True, tag_field="row", tag="prompt", omit_defaults=True):
    """A prompt for the candidate models."""

    id: str
    text: Text
    source: str
    """`anchor`, `own` (a task of the person), `given`, `written` (by a model), `pool`, `base`, or the
    dimension that it probes."""
    domain: Annotated[str, msgspec.Meta(max_length=60, pattern=r"^[^\x00-\x1f\x7f]+$")] | None = None
    """What it is about, where its author says so."""
    system: Annotated[str, msgspec.Meta(max_length=LONGEST)] = ""
    """Message of the system before it."""
    reference: tuple[Annotated[str, msgspec.Meta(max_length=LONGEST)], ...] = ()
    """Right answers."""
    check: Check | None = None
    """How an answer is compared with them; None for not at all."""


class Task(msgspec.Struct, frozen=True, kw_only=True, tag_field="row", tag="task"):
    """A task over several turns with a simulated user."""

    id: str
    text: Text
    """The user's first message."""
    goal: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
    """What the user wants, for the model that plays them."""
    style: Style
    turns: Annotated[int, msgspec.Meta(ge=2, le=8)]
    """Answers of a model."""
    source: str = "pool"


class Pair(msgspec.Struct, frozen=True, kw_only=True, tag_field="row", tag="pair"):
    """A contrast pair: one answer follows the rubric in a dimension, the other is as good in general and breaks it."""

    id: str
    prompt: Text
    follows: Text
    breaks: Text
    dimension: str
    made_by: str
    """`pool`, `recorded`, or the name of the model that wrote it."""
    marks: Marks = {}


class Suite(msgspec.Struct, frozen=True, kw_only=True, tag_field="row", tag="suite"):
    """A suite; its prompts, tasks and pairs are rows of their own in the file."""

    object: Literal["fitrouter.suite"] = "fitrouter.suite"
    version: Literal[1] = 1
    rubric: dict[str, Annotated[float, msgspec.Meta(ge=-1.0, le=1.0)]]
    statements: tuple[Annotated[str, msgspec.Meta(max_length=1000)], ...] = ()
    role: str | None = None
    surface: float | None = None
    """Cross-validated accuracy with which length and format tell the answers of a pair apart; None with few pairs."""
    prompts: tuple[Prompt, ...] = ()
    tasks: tuple[Task, ...] = ()
    pairs: tuple[Pair, ...] = ()
    validation: dict[str, dict[str, Any]] = {}
    """Dimension → `Agreement` of the raters."""

    @property
    def id(self) -> str:
        """Digest of what models are asked, and of the rubric."""
        what = (sorted(self.rubric.items()), self.statements, self.prompts, [(p.prompt, p.follows) for p in self.pairs])
        return hashlib.sha256(msgspec.json.encode((*what, self.tasks) if self.tasks else what)).hexdigest()[:16]

    def encoded(self) -> bytes:
        """Encode the suite as JSON lines."""
        header = msgspec.structs.replace(self, prompts=(), tasks=(), pairs=())
        return b"".join(msgspec.json.encode(row) + b"\n" for row in (header, *self.prompts, *self.tasks, *self.pairs))


def decoded(payload: bytes) -> Suite:
    """Decode and check a suite from JSON lines.

    Raises:
        InvalidRequest: a line is not a row of a suite, or the rows do not fit together; names the line.
    """
    decoder = msgspec.json.Decoder(Suite | Prompt | Task | Pair)
    rows: list[Suite | Prompt | Task | Pair] = []
    for number, line in enumerate(payload.splitlines(), 1):
        if line.strip():
            try:
                rows.append(decoder.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise InvalidRequest(
                    f"suite: line {number}: {error}; give a file of `fitrouter personal suite generate`"
                ) from None
    headers = [row for row in rows if isinstance(row, Suite)]
    if len(headers) != 1 or headers[0].prompts or headers[0].tasks or headers[0].pairs:
        raise InvalidRequest(f'suite: {len(headers)} lines with "row": "suite"; there must be one, without prompts')
    found = msgspec.structs.replace(
        headers[0],
        prompts=tuple(row for row in rows if isinstance(row, Prompt)),
        tasks=tuple(row for row in rows if isinstance(row, Task)),
        pairs=tuple(row for row in rows if isinstance(row, Pair)),
    )
    _check_unique("prompt", (each.id for each in found.prompts))
    _check_unique("task", (each.id for each in found.tasks))
    _check_unique("pair", (each.id for each in found.pairs))
    if found.prompts and all(each.source == "given" for each in found.prompts):
        return found  # an imported set, whose scores are not equated
    missing = [text for text in ANCHORS if text not in {p.text for p in found.prompts if p.source == "anchor"}]
    if missing:
        raise InvalidRequest(f"suite: the anchor prompt {missing[0]!r} is missing; scores could not be equated")
    return found


def _check_unique(what: str, ids: Iterable[str]) -> None:
    seen: set[str] = set()
    for each in ids:
        if each in seen:
            raise InvalidRequest(f"suite: two rows have the id {each!r}; each {what} needs its own")
        seen.add(each)
