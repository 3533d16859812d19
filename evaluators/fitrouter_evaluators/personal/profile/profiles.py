"""Profiles over a router: shown, declared, and imported from another installation.

A profile holds what the person said (declared values, topics, marked examples, counts of votes, and comments where
`content` keeps them), what they are there for (role, goals, priorities), counts of what they did, what was learnt of
them as deviations from everybody's taste, per named feature, and where the two differ; no vote beside its answer, and
no latent directions. An import declares it: expected deviations, which are shrunk towards nothing by how little is
known, become declared values, which feedback on the new installation can overrule.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from fitrouter.errors import InvalidRequest, NotAuthorized, NoWarehouse, UnknownDecision
from fitrouter.identity import decision_id_of
from fitrouter.plain import unpack
from fitrouter.router import Router
from fitrouter.routing.explanation_text import FEATURES
from fitrouter.serving.feedback import Declared
from fitrouter.types import Decision, Event, FeedbackKind, Floats, Identity, Score
from fitrouter_evaluators.personal.leaderboard import unless_votes
from fitrouter_evaluators.personal.profile.document import (
    LONGEST_PROMPT,
    LONGEST_TEXT,
    MOST_COMMENTS,
    MOST_EXAMPLES,
    Comment,
    Example,
    Given,
    Learnt,
    Profile,
    differences,
    joined,
    parsed,
    values_of,
    with_examples,
)
from fitrouter_evaluators.personal.profile.stated import Stated, declared

_SAID = {FeedbackKind.THUMB, FeedbackKind.RATING, FeedbackKind.PAIR}
_GIVEN = """
    SELECT kind, count(*), avg(CASE kind WHEN 'dwell' THEN value ELSE y END) FROM latest_feedback
    WHERE tenant = ? AND "user" = ? AND dimension = 'overall' GROUP BY kind ORDER BY kind
"""


class Mark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An answer that a person marks: a logged one, or any text."""

    good: Annotated[bool | None, msgspec.Meta(title="true, false, or null to take the mark back")]
    """None takes an earlier mark back."""
    decision_id: str = ""
    prompt: str = ""
    text: str = ""


class _Kept(NamedTuple):
    """A person's stored profile, decrypted."""

    who: Identity
    values: dict[str, float]
    """As decisions use them."""
    topics: list[str]
    stated: Stated


