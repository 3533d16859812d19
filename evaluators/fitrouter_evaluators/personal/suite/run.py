"""Runs a suite: asks models, and ranks them by the person's reward model, rubric and judge, above the common base.

A model's score is how often its answer suits the person better than another model's answer to the same prompt. The
reward model gives that as draws of the person's posterior, the judge as verdicts; the two are averaged, the judge's
with the weight that the person's own marks give it (`Trust`). Intervals are over draws and resampled prompts. A
model whose answers have faults of the common base cannot be ahead of one without, whatever the person's taste.

Ratings on the anchor prompts are equated linearly to the population's scale (Kolen and Brennan 2014, §2.4): mean and
standard deviation of the person's ratings of all answers to the anchors are made those of the population's ratings of
the same answers.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fitrouter.errors import InvalidRequest, ProviderError, for_log
from fitrouter.router import Router
from fitrouter.stores.figures import interval
from fitrouter.types import Floats, Identity
from fitrouter_evaluators.personal.base import LEAST, base_of, faults, unlike, wrong
from fitrouter_evaluators.personal.filters import domains
from fitrouter_evaluators.personal.scores import Z80, metric_means, on_scale, reasons_of
from fitrouter_evaluators.personal.suite.conversations import Held, dearest, hold
from fitrouter_evaluators.personal.suite.judge import CALIBRATION, PairJudge, Trust, agreements
from fitrouter_evaluators.personal.suite.models import Models
from fitrouter_evaluators.personal.suite.results import ModelResult, TurnsResult
from fitrouter_evaluators.personal.suite.suite import FIT, KNOWN, Prompt, Suite, Task

_log = logging.getLogger(__name__)
DRAWS = 1000
_JUDGED_TOKENS = 200
_SIDES = {"follows": 1, "breaks": -1, "same": 0}
Progress = Callable[[int, int], None]
"""Called with steps done and steps in all."""


def messages(prompt: str, system: str = "") -> list[dict[str, Any]]:
    """Build the messages that ask a prompt."""
    said = [{"role": "system", "content": system}] if system else []
    return [*said, {"role": "user", "content": prompt}]


def estimated(
    suite: Suite, models: Models, names: Sequence[str], judge: str | None = None, user: str | None = None
) -> tuple[int, float]:
    """Estimate the number of calls of a run that cost money, or may, and the most USD they cost; kept answers do not.

    Verdicts are counted as if every answer had 1,000 tokens.
    """
    asked = [(name, messages(each.text, each.system)) for each in suite.prompts for name in names]
    left = [(models.card(name).prices, models.cost(name, each)) for name, each in asked if not models.kept(name, each)]
    turned = [dearest(models, name, task, user) for task in _tasks(suite, models) for name in names]
    calls = sum(cost > 0.0 or not prices.known for prices, cost in left) + sum(each for each, _ in turned)
    usd = sum(cost for _, cost in left) + sum(cost for _, cost in turned)
    if judge is None:
        return calls, usd
    prices = models.card(judge).prices
    circle = len(names) if len(names) > 2 else 1
    verdicts = 2 * (len(suite.prompts) * circle + sum(_count_marks(each.marks) for each in suite.pairs)) + CALIBRATION
    return calls + verdicts, usd + verdicts * (prices.input * 2500 + prices.output * _JUDGED_TOKENS) / 1e6


def _tasks(suite: Suite, models: Models) -> Sequence[Task]:
    """Tasks over several turns that can be held: none on recorded answers, which do not answer to what is said."""
    return suite.tasks if models.recorded is None else ()


class JudgeVerdicts(NamedTuple):
    """Verdicts of a judge on the answers to each prompt."""

    verdicts: Floats
    """1 for the first of each pair of models, −1 for the second, float64[P, C]."""
    circle: Sequence[tuple[int, int]]
    """The pairs."""
    weight: float
    """Of a verdict beside the reward model."""


class Runner:
    """Runs suites on models and ranks these.

    Args:
        router: started, or `Router.offline`, with the person's reward model.
        models: asks.
        progress: called after each step.
        encoder: that tells what a prompt is about, where its author does not say.
    """

    def __init__(
        self, router: Router, models: Models, progress: Progress | None = None, encoder: str = "static"
    ) -> None:
        self.router, self.models, self._progress, self._encoder = router, models, progress, encoder
        self._done = self._of = 0
        self._failed: Counter[str] = Counter()
        self._unjudged = self._unplayed = 0

    async def run(
        self,
        suite: Suite,
        identity: Identity,
        names: Sequence[str],
        judge: PairJudge | None = None,
        user: str | None = None,
    ) -> list[ModelResult]:
        """Run a suite and return the results, best first. What was answered before is read from the ledger.

        Args:
            suite: of the person.
            identity: whose reward model scores; their user or role.
            names: of two or more models.
            judge: for verdicts besides.
            user: model that plays the user of tasks over several turns; None for the follow-ups of their styles.

        Raises:
            InvalidRequest: fewer than two models, an unknown one, no scorer, or no prompt that all of them answered.
            BudgetExhausted: the limit is spent; what was answered is kept.
            StoreError: a store cannot be read now.
        """
        if len(set(names)) < 2:
            raise InvalidRequest(f"suite run: got {len(set(names))} models; a ranking needs two or more")
        names = list(dict.fromkeys(names))
        for name in names:
            self.models.card(name)
        circle = [(i, (i + 1) % len(names)) for i in range(len(names) if len(names) > 2 else 1)]
        marks = [(p, _SIDES[m[FIT]]) for p in suite.pairs for m in p.marks.values() if FIT in m]
        personal = [each for each in suite.prompts if each.source != "base"]
        tasks, self._done = _tasks(suite, self.models), 0
        self._of = (len(suite.prompts) + len(tasks)) * len(names) + len(personal) * (len(circle) if judge else 0)
        based = await asyncio.gather(*(self._base_faults(name, suite) for name in names))
        texts = await asyncio.gather(*(self._answers(each, names) for each in personal))
        kept = [(prompt, row) for prompt, row in zip(personal, texts, strict=True) if None not in row]
        if not kept:
            raise InvalidRequest("suite run: no prompt has an answer of each model; see --ask-again")
        prompts, answers = [p.text for p, _ in kept], [[text or "" for text in row] for _, row in kept]

        talks = await asyncio.gather(*(self._talks(task, names, user) for task in tasks))
        held = [row for row in talks if row is not None]
        trust, verdicts = Trust(), None
        if judge is not None:
            await judge.calibrate()
            said = await asyncio.gather(*(judge.verdict(FIT, p.prompt, p.follows, p.breaks) for p, _ in marks))
            trust = trust.after(agreements([each.value for each in said], [side for _, side in marks]))
            verdicts = np.array(
                await asyncio.gather(
                    *(self._judged(judge, p, row, circle) for p, row in zip(prompts, answers, strict=True))
                )
            )
        who = await self.router.people.recall(identity)
        judged = None if verdicts is None else JudgeVerdicts(verdicts, circle, trust.weight)
        asked, ranked = [p for p, _ in kept], functools.partial(self._ranked, suite, who, names)
        pairs = [(prompt, text) for prompt, row in zip(prompts, answers, strict=True) for text in row]
        h = (await asyncio.to_thread(self.router.people.read, who, pairs)).reshape(len(prompts), len(names), -1)
        failed = [self._failed[name] for name in names]
        found = await asyncio.to_thread(ranked, asked, answers, h, based, failed, judged, held, user)
        told = await asyncio.to_thread(_domains, asked, self._encoder)
        by_domain: dict[str, list[ModelResult]] = {}
        for domain in dict.fromkeys(filter(None, told)):
            of = [p for p, name in enumerate(told) if name == domain]
            part = judged and judged._replace(verdicts=judged.verdicts[of])
            texts_of = [answers[p] for p in of]
            failed = [sum(not row[k] for row in texts_of) for k in range(len(names))]
            rows = [asked[p] for p in of], texts_of, h[of], [()] * len(names), failed  # base prompts have no domain
            by_domain[domain] = await asyncio.to_thread(ranked, *rows, part)
        return [
            msgspec.structs.replace(
                each, domains={name: one for name, rows in by_domain.items() for one in rows if one.model == each.model}
            )
            for each in found
        ]

    def _ranked(
        self,
        suite: Suite,
        who: Identity,
        names: Sequence[str],
        asked: Sequence[Prompt],
        answers: Sequence[Sequence[str]],
        read: Floats,
        based: Sequence[Sequence[tuple[str, ...]]],
        failed: Sequence[int],
        judged: JudgeVerdicts | None,
        held: Sequence[Sequence[Held]] = (),
        user: str | None = None,
    ) -> list[ModelResult]:
        """Rank the models by their answers to each prompt, and by the faults of their answers to the base.

        `read` are the features of the answers, float64[P, K, D]; `failed` counts the calls of each model without one.
        """
        prompts, h = [each.text for each in asked], np.nan_to_num(read)
        own, common = self.router.people.taste(who)
        rng = np.random.default_rng(0)
        values, vectors = np.linalg.eigh(own.cov)
        theta = own.mean + (rng.standard_normal((DRAWS, len(values))) * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
        checked = [
            [unlike(text, each.check, each.reference) for text in row] for each, row in zip(asked, answers, strict=True)
        ]
        wrong = [
            [tuple(dict.fromkeys((*faults(p, text), *amiss))) for text, amiss in zip(row, also, strict=True)]
            for p, row, also in zip(prompts, answers, checked, strict=True)
        ]
        broken = np.array([[bool(each) for each in row] for row in wrong])
        draws = _wins(_below(np.einsum("pkd,sd->spk", h, theta), broken))
        verdict_wins = None
        if judged is not None:
            verdict_wins = _judged_wins(judged.verdicts, judged.circle, len(names))
            draws = (draws + judged.weight * verdict_wins) / (1.0 + judged.weight)
        wins, spans = _resampled(draws, rng)
        ratings, theirs = (on_scale(h @ taste.mean, broken) for taste in (own, common))
        anchors = [at for at, prompt in enumerate(asked) if prompt.source == "anchor"]
        equated = _equated(ratings[anchors], theirs[anchors])
        turns = self._turns(who, held, theta, user, rng) if held else [None] * len(names)
        talked = [[row[k].faults() for row in held] for k in range(len(names))]
        bases = [base_of([*based[k], *(row[k] for row in wrong), *talked[k]]) for k in range(len(names))]
        order = sorted(range(len(names)), key=lambda k: (bases[k].sound < LEAST, -wins[:, k].mean(), names[k]))
        population = {k: rank for rank, k in enumerate(np.argsort(-theirs.mean(axis=0), kind="stable").tolist(), 1)}
        best = np.bincount(wins.argmax(axis=1), minlength=len(names)) / DRAWS
        apart = h.mean(axis=0) - h.mean(axis=(0, 1))
        return [
            ModelResult(
                model=names[k],
                rank=rank,
                wins=float(wins[:, k].mean()),
                low=spans[k][0],
                high=spans[k][1],
                best=float(best[k]),
                rating=float(ratings[:, k].mean()),
                population=float(theirs[:, k].mean()),
                population_rank=population[k],
                rubric=_on_side(suite, self.router.people.features, h, k),
                judge=None if verdict_wins is None else float((2.0 * verdict_wins[:, k] - 1.0).mean()),
                base=bases[k].sound,
                faults=bases[k].faults,
                anchor=None if equated is None else float(equated[k]),
                why=tuple(reason.words for reason in reasons_of(self.router.people.features, apart[k], own, common)),
                turns=turns[k],
                metrics=metric_means(self.router.people.features, read[:, k], own),
                answers=len(prompts),
                checked=sum(each.check is not None for each in asked),
                right=sum(not row[k] for each, row in zip(asked, checked, strict=True) if each.check is not None),
                failed=failed[k],
                unjudged=self._unjudged,
                suite=suite.id,
                trust=0.0 if judged is None else judged.weight,
                usd=self.models.ledger.usd,
                unpriced=self.models.ledger.unpriced,
            )
            for rank, k in enumerate(order, 1)
        ]

    def _turns(
        self, who: Identity, held: Sequence[Sequence[Held]], theta: Floats, user: str | None, rng: np.random.Generator
    ) -> list[TurnsResult]:
        """Rate conversations, a row of models for each task, by their last answers."""
        people, K = self.router.people, len(held[0])
        pairs = [each.pairs() for row in held for each in row]
        read = people.read(who, [pair for each in pairs for pair in each])
        ends = np.cumsum([len(each) for each in pairs])
        h, own = np.nan_to_num(read[ends - 1]).reshape(len(held), K, -1), people.taste(who)[0]
        wrong = [[each.faults() for each in row] for row in held]
        broken = np.array([[bool(each) for each in row] for row in wrong])
        wins, spans = _resampled(_wins(_below(np.einsum("pkd,sd->spk", h, theta), broken)), rng)
        ratings = on_scale(h @ own.mean, broken)
        rows = np.split(read, ends[:-1])
        found = []
        for k in range(K):
            base, answers = base_of([row[k] for row in wrong]), np.concatenate(rows[k::K])
            found.append(
                TurnsResult(
                    tasks=len(held),
                    answers=len(answers),
                    wins=float(wins[:, k].mean()),
                    low=spans[k][0],
                    high=spans[k][1],
                    rating=float(ratings[:, k].mean()),
                    sound=base.sound,
                    faults=base.faults,
                    metrics=metric_means(people.features, answers, own),
                    user=user or "scripted",
                    unplayed=self._unplayed,
                )
            )
        return found

    async def _talks(self, task: Task, names: Sequence[str], user: str | None) -> list[Held] | None:
        """Hold a task's conversation with each model; None if one was lost in a crash."""

        def failed(model: str, error: ProviderError) -> None:
            self._unplayed += model == user
            self._lost(model, error)

        found = await asyncio.gather(*(hold(self.models, name, task, user, failed) for name in names))
        for _ in names:
            self._step()
        held = [each for each in found if each is not None]
        return held if len(held) == len(names) else None

    async def _answers(self, prompt: Prompt, names: Sequence[str]) -> list[str | None]:
        return list(await asyncio.gather(*(self._answer(prompt.text, name, prompt.system) for name in names)))

    async def _base_faults(self, name: str, suite: Suite) -> list[tuple[str, ...]]:
        """Find faults in a model's answers to the known prompts of the base, as far as they are recorded."""
        found = []
        for prompt in suite.prompts:
            known = KNOWN.get(prompt.text) if prompt.source == "base" else None
            if known is None:
                continue
            try:
                text = await self._answer(prompt.text, name, "", **({"tools": [known.tool]} if known.tool else {}))
            except InvalidRequest:  # not recorded
                self._step()
                continue
            if text is not None:
                found.append(wrong(text, accepts=known.accepts, fields=known.fields, tool=known.tool))
        return found

    async def _answer(self, prompt: str, name: str, system: str = "", **params: Any) -> str | None:
        """Ask a model and return its answer; empty if it failed, which is counted, None if it was lost in a crash."""
        try:
            found = await self.models.ask(name, messages(prompt, system), **params)
        except ProviderError as error:
            self._lost(name, error)
            found = ""
        self._step()
        return found

    async def _judged(
        self, judge: PairJudge, prompt: str, row: Sequence[str], circle: Sequence[tuple[int, int]]
    ) -> list[int]:
        found = []
        for a, b in circle:
            try:
                found.append((await judge.verdict(FIT, prompt, row[a], row[b])).value)
            except ProviderError as error:
                self._unjudged += 1
                _log.warning("%s did not answer: %s", judge.model, for_log(error))
                found.append(0)
            self._step()
        return found

    def _lost(self, model: str, error: ProviderError) -> None:
        """Count a call without an answer, which counts as an empty one."""
        self._failed[model] += 1
        _log.warning("%s did not answer: %s", model, for_log(error))

    def _step(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._of)


