"""Quizzes over a router: start, answer, undo, and what was learnt.

An answered question is logged as the router logs everything: both answers as recorded ones (`Router.observe`), which
the scorer scores, and the preference as volunteered feedback on the pair. The person's heads learn from it like from
any other comparison; replay never takes it for traffic.
"""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from pathlib import Path

import msgspec

from fitrouter.config import Config, QuizConfig
from fitrouter.draw import uuid7
from fitrouter.errors import InvalidRequest, NotAuthorized, StoreError, UnknownDecision
from fitrouter.posterior.draws import Draws
from fitrouter.router import Router
from fitrouter.routing.explanation_text import FEATURES
from fitrouter.stores.figures import chance
from fitrouter.types import Completion, Execution, FeedbackKind, Identity, Request
from fitrouter_evaluators.personal.answers import AnswerPool, PoolReader, messages
from fitrouter_evaluators.personal.beliefs import Liking
from fitrouter_evaluators.personal.leaderboard import Leaderboards
from fitrouter_evaluators.personal.quiz import (
    ALL_ANSWERED,
    CHOICES,
    DRAWS,
    VALUES,
    Choice,
    Question,
    Quiz,
    QuizReply,
    QuizResult,
    advance,
    beliefs_of,
    result,
)
from fitrouter_evaluators.personal.store import QuizStore

ACTIONS = ("undo", "stop")
FILE = "quizzes.db"
TRIES = 1000
PAUSE_S = 0.01
"""Looks for an answer that was just logged, and the seconds between them."""
_TOLD = tuple(name for name in FEATURES if name not in {"g", "refusal"} and not name.startswith("tool_"))


class ShownQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A question as a person sees it, without the names of the models."""

    number: int
    of: int
    prompt: str
    first: str
    second: str


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """State of a quiz after a step: its next question, or its result."""

    id: str
    question: ShownQuestion | None = None
    result: QuizResult | None = None
    sentences: tuple[str, ...] = ()
    """The result in words."""


class Quizzes:
    """The quizzes of an installation.

    Args:
        router: logs answers and knows the posterior; started.
        config: locates the recorded answers and the store.
        answers: file of recorded answers instead of the configured one.
    """

    def __init__(self, router: Router, config: Config, answers: Path | None = None) -> None:
        self.router, self.config, self.pool = router, config, PoolReader(router, config, answers)
        self.store = QuizStore(config.data / FILE)

    async def start(self, identity: Identity, settings: QuizConfig | None = None, *, again: bool = False) -> Progress:
        """Start a quiz, or go on with the one that the user has not finished.

        Args:
            identity: of the caller; it needs a user.
            settings: limits other than the configured ones.
            again: start a new quiz whatever there is.

        Raises:
            InvalidRequest: no user, or too many open quizzes.
            ConfigError: there are no recorded answers.
            StoreError: a store cannot be used now.
        """
        if not identity.user:
            raise InvalidRequest("quiz: no user; give the user whose taste is asked for")
        pool, settings = await asyncio.to_thread(self.pool), settings or self.config.quiz
        who = await self.router.people.identify(
            Identity(tenant=identity.tenant, user=identity.user, role=identity.role)
        )
        now = self.router.clock()
        known = await asyncio.to_thread(self.store.of, who, now)
        if known is not None and known[0].pool != pool.id:
            known = None
        if known is not None and not known[0].ended and not again:
            return await asyncio.to_thread(self._progress, *known)
        quiz_id = uuid7(now)
        seed = [self.config.seed, uuid.UUID(quiz_id).int]
        draws = await asyncio.to_thread(self._draw, who, pool, seed)
        quiz = Quiz(
            id=quiz_id,
            identity=who,
            pool=pool.id,
            ts=now,
            questions=settings.questions,
            sure=settings.sure,
            words=settings.words,
            before=known[0].answered if known is not None else (),
        )
        quiz = advance(quiz, beliefs_of(quiz, draws, pool.h, pool.typical), pool.words)
        await asyncio.to_thread(self.store.add, quiz, draws)
        return await asyncio.to_thread(self._progress, quiz, draws)

    async def show(self, quiz_id: str, identity: Identity) -> Progress:
        """The present question or the result.

        Raises:
            UnknownDecision: the tenant has no such quiz.
            NotAuthorized: it belongs to another user.
        """
        quiz, draws = await asyncio.to_thread(self.store.get, quiz_id, identity.tenant, self.router.clock())
        await self._owned(quiz, identity)
        return await asyncio.to_thread(self._progress, quiz, draws)

    async def answer(self, quiz_id: str, identity: Identity, number: int, choice: str) -> Progress:
        """Answer the present question, take the last answer back, or stop.

        Args:
            quiz_id: of the quiz.
            identity: of the caller, with the user whose quiz it is.
            number: of the question that the choice is about, so that a request sent twice counts once.
            choice: one of `CHOICES` or `ACTIONS`.

        Raises:
            InvalidRequest: another choice, or another question is due.
            UnknownDecision: the tenant has no such quiz.
            NotAuthorized: it belongs to another user.
            StoreError: it cannot be made durable now; try again.
        """
        if choice not in (*CHOICES, *ACTIONS):
            raise InvalidRequest(f"choice: got {choice!r}; allowed are {', '.join((*CHOICES, *ACTIONS))}")
        if not identity.user:
            raise InvalidRequest("quiz: no user; give the user whose quiz it is")
        quiz, draws = await asyncio.to_thread(self.store.get, quiz_id, identity.tenant, self.router.clock())
        await self._owned(quiz, identity)
        due = len(quiz.replies) + 1
        if choice == "undo":
            return await self._step(quiz, _undone(quiz, number))
        if quiz.pending is None:
            raise InvalidRequest(f"quiz: it has ended ({quiz.ended}); only 'undo' is possible")
        if number != due:
            raise InvalidRequest(f"question: got {number}; question {due} is due")
        pool = self._same_pool(quiz)
        if choice == "stop":
            return await self._step(quiz, msgspec.structs.replace(quiz, pending=None, undone=(), ended="stopped"))
        told: Choice = next(each for each in CHOICES if each == choice)
        reply = QuizReply(quiz.pending, told, quiz.undone)
        after = msgspec.structs.replace(quiz, replies=(*quiz.replies, reply))
        known = await asyncio.to_thread(beliefs_of, after, draws, pool.h, pool.typical)
        after = await asyncio.to_thread(advance, after, known, pool.words)
        # The step is taken first: of two requests for one question only one is logged.
        progress = await self._step(quiz, after)
        try:
            decisions = await self._logged(reply, pool, identity)
        except BaseException:
            await asyncio.to_thread(self.store.replace, msgspec.structs.replace(quiz, step=quiz.step + 2))
            raise
        if decisions != reply.decisions:
            replies = (*quiz.replies, msgspec.structs.replace(reply, decisions=decisions))
            kept = msgspec.structs.replace(after, replies=replies, step=quiz.step + 2)
            await asyncio.to_thread(self.store.replace, kept)
        return progress

    # --- steps ---

    def _draw(self, who: Identity, pool: AnswerPool, seed: list[int]) -> Draws:
        """Draw from the person's posterior before the quiz, which leaderboards read too."""
        votes = Leaderboards(self.router, self.config).votes(who)
        return self.router.people.draw_person(who, pool.x, pool.models, DRAWS, seed, votes)

    async def _owned(self, quiz: Quiz, identity: Identity) -> None:
        if identity.user and (await self.router.people.identify(identity)).user != quiz.identity.user:
            raise NotAuthorized(f"quiz: {quiz.id!r} belongs to another user")

    def _same_pool(self, quiz: Quiz) -> AnswerPool:
        pool = self.pool()
        if pool.id != quiz.pool:
            raise InvalidRequest("quiz: the recorded answers have changed; start another quiz")
        return pool

    async def _step(self, before: Quiz, after: Quiz) -> Progress:
        """Store the next step of a quiz and return its progress."""
        after = msgspec.structs.replace(after, step=before.step + 1)
        if not await asyncio.to_thread(self.store.replace, after):
            raise InvalidRequest("quiz: the question was answered by another request; GET the quiz")
        _, draws = await asyncio.to_thread(self.store.get, after.id, after.identity.tenant, self.router.clock())
        return await asyncio.to_thread(self._progress, after, draws)

    async def _logged(self, reply: QuizReply, pool: AnswerPool, identity: Identity) -> tuple[str, ...]:
        """Log a reply as a vote; return the decisions of its two answers."""
        value, decisions = VALUES.get(reply.choice), reply.decisions
        if value is None:
            if decisions:  # a vote that was taken back cannot be removed, only superseded
                await self._vote(decisions, 0.5, identity)
            return decisions
        if not decisions:
            decisions = (
                await self._observed(reply.question, reply.question.first, pool, identity),
                await self._observed(reply.question, reply.question.second, pool, identity),
            )
        await self._vote(decisions, value, identity)
        return decisions

    async def _vote(self, decisions: tuple[str, ...], value: float, identity: Identity) -> None:
        speaker = Identity(tenant=identity.tenant, user=identity.user)
        await self.router.feedback(decisions[0], FeedbackKind.PAIR, value, other=decisions[1], identity=speaker)

    async def _observed(self, question: Question, k: int, pool: AnswerPool, identity: Identity) -> str:
        prompt = pool.prompts[question.prompt]
        plan = await self.router.observe(
            Request(messages=messages(prompt), identity=identity),
            Completion(message={"role": "assistant", "content": pool.texts[question.prompt][k]}),
            pool.models[k],
            cost_usd=0.0,
            latency_ms=None,
        )
        # A vote on a pair is learnt with the score of the later answer, so that the earlier one must be scored first.
        await self._stored(plan.decision.id, identity.tenant)
        return plan.decision.id

    async def _stored(self, decision_id: str, tenant: str) -> None:
        """Wait until an answer is durably logged, and thus queued for scoring."""
        for _ in range(TRIES):
            with suppress(UnknownDecision):  # not even its decision is yet
                if any(isinstance(event, Execution) for event in await self.router.events(decision_id, tenant)):
                    return
            await asyncio.sleep(PAUSE_S)
        raise StoreError("quiz: the answers cannot be logged now; answer the question again")

    def _progress(self, quiz: Quiz, draws: Draws) -> Progress:
        pool = self._same_pool(quiz)
        if quiz.pending is not None:
            at = quiz.pending
            texts = pool.texts[at.prompt]
            shown = ShownQuestion(
                number=len(quiz.replies) + 1,
                of=quiz.questions,
                prompt=pool.prompts[at.prompt],
                first=texts[at.first],
                second=texts[at.second],
            )
            return Progress(id=quiz.id, question=shown)
        found = result(quiz, beliefs_of(quiz, draws, pool.h, pool.typical), pool.models, pool.names, _TOLD)
        return Progress(id=quiz.id, result=found, sentences=sentences(found))


