"""Generates a personal test suite from what a router knows of a person or role."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterable, Sequence

import msgspec

from fitrouter.errors import InvalidRequest, ProviderError, for_log
from fitrouter.posterior.tastes import TasteParams
from fitrouter.providers import Recorded
from fitrouter.router import Router
from fitrouter.routing.explanation_text import FEATURES
from fitrouter.types import Identity
from fitrouter_evaluators.personal.leaderboard import require_somebody, votes_and_people
from fitrouter_evaluators.personal.profile import Profiles, values_of
from fitrouter_evaluators.personal.suite.conversations import STYLES
from fitrouter_evaluators.personal.suite.judge import PairJudge
from fitrouter_evaluators.personal.suite.pairs import (
    FORM,
    contrasts,
    fair,
    from_pool,
    from_recorded,
    pair_of,
    surface_accuracy,
)
from fitrouter_evaluators.personal.suite.suite import ANCHORS, KNOWN, MATERIAL, POOL, Pair, Prompt, Suite, Task

_log = logging.getLogger(__name__)
OWN, PAIRS, TASKS, WRITTEN = 20, 40, 24, 12
"""Prompts from a person's tasks; contrast pairs; prompts of tasks, given and written ones and the pool's, which makes
them up to that number; and prompts that a judge's model writes. Unless it is said otherwise."""
TURNED, _TURNS = 4, 3
"""Tasks over several turns, unless it is said otherwise, and answers of a model in each."""
_GOAL = "to get what their first message asks for, in a form that they can use for their own case"
_LEAST = 0.1
"""Smallest preference that a suite tests."""
_TOKENS = 1500
_WORDED = {name for name in FEATURES if name != "g" and not name.startswith("tool_")}
"""Dimensions that a suite can ask for."""


class Written(msgspec.Struct):
    """A contrast pair in the form in which a model replies."""

    follows: str
    breaks: str


_SCHEMA = {
    "type": "object",
    "properties": {"follows": {"type": "string"}, "breaks": {"type": "string"}},
    "required": ["follows", "breaks"],
    "additionalProperties": False,
}
_FORM = {"type": "json_schema", "json_schema": {"name": "pair", "strict": True, "schema": _SCHEMA}}
_PROMPT = 10, 600
"""Characters of a prompt that a model writes."""


class WrittenPrompts(msgspec.Struct):
    """Prompts in the form in which a model replies."""

    prompts: list[str]


_PROMPTS = {
    "type": "json_schema",
    "json_schema": {
        "name": "prompts",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"prompts": {"type": "array", "items": {"type": "string"}}},
            "required": ["prompts"],
            "additionalProperties": False,
        },
    },
}


class Generator:
    """Generates personal test suites.

    Args:
        router: started, or `Router.offline`.
    """

    def __init__(self, router: Router) -> None:
        self.router = router

    async def suite(
        self,
        identity: Identity,
        *,
        tasks: Iterable[str] = (),
        given: Iterable[str] = (),
        recorded: Recorded | None = None,
        pairs: int = PAIRS,
        pool: bool = True,
        turned: int = TURNED,
    ) -> Suite:
        """Generate a suite; its pairs come from the pool and recorded answers, none from a model.

        Args:
            identity: a user, or a role of five people or more.
            tasks: prompts of the person's own requests, the latest first.
            given: further prompts.
            recorded: answers of which pairs are made, too.
            pairs: contrast pairs, if there are so many whose length and format do not give them away.
            pool: whether prompts and pairs of the pool that ships are among them.
            turned: tasks over several turns, of the pool.

        Raises:
            InvalidRequest: neither user nor role, a role of too few people, or nothing is known of what they want.
            StoreError: a store cannot be read now.
        """
        rubric, statements = await self.rubric(identity)
        found = Suite(
            rubric=rubric,
            statements=statements,
            role=identity.role,
            prompts=tuple(_prompts(rubric, tasks, given, pool=pool)),
            tasks=_turned(rubric, turned if pool else 0),
        )
        made = await asyncio.to_thread(
            lambda: [*(from_pool(rubric) if pool else ()), *(from_recorded(rubric, recorded) if recorded else ())]
        )
        return await asyncio.to_thread(with_pairs, found, made, pairs)

    async def rubric(self, identity: Identity) -> tuple[dict[str, float], tuple[str, ...]]:
        """Rubric of a person or role: dimension → −1 less … 1 more, strongest first; and statements about topics."""
        require_somebody(identity, "suite")
        if identity.user:
            profile = await Profiles(self.router).show(identity)
            values, topics = values_of(profile), profile.topics
        else:
            who = await self.router.people.recall(identity)
            await asyncio.to_thread(votes_and_people, self.router, who, identity)  # refuses a role of too few people
            values, topics = await asyncio.to_thread(self._role, identity), ()
        wanted = {name: value for name, value in values.items() if name in _WORDED and abs(value) >= _LEAST}
        if not wanted:
            raise InvalidRequest(
                "suite: nothing is known of what they want; declare it (PUT /v1/profile), take a quiz, or rate answers"
            )
        return dict(sorted(wanted.items(), key=lambda item: -abs(item[1]))), topics

    def _role(self, identity: Identity) -> dict[str, float]:
        own, common = self.router.people.taste(identity)
        unit = TasteParams().declared
        apart = ((own.mean - common.mean) / unit).clip(-1.0, 1.0).tolist()
        return dict(zip(self.router.people.features, apart, strict=True))


