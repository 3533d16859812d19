"""Bodies about people: profiles, quizzes, texts to score, and recorded conversations."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from fitrouter_evaluators.personal import LONGEST_TEXT, MOST_HISTORY, MOST_TEXTS, Filters, Mark
from fitrouter_integrations.gateway.parsing._typed import BY_DIMENSION, Body, Name, OfPerson, OfUser, Statement, Taste

MAX_QUESTIONS = 50
FILTERS = Filters.__struct_fields__
"""Of leaderboards."""
Section = Literal["name", "ranking", "tastes", "worth"]
Choice = Literal["first", "second", "same", "bad", "skip", "undo", "stop"]
Priority = Annotated[float, Meta(extra_json_schema={"minimum": 0, "maximum": 10})]
Text = Annotated[str, Meta(extra_json_schema={"maxLength": LONGEST_TEXT})]


class ProfileBody(OfPerson, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a user states; its fields replace earlier ones."""

    values: Annotated[dict[Name, Taste], Meta(title=BY_DIMENSION)] | None = None
    """dimension → −1 (less) … 1 (more)"""
    statements: list[Statement] | None = None
    """preferences in words, such as 'I dislike bullet points'; values and statements replace earlier ones"""
    goals: list[Statement] | None = None
    """what the user wants to reach, read as statements; they replace earlier ones"""
    priorities: Annotated[dict[Name, Priority], Meta(title=BY_DIMENSION)] | None = None
    """dimension → how much more it counts than for everybody (1 as much); they replace earlier ones"""
    examples: list[Mark] | None = None
    """good and bad answers, added to those that are marked"""
    profile: dict[str, Any] | UnsetType = UNSET
    """an exported profile, instead of all others; replaces everything"""


class QuizBody(OfPerson, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Start of a quiz."""

    user: str | int | None = None
    """required here or as x-fitrouter-user"""
    questions: Annotated[int, Meta(ge=1, le=MAX_QUESTIONS)] | None = None
    """maximum, up to the configured one"""
    again: bool | None = False
    """start anew although a quiz of the user is unfinished"""


class Shown(Body, frozen=True, kw_only=True):
    """What of a report a link shows, and for how long."""

    days: Annotated[int, Meta(ge=1, le=90)] = 7
    """for which it shows them"""
    domain: str | None = None
    """the ranking is for prompts about it alone"""
    max_price: Annotated[float, Meta(ge=0)] | None = None
    """the ranking is of models of at most that many USD per million tokens alone"""
    min_context: Annotated[int, Meta(ge=1)] | None = None
    """the ranking is of models with a context of that many tokens or more alone"""

    def filters(self) -> Filters:
        """What the ranking is restricted to."""
        return Filters(domain=self.domain, max_price=self.max_price, min_context=self.min_context)


class LinkBody(Shown, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose page a link opens, or whose report it shows to others."""

    user: str | int | None = None
    """required here or as x-fitrouter-user; a report may also be that of a role"""
    role: str | int | None = None
    """or as x-fitrouter-role"""
    sections: Annotated[list[Section], Meta(min_length=1, max_length=4)] | None = None
    """parts of the report that the link shows to whoever has it; without them it opens the user's page, once"""


class ShareBody(Shown, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What of a person's report a link shows, and for how long."""

    sections: Annotated[list[Section], Meta(min_length=1, max_length=4)]
    """parts of the report that the link shows; no other is shown"""


class QuizAnswerBody(OfUser, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Answer to a question of a quiz."""

    user: str | int | None = None
    """the user whose quiz it is; required here or as x-fitrouter-user"""
    question: Annotated[int, Meta(extra_json_schema={"minimum": 1}, title="the number of the question")]
    """number of the question that is answered"""
    choice: Choice
    """same: no preference; bad: neither is good; undo: take the last answer back"""


class AnsweredPrompt(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prompt, and answers to it."""

    prompt: Text = ""
    answers: list[Text]
    history: Annotated[tuple[str, ...], Meta(extra_json_schema={"maxItems": MOST_HISTORY})] = ()
    """earlier texts of the person, 1,000 in all items; tastes that the ten most relevant state count"""


class ScoreBody(OfPerson, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Texts to score."""

    user: str | int | None = None
    """whose taste, or as x-fitrouter-user, by a trusted key or their own; without it and role the population's"""
    items: Annotated[list[AnsweredPrompt], Meta(extra_json_schema={"minItems": 1, "maxItems": MOST_TEXTS})]
    """1 to 64 answers in all"""


class HistoryBody(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Recorded conversations of a chat system."""

    history: Annotated[
        list[dict[str, Any]], Meta(min_length=1, title="an array of conversations, objects with messages")
    ]
    """conversations: `messages`, and `user`, `marks`"""