def _undone(quiz: Quiz, number: int) -> Quiz:
    """Take back the last reply of a quiz."""
    if not quiz.replies:
        raise InvalidRequest("quiz: there is no answer to take back")
    if number != len(quiz.replies) + 1:
        raise InvalidRequest(f"question: got {number}; 'undo' at question {len(quiz.replies) + 1} is possible")
    *kept, last = quiz.replies
    return msgspec.structs.replace(quiz, replies=tuple(kept), pending=last.question, undone=last.decisions, ended="")


def sentences(found: QuizResult) -> tuple[str, ...]:
    """Describe the result of a quiz in sentences."""
    said = [f"We are {chance(found.sure)} sure that {found.best} fits you best, by these recorded answers"]
    if found.near > found.sure + 0.05:
        said[0] += f", and {chance(found.near)} that nothing fits noticeably better"
    if len(found.models) > 1 and found.sure < 0.8:
        second = max((m for m in found.models if m.model != found.best), key=lambda m: m.best)
        said.append(f"Next is {second.model} ({chance(second.best)})")
    if found.likes:
        likes = "; ".join(f"{_words(each)} ({chance(each.sure)} sure)" for each in found.likes)
        said.append(f"You seem to like a model that {likes}")
    else:
        said.append("No preference in style is clear yet")
    if found.ended == ALL_ANSWERED:
        said.insert(0, "You have answered all there is: every pair of the recorded answers")
    return tuple(f"{each}." for each in said)


def _words(liking: Liking) -> str:
    more, less = FEATURES[liking.feature]
    return more if liking.likes else less