def _domains(prompts: Sequence[Prompt], encoder: str) -> list[str]:
    """What each prompt is about, as its author says, else as its nearest examples; empty where neither tells."""
    told = domains(encoder).of_texts(each.text for each in prompts)
    return [each.domain or name for each, name in zip(prompts, told, strict=True)]


def _count_marks(marks: Any) -> int:
    return sum(FIT in own for own in marks.values())


def _wins(ratings: Floats) -> Floats:
    """Share of rivals that each answer is rated above, from ratings of the same shape, float64[S, P, K]."""
    above = ratings[..., :, None] > ratings[..., None, :]
    same = ratings[..., :, None] == ratings[..., None, :]
    found: Floats = (above.sum(axis=-1) + 0.5 * (same.sum(axis=-1) - 1)) / (ratings.shape[-1] - 1)
    return found


def _below(rated: Floats, broken: NDArray[np.bool_]) -> Floats:
    """Move answers with a fault below all without one: no taste buys them. float64[S, P, K] and bool[P, K]."""
    found: Floats = np.where(broken, rated - 2.0 * np.abs(rated).max() - 1.0, rated)
    return found


def _resampled(draws: Floats, rng: np.random.Generator) -> tuple[Floats, list[tuple[float, float]]]:
    """Mean wins of draws float64[S, P, K] over resampled prompts, float64[S, K], and their 80% intervals."""
    sampled = rng.integers(draws.shape[1], size=draws.shape[:2])
    wins: Floats = np.take_along_axis(draws, sampled[:, :, None], axis=1).mean(axis=1)
    ends = np.quantile(wins, (0.1, 0.9), axis=0)
    return wins, [
        (low, high) if low < high else interval(low, 0.0, draws.shape[1], z=Z80)
        for low, high in zip(*ends.tolist(), strict=True)
    ]


