"""Profile of a person: a portable document, and what it declares."""

from fitrouter_evaluators.personal.profile.document import (
    Approval,
    Comment,
    Example,
    Given,
    Learnt,
    Profile,
    approve,
    differences,
    merged,
    parsed,
    values_of,
)
from fitrouter_evaluators.personal.profile.profiles import Mark, Profiles
from fitrouter_evaluators.personal.profile.stated import declared

__all__ = [
    "Approval",
    "Comment",
    "Example",
    "Given",
    "Learnt",
    "Mark",
    "Profile",
    "Profiles",
    "approve",
    "declared",
    "differences",
    "merged",
    "parsed",
    "values_of",
]