def _prompts(rubric: dict[str, float], tasks: Iterable[str], given: Iterable[str], *, pool: bool) -> list[Prompt]:
    """Collect the prompts: base, anchors, own tasks, given, the pool's and probes of the rubric, each text once."""
    own, others = [text for text in tasks if text.strip()], [text for text in given if text.strip()]
    probes = [(text, name) for name in rubric for text in MATERIAL.probes.get(name, ())]
    sources = [
        *((text, "base") for text in KNOWN),
        *((text, "anchor") for text in ANCHORS),
        *((text, "own") for text in own),
        *((text, "given") for text in others),
        *((text, "pool") for text in _of_pool(rubric, TASKS - len(own) - len(others) if pool else 0)),
        *probes,
    ]
    return _numbered(sources)


def _numbered(sources: Iterable[tuple[str, str]]) -> list[Prompt]:
    """Number texts with their sources, each text once."""
    found: dict[str, str] = {}
    for text, source in sources:
        found.setdefault(text, source)
    return [Prompt(id=f"p{i}", text=text, source=source) for i, (text, source) in enumerate(found.items(), 1)]


def with_prompts(suite: Suite, texts: Sequence[str]) -> Suite:
    """Return the suite with written prompts; each takes the place of one of the pool, if there are as many."""
    theirs = [(each.text, each.source) for each in suite.prompts if each.source == "pool"]
    others = [(each.text, each.source) for each in suite.prompts if each.source != "pool"]
    written = [(text, "written") for text in texts]
    return msgspec.structs.replace(
        suite, prompts=tuple(_numbered([*others, *written, *theirs[: max(len(theirs) - len(written), 0)]]))
    )


def _of_pool(rubric: dict[str, float], most: int) -> list[str]:
    """Choose prompts of the pool, of its domains in turn; the same for the same rubric."""
    seed = msgspec.json.encode(rubric)
    shuffled = [
        sorted(texts, key=lambda text: hashlib.sha256(seed + text.encode()).digest()) for texts in POOL.prompts.values()
    ]
    return [text for texts in zip(*shuffled, strict=True) for text in texts][: max(most, 0)]


def _turned(rubric: dict[str, float], most: int) -> tuple[Task, ...]:
    """Make tasks of the pool's prompts that follow those which are asked once, of each style in turn."""
    texts, styles = _of_pool(rubric, TASKS + most)[TASKS:], list(STYLES)
    return tuple(
        Task(id=f"t{i}", text=text, goal=_GOAL, style=styles[i % len(styles)], turns=_TURNS)
        for i, text in enumerate(texts, 1)
    )


def with_pairs(suite: Suite, candidates: Sequence[Pair], most: int) -> Suite:
    """Return the suite with the largest fair choice of the candidates as its pairs."""
    chosen = fair(candidates, most)
    return msgspec.structs.replace(suite, pairs=chosen, surface=surface_accuracy(chosen))