def _judged_wins(verdicts: Floats, circle: Sequence[tuple[int, int]], models: int) -> Floats:
    """Mean of an answer's verdicts, on a scale from 0 to 1, float64[P, K]."""
    total, seen = np.zeros((len(verdicts), models)), np.zeros(models)
    for at, (a, b) in enumerate(circle):
        total[:, a] += verdicts[:, at]
        total[:, b] -= verdicts[:, at]
        seen[a], seen[b] = seen[a] + 1, seen[b] + 1
    found: Floats = 0.5 + 0.5 * total / seen
    return found


def _equated(own: Floats, common: Floats) -> Floats | None:
    """Map a person's mean ratings of anchors to the population's scale, float64[K]; None if all are the same."""
    if len(own) < 2 or own.std() < 1e-9:
        return None
    found: Floats = common.mean() + common.std() * (own.mean(axis=0) - own.mean()) / own.std()
    return np.clip(found, 0.0, 1.0)


def _on_side(suite: Suite, features: Sequence[str], h: Floats, model: int) -> float:
    """Weighted share of the rubric in which a model's answers are on the wanted side of the mean of all models."""
    known = {name: value for name, value in suite.rubric.items() if name in features and value}
    if not known:
        return 0.5
    weights = np.abs(np.array(list(known.values())))
    columns = [list(features).index(name) for name in known]
    apart = (h[:, model] - h.mean(axis=1))[:, columns] * np.sign(np.array(list(known.values())))
    return float(((apart > 0.0) + 0.5 * (apart == 0.0)).mean(axis=0) @ weights / weights.sum())