class Profiles:
    """Profiles over a router.

    Args:
        router: started; for `show` alone `Router.offline` is enough.
    """

    def __init__(self, router: Router) -> None:
        self.router = router
        self._changing = asyncio.Lock()

    async def show(self, identity: Identity, *, contents: bool = False) -> Profile:
        """Return the profile of a user; empty for an unknown one.

        Args:
            identity: tenant and user.
            contents: whether with comments and the texts of examples, as far as they are kept.

        Raises:
            InvalidRequest: no user.
            StoreError: a store cannot be read now.
        """
        kept = await self._kept(identity)
        found = await asyncio.to_thread(self._show, kept, identity.role or kept.stated.role)
        if not contents:
            bare = (msgspec.structs.replace(each, prompt="", text="") for each in found.examples)
            return msgspec.structs.replace(found, examples=tuple(bare), comments=())
        said = [
            Comment(*each) for each in await asyncio.to_thread(self.router.people.comments, kept.who, MOST_COMMENTS)
        ]
        comments = sorted(joined([found.comments, said]), key=lambda each: each.ts)[-MOST_COMMENTS:]
        examples = [await self._with_texts(each, identity.tenant) for each in found.examples]
        return msgspec.structs.replace(found, examples=tuple(examples), comments=tuple(comments))

    async def _with_texts(self, example: Example, tenant: str) -> Example:
        """Add the texts of an example's logged answer, where contents are kept."""
        content = None
        if example.decision and self.router.people.keeps_contents:
            with contextlib.suppress(UnknownDecision):
                content = await self.router.content(example.decision, tenant)
        if content is None:
            return example
        prompt, text = content.prompt[:LONGEST_PROMPT], str(content.message.get("content") or "")[:LONGEST_TEXT]
        return msgspec.structs.replace(example, prompt=prompt, text=text)

    async def _kept(self, identity: Identity) -> _Kept:
        if not identity.user:
            raise InvalidRequest("profile: no user; give the user whose profile it is")
        who = await self.router.people.recall(Identity(tenant=identity.tenant, user=identity.user))
        return await asyncio.to_thread(self._read, who)

    def _read(self, who: Identity) -> _Kept:
        values, topics = self.router.people.declared(who)
        text = self.router.people.stated(who)
        return _Kept(who, values, topics, msgspec.json.decode(text, type=Stated) if text else Stated(values=values))

    def _show(self, kept: _Kept, role: str | None) -> Profile:
        who, stated = kept.who, kept.stated
        own, common = self.router.people.taste(who)
        learnt = {
            name: Learnt(float(own.mean[j] - common.mean[j]), max(math.sqrt(max(float(own.cov[j, j]), 0.0)), 1e-9))
            for j, name in enumerate(self.router.people.features)
            if name in FEATURES and own.mean[j] != common.mean[j]
        }
        given = self._given(who)
        return Profile(
            role=role,
            goals=stated.goals,
            priorities=stated.priorities,
            declared=stated.values,
            topics=tuple(kept.topics),
            examples=stated.examples,
            comments=stated.comments,
            learnt=learnt,
            said={kind: each for kind, each in given.items() if kind in _SAID},
            did={kind: each for kind, each in given.items() if kind not in _SAID},
            differs=differences(stated.values, learnt),
        )

    def _given(self, who: Identity) -> dict[str, Given]:
        """Summarise the feedback that stands by kind, as far as the warehouse has it."""
        warehouse = self.router.warehouse
        if warehouse is None or who.user is None:
            return {}
        try:
            rows = warehouse.query(_GIVEN, [who.tenant, who.user], whole=True)
        except NoWarehouse as error:
            unless_votes(self.router, error)
            return {}
        return {str(kind): Given(int(number), None if mean is None else float(mean)) for kind, number, mean in rows}

    async def declare(
        self,
        identity: Identity,
        values: Mapping[str, float] | None = None,
        words: Sequence[str] | None = None,
        *,
        goals: Sequence[str] | None = None,
        priorities: Mapping[str, float] | None = None,
        examples: Sequence[Mark] = (),
    ) -> Declared:
        """Declare a user's values and statements; arguments that are None leave the present ones unchanged.

        Args:
            identity: tenant and user.
            values: dimension → −1 (wants less) … 1 (wants more); these and `words` replace each other's earlier ones.
            words: statements such as "I dislike bullet points".
            goals: what the user wants to reach; they are read as statements.
            priorities: dimension → how much more it counts than for everybody, from 0 to 10.
            examples: good and bad answers, added to those that are marked.

        Raises:
            InvalidRequest: no user or scorer, an unknown dimension, a value out of range, too much of something, or an
                answer that has not been scored yet.
            UnknownDecision: the tenant has no such logged answer.
            NotAuthorized: it belongs to another user.
            StoreError: a store cannot be used now.
        """
        async with self._changing:
            if len(examples) > MOST_EXAMPLES:
                raise InvalidRequest(f"examples: got {len(examples)}; allowed are {MOST_EXAMPLES}")
            kept = await self._kept(identity)
            stated, words_now = kept.stated, kept.topics
            if values is not None or words is not None:
                found = await self.router.understand(values, words or ())
                stated, words_now = msgspec.structs.replace(stated, values=found.values), list(words or ())
            if priorities is not None:
                await self.router.understand(dict.fromkeys(priorities, 0.0))  # refuses unknown dimensions
            document = {
                "role": identity.role or stated.role,
                "goals": stated.goals if goals is None else list(goals),
                "priorities": stated.priorities if priorities is None else dict(priorities),
                "declared": stated.values,
                "comments": msgspec.to_builtins(stated.comments),
                "examples": msgspec.to_builtins(await self._apply_marks(identity, kept, examples)),
            }
            return await self._declare(identity, kept.who, parsed(document), words_now)

    async def import_profile(self, identity: Identity, profile: Profile) -> Declared:
        """Import a profile, which replaces what the user declared here. Features unknown here are left out.

        Raises:
            InvalidRequest: no user, or no scorer.
            StoreError: it cannot be made durable now; try again.
        """
        who = Identity(tenant=identity.tenant, user=identity.user, role=identity.role or profile.role)
        async with self._changing:
            known = await self._kept(who)
            return await self._declare(who, known.who, profile, profile.topics)

    async def _declare(self, identity: Identity, who: Identity, profile: Profile, words: Sequence[str]) -> Declared:
        """Store a whole profile as declared; `words` include its statements on topics."""
        goals = await self.router.understand({}, profile.goals) if profile.goals else Declared({})
        people = self.router.people
        common, features = (await asyncio.to_thread(people.published, identity.tenant)).mean, people.features
        examples = [await self._read_example(identity, who, each) for each in profile.examples]

        def meant(values: Mapping[str, float]) -> dict[str, float]:
            return declared({**goals.values, **values}, profile.priorities, examples, features, common)

        moved = meant(profile.declared) if profile.learnt else {}
        values = {name: each for name, each in values_of(profile, moved).items() if name in features}
        stated = Stated(
            role=identity.role,
            values=values,
            goals=profile.goals,
            priorities=profile.priorities,
            examples=with_examples((), list(map(self._kept_example, examples))),
            comments=profile.comments if self.router.people.keeps_contents else (),
        )
        text = msgspec.json.encode(stated).decode() if stated.more else ""
        found = await self.router.declare(identity, meant(values), words, stated=text)
        unread = joined([found.not_understood, goals.not_understood, goals.topics])
        reasons, read = {**found.reasons, **goals.reasons}, {**found.moved, **goals.moved}
        return msgspec.structs.replace(found, not_understood=unread, reasons=reasons, moved=read)

    async def _read_example(self, identity: Identity, who: Identity, example: Example) -> Example:
        """Add the features of an example's text, and drop the decision if it is another user's or unknown."""
        if example.decision:
            try:
                await self._events_of_own(identity, who, example.decision)
            except (NotAuthorized, UnknownDecision):
                example = msgspec.structs.replace(example, decision="")
        if example.features or not example.text:
            return example
        (row,) = await asyncio.to_thread(self.router.people.read, who, [(example.prompt, example.text)])
        return msgspec.structs.replace(example, features=self._features_by_name(row))

    def _kept_example(self, example: Example) -> Example:
        """Drop the texts from an example whose answer was logged, or if contents are not kept."""
        if self.router.people.keeps_contents and not example.decision:
            return example
        return msgspec.structs.replace(example, prompt="", text="")

    async def _apply_marks(self, identity: Identity, kept: _Kept, marks: Sequence[Mark]) -> tuple[Example, ...]:
        """Apply marks to the examples kept; a mark whose `good` is None removes its example."""
        found = kept.stated.examples
        for mark in marks:
            found = with_examples(found, [await self._example_of_mark(identity, kept.who, mark)])
            found = found if mark.good is not None else found[:-1]
        return found

    async def _example_of_mark(self, identity: Identity, who: Identity, mark: Mark) -> Example:
        """Build the example for a mark, with the features of its answer."""
        if bool(mark.decision_id) is bool(mark.text):
            raise InvalidRequest("examples: give either the decision_id of an answer, or its text")
        if not mark.decision_id:
            document = {"good": bool(mark.good), "prompt": mark.prompt, "text": mark.text}
            (given,) = parsed({"examples": [document]}).examples
            return self._kept_example(await self._read_example(identity, who, given))
        decision, row = decision_id_of(mark.decision_id), None
        for event in await self._events_of_own(identity, who, decision):
            if isinstance(event, Score) and event.status == "ok" and event.schema == self.router.people.schema:
                row = unpack(event.h)
        if row is None:
            raise InvalidRequest(f"examples: the answer of {decision!r} has not been scored; try again")
        return Example(good=bool(mark.good), features=self._features_by_name(row), decision=decision)

    async def _events_of_own(self, identity: Identity, who: Identity, decision: str) -> list[Event]:
        """Events of a decision; raises NotAuthorized if it was made for another user."""
        events = await self.router.events(decision, identity.tenant)
        if not isinstance(events[0], Decision) or events[0].identity.user != who.user:
            raise NotAuthorized(f"examples: decision {decision!r} was made for another user")
        return events

    def _features_by_name(self, row: Floats) -> dict[str, float]:
        """Features by name, clipped and rounded so that the same answer always gives the same values."""
        columns: Iterable[tuple[str, float]] = zip(
            self.router.people.features, np.nan_to_num(row).tolist(), strict=True
        )
        return {name: round(min(max(value, -10.0), 10.0), 3) for name, value in columns if name in FEATURES and value}