async def written(suite: Suite, judge: PairJudge, most: int) -> list[Pair]:
    """Have the judge's model write pairs, and return those that the judge and our own measures accept.

    A pair is accepted if its answers have the same length and differ in the dimension as measured, and if the judge, in
    both orders, finds that one suits the person better and neither is more useful.

    Args:
        suite: whose prompts and rubric they are for.
        judge: asks the model.
        most: pairs to write; fewer are accepted.

    Raises:
        BudgetExhausted: the limit is spent.
    """
    dimensions = [name for name in suite.rubric if name not in FORM]
    prompts = [each.text for each in suite.prompts]
    jobs = [(dimensions[i % len(dimensions)], prompts[i % len(prompts)]) for i in range(most if dimensions else 0)]
    found = await asyncio.gather(*(_write(suite, judge, *job) for job in dict.fromkeys(jobs)))
    return [pair for pair in found if pair is not None]


async def written_prompts(suite: Suite, judge: PairJudge, most: int) -> list[str]:
    """Have the judge's model write requests that this person may make, and return those that are usable.

    Args:
        suite: whose rubric, statements, role and own prompts the model is told; it is told no names.
        judge: asks the model.
        most: prompts to write; fewer are usable.

    Raises:
        BudgetExhausted: the limit is spent.
    """
    wishes = [f"an answer that {FEATURES[name][0 if value > 0 else 1]}" for name, value in suite.rubric.items()]
    known = [each.text for each in suite.prompts if each.source in {"own", "given"}]
    content = (
        f"Write {most} different requests to an AI assistant, each of one to four sentences, that this person may make "
        "in the next weeks: about different things, concrete, self-contained, answerable in text, without attachments."
        + (f"\n\nTheir role: {suite.role}" if suite.role else "")
        + f"\n\nThey prefer, most of all first:\n{chr(10).join([*suite.statements, *wishes])}"
        + (f"\n\nThey asked before:\n{chr(10).join(text[:300] for text in known[:10])}" if known else "")
        + '\n\nDo not mention these preferences in the requests. Reply with JSON: {"prompts": [the requests]}.'
    )
    try:
        reply = await judge.models.ask(
            judge.model, [{"role": "user", "content": content}], _TOKENS, response_format=_PROMPTS
        )
        made = msgspec.json.decode(reply or "", type=WrittenPrompts).prompts
    except (ProviderError, msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        judge.failed += 1
        _log.warning("no prompts were written: %s", for_log(error))
        return []
    there = {each.text for each in suite.prompts}
    texts = dict.fromkeys(text.strip() for text in made)
    return [text for text in texts if _PROMPT[0] <= len(text) <= _PROMPT[1] and text not in there][:most]


async def _write(suite: Suite, judge: PairJudge, dimension: str, prompt: str) -> Pair | None:
    value = suite.rubric[dimension]
    follows, breaks = FEATURES[dimension][:: 1 if value > 0 else -1]
    content = (
        f"Write two answers to the prompt below that are equally correct, complete and useful, of the same length "
        f"and format. The first one {follows} than usual, the second one {breaks}. They differ in nothing else.\n\n"
        f"Prompt:\n{prompt}\n\n"
        'Reply with JSON: {"follows": the first answer, "breaks": the second answer}.'
    )
    try:
        reply = await judge.models.ask(
            judge.model, [{"role": "user", "content": content}], _TOKENS, response_format=_FORM
        )
        made = msgspec.json.decode(reply or "", type=Written)
        if not contrasts(dimension, made.follows, made.breaks, value):
            return None
        fit = await judge.verdict("fit", prompt, made.follows, made.breaks)
        useful = await judge.verdict("usefulness", prompt, made.follows, made.breaks)
    except (ProviderError, msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        judge.failed += 1
        _log.warning("no pair on %r was written: %s", dimension, for_log(error))
        return None
    if (fit.value, useful.value) != (1, 0):
        return None
    return pair_of(prompt, made.follows, made.breaks, dimension, judge.model)
