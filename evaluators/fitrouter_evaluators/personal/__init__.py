"""Personal evaluation: quiz, scores of any text, leaderboard and fit report of a person."""

from fitrouter_evaluators.personal.answers import ASKED
from fitrouter_evaluators.personal.filters import Filters
from fitrouter_evaluators.personal.leaderboard import Leaderboard, Leaderboards
from fitrouter_evaluators.personal.profile import Mark, Profile, Profiles
from fitrouter_evaluators.personal.profile import approve as approve_profile
from fitrouter_evaluators.personal.profile import merged as merged_profiles
from fitrouter_evaluators.personal.profile import parsed as parsed_profile
from fitrouter_evaluators.personal.quiz import CHOICES, Quiz, QuizReply, QuizResult, advance, beliefs_of, result
from fitrouter_evaluators.personal.quizzes import ACTIONS, Progress, Quizzes
from fitrouter_evaluators.personal.report import FitReport, Reports
from fitrouter_evaluators.personal.report_html import cost_words, page, seconds, worth_words
from fitrouter_evaluators.personal.scores import (
    LONGEST_HISTORY,
    LONGEST_TEXT,
    MOST_HISTORY,
    MOST_TEXTS,
    PromptAnswers,
    Scored,
    Scores,
)

__all__ = [
    "ACTIONS",
    "ASKED",
    "CHOICES",
    "LONGEST_HISTORY",
    "LONGEST_TEXT",
    "MOST_HISTORY",
    "MOST_TEXTS",
    "Filters",
    "FitReport",
    "Leaderboard",
    "Leaderboards",
    "Mark",
    "Profile",
    "Profiles",
    "Progress",
    "PromptAnswers",
    "Quiz",
    "QuizReply",
    "QuizResult",
    "Quizzes",
    "Reports",
    "Scored",
    "Scores",
    "advance",
    "approve_profile",
    "beliefs_of",
    "cost_words",
    "merged_profiles",
    "page",
    "parsed_profile",
    "result",
    "seconds",
    "worth_words",
]
