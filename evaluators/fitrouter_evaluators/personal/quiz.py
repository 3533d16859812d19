"""State of one quiz: the questions that were answered, and the choice of the next one.

A question is chosen for its information on which model is best, and for the regret that its answer is expected to
remove: the first is what later questions can use, the second what can be gained now; both are weighed against the words
to read. Which answer is shown first is
drawn at random. A quiz is a deterministic function of its draws and answers, so that any process can go on with it.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from fitrouter.posterior.draws import Draws
from fitrouter.types import Floats, Identity
from fitrouter_evaluators.personal.beliefs import Beliefs, Liking, ModelFit, Questions

Choice: TypeAlias = Literal["first", "second", "same", "bad", "skip"]
"""same: no preference; bad: neither is good; skip: no answer."""
CHOICES: tuple[Choice, ...] = ("first", "second", "same", "bad", "skip")
VALUES = {"first": 1.0, "second": 0.0, "same": 0.5, "bad": 0.5}
"""Choice → value of the preference that is logged and learnt."""

DRAWS = 4000
"""Posterior draws of a quiz."""
CANDIDATES = 200
"""Random questions among which one is chosen."""
LEAST = 3
"""Questions before the quiz may stop: the posterior of a new person may be overconfident."""
BESIDES = 60
"""Words that the choice itself takes as long as, besides reading (docs/results/quiz.md)."""
ALL_ANSWERED = "all answered"
"""Why a quiz without a question ended: its person has answered every pair of the pool in earlier ones."""
NEGLIGIBLE = 1e-4
"""Expected reduction of the regret, and information in nats, below which a question is not worth asking."""


class Question(msgspec.Struct, frozen=True):
    """Two answers to a prompt, by their places in the pool."""

    prompt: int
    first: int
    second: int


class QuizReply(msgspec.Struct, frozen=True):
    """An answered question, and the decisions of its two answers in the journal, where they were logged."""

    question: Question
    choice: Choice
    decisions: tuple[str, ...] = ()


class Quiz(msgspec.Struct, frozen=True, kw_only=True):
    """A quiz of one person. `step` counts changes."""

    id: str
    identity: Identity
    """As events hold it."""
    pool: str
    """Id of its answer pool."""
    ts: float
    questions: int
    """Maximum number of questions."""
    sure: float
    """Probability at which it stops."""
    words: int
    """Most words to read in all."""
    step: int = 0
    replies: tuple[QuizReply, ...] = ()
    pending: Question | None = None
    undone: tuple[str, ...] = ()
    """Decisions of a reply that was taken back: the pending question's answer supersedes it."""
    ended: str = ""
    """Why it ended: sure, limit, nothing more to learn, all answered, or stopped; empty while it goes on."""
    before: tuple[Question, ...] = ()
    """What its person answered in earlier quizzes over the same pool, if each began within a day of the one before."""

    @property
    def answered(self) -> tuple[Question, ...]:
        """What its person has answered, in this quiz and before."""
        return (*self.before, *(reply.question for reply in self.replies if reply.choice != "skip"))


class QuizResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a quiz."""

    best: str
    """Model with the highest expected rating."""
    sure: float
    """Probability that no model is better."""
    near: float
    """Probability that no model is better by more than .02 of the rating scale."""
    models: tuple[ModelFit, ...]
    likes: tuple[Liking, ...]
    answered: int
    """Comparisons that said something."""
    ended: str


def beliefs_of(quiz: Quiz, draws: Draws, h: Floats, typical: NDArray[np.bool_] | None = None) -> Beliefs:
    """Beliefs about the person after all replies of a quiz; arguments as of `Beliefs`."""
    beliefs = Beliefs(draws, h, typical)
    told = [reply for reply in quiz.replies if reply.choice in VALUES]
    beliefs.learn(_columns([reply.question for reply in told]), [VALUES[reply.choice] for reply in told])
    return beliefs


def advance(quiz: Quiz, beliefs: Beliefs, words: NDArray[np.int64]) -> Quiz:
    """Choose the next question of a quiz, or end it.

    Args:
        quiz: with its answers.
        beliefs: after them.
        words: of each prompt and answer of the pool, int[P, 1 + K].
    """
    asked = len(quiz.replies)
    if asked >= quiz.questions:
        return _ended(quiz, "limit")
    if asked >= LEAST and beliefs.best[beliefs.favourite] >= quiz.sure:
        return _ended(quiz, "sure")
    rng = np.random.default_rng([uuid.UUID(quiz.id).int, asked])
    P, K = beliefs.h.shape[:2]
    left = np.setdiff1d(np.arange(P), [reply.question.prompt for reply in quiz.replies])
    if not len(left):
        return _ended(quiz, "nothing more to learn")
    first = rng.integers(K, size=CANDIDATES)
    questions = Questions(rng.choice(left, CANDIDATES), first, (first + rng.integers(1, K, size=CANDIDATES)) % K)
    if known := {(q.prompt, *sorted((q.first, q.second))) for q in quiz.before}:
        pairs = itertools.product(left.tolist(), itertools.permutations(range(K), 2))
        new = np.array([(p, *pair) for p, pair in pairs if (p, *sorted(pair)) not in known]).reshape(-1, 3)
        if not len(new):
            return _ended(quiz, "nothing more to learn" if asked else ALL_ANSWERED)
        questions = Questions(*new[rng.integers(len(new), size=CANDIDATES)].T)
    fits = to_read(questions, words) <= quiz.words - to_read([reply.question for reply in quiz.replies], words).sum()
    if asked and not fits.any():
        return _ended(quiz, "limit")
    if fits.any():  # else the first question is asked whatever it takes
        questions = Questions(*(column[fits] for column in questions))
    effort = to_read(questions, words) + BESIDES
    information, gain = beliefs.information(questions), beliefs.gain(questions)
    if information.max() < NEGLIGIBLE and gain.max() < NEGLIGIBLE:
        return _ended(quiz, "nothing more to learn")
    worth = information / max(information.max(), 1e-12) + gain / max(gain.max(), 1e-12)
    at = int((worth / effort).argmax())
    pending = Question(*(int(column[at]) for column in questions))
    return msgspec.structs.replace(quiz, pending=pending, undone=(), ended="")


def to_read(questions: Questions | Sequence[Question], words: NDArray[np.int64]) -> NDArray[np.int64]:
    """Words of the prompt and the two answers of each question, int[Q]."""
    prompt, first, second = questions if isinstance(questions, Questions) else _columns(questions)
    found: NDArray[np.int64] = words[prompt, 0] + words[prompt, 1 + first] + words[prompt, 1 + second]
    return found


def result(
    quiz: Quiz, beliefs: Beliefs, models: Sequence[str], names: Sequence[str], told: Sequence[str]
) -> QuizResult:
    """Summarise the quiz so far.

    Args:
        quiz: with its answers.
        beliefs: after them.
        models: of the pool.
        names: of the response features.
        told: names of features that may be told.
    """
    favourite = beliefs.favourite
    near = beliefs.ratings.max(axis=1) - beliefs.ratings[:, favourite] <= 0.02
    return QuizResult(
        best=models[favourite],
        sure=float(beliefs.best[favourite]),
        near=float(beliefs.weights @ near),
        models=tuple(beliefs.models(models)),
        likes=tuple(beliefs.likings(names, told)),
        answered=sum(reply.choice in {"first", "second"} for reply in quiz.replies),
        ended=quiz.ended,
    )


def _ended(quiz: Quiz, why: str) -> Quiz:
    return msgspec.structs.replace(quiz, pending=None, undone=(), ended=why)


def _columns(questions: Sequence[Question]) -> Questions:
    table = np.array([(q.prompt, q.first, q.second) for q in questions], dtype=np.intp).reshape(-1, 3)
    return Questions(*table.T)
