"""Stay or switch: what sessions cost under a provider's cache, beside fixed rules (docs/results/cache.md). Prints JSON.

    python -m benchmarks.simulation.cache --seeds 8 --json results/cache.json

`redraw_reason`, `switch_cost` and `Decider` decide as in `POST /v1/chat/completions`, from sessions that `Sessions`
folds and beliefs that the learner has of earlier votes. Two models; sessions, gaps, prompts and qualities come from the
distributions of `WORLDS`. A provider keeps a prompt for `life` seconds after its last use and bills what is read and
written by `charge`. The total is what was paid, plus the quality lost to the better model of each turn and
`consistency` for each switch, in USD at the exchange rate of the utility. The floor of exploration is 0. Beside it:

* always: stays with the first draw;
* never: draws at each user turn, without the cost of a switch;
* threshold: at each user turn takes the model of the highest utility if it gains more than a threshold; its first
  model is the same draw. One of `THRESHOLDS` serves all distributions; beside it, the best for each in hindsight;
* oracle: the least total for a session that is known to its end, by dynamic programming.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from scipy import stats

from fitrouter.policies import LinearThompson, Uniform
from fitrouter.posterior.labels import Estimate
from fitrouter.routing.decider import CurrentModel, Rules
from fitrouter.serving.recorder import execution_of
from fitrouter.serving.spending import charge, counted
from fitrouter.state.learner import Learner
from fitrouter.state.sessions import CACHE_TOKENS, Sessions, redraw_reason, switch_cost
from fitrouter.types import (
    Attempt,
    Decision,
    FeedbackKind,
    Floats,
    Identity,
    Mode,
    ModelCard,
    PolicyVersion,
    Prices,
    Usage,
)
from fitrouter_evaluators.simulation.runner import InProcess, Turn, answer_events

SECONDS = 4.0
"""From a request to its answer."""
LIVES = {"5 min": 300.0, "1 h": 3600.0}
THRESHOLDS = (0.0, 0.02, 0.04, 0.08, 0.16, 0.32)
WARM_UP = 800
"""Votes that the learner has before the first session, where quality is not learnt in the sessions."""
NOISE = 0.15
"""Standard deviation of a rating."""
VOTED = 0.3
"""Share of the user turns that get a vote, where quality is learnt in the sessions."""

Random: TypeAlias = np.random.Generator
Drawn: TypeAlias = Callable[[Random], float]


class Step(NamedTuple):
    """A call of a session."""

    ts: float
    prompt: int
    answer: int
    user_turn: bool
    kind: int
    part: int
    """Number of times that the history was summarised before: only the start of the prompt is then the same."""


class World(NamedTuple):
    """Distributions that sessions are drawn from, and two models."""

    name: str
    turns: Drawn
    """User turns."""
    gap: Drawn
    """Seconds of silence before a user turn."""
    cards: tuple[ModelCard, ModelCard]
    quality: tuple[tuple[float, float], ...]
    """Of each kind of turn: of each model."""
    per_usd: float
    """Rating that a dollar is worth."""
    calls: Drawn = lambda _: 1
    """Calls of a user turn: an agent's steps."""
    tool: Drawn = lambda _: 0.0
    """Seconds that a tool takes."""
    start: int = 2000
    growth: float = 400.0
    """Mean number of tokens that the prompt grows by with a call."""
    limit: int = 1 << 30
    """Tokens above which the history is summarised."""
    kinds: float = 0.0
    """Probability that a user turn is of kind 1."""
    lasting: float = 0.0
    """Probability that a turn is of the kind of the one before, whatever `kinds`."""
    marked: bool = True
    """Whether clients mark what is to be cached, so that writes are billed."""
    caches: bool = True
    learnt: bool = False
    """Whether the learner starts without votes, and reads those of the sessions."""
    sessions: int = 12
    consistency: float = 0.02
    labelled: bool = True
    """Whether requests name the task, one for each kind of turn."""

    def task(self, kind: int) -> str | None:
        """The task that a request names."""
        return f"kind {kind}" if self.labelled else None


class Bill(NamedTuple):
    """What a rule cost, in USD."""

    money: float
    lost: float
    """Quality lost, at the exchange rate."""
    switches: float
    calls: int

    def total(self, world: World) -> float:
        """Money, lost quality and switches."""
        return self.money + self.lost + world.consistency / world.per_usd * self.switches


def session(world: World, rng: Random, start: float) -> list[Step]:
    """Draw a session."""
    steps, ts, prompt, kind, part = list[Step](), start, float(world.start), int(rng.random() < world.kinds), 0
    for turn in range(max(int(world.turns(rng)), 1)):
        if turn:
            ts += world.gap(rng)
            kind = kind if rng.random() < world.lasting else int(rng.random() < world.kinds)
        for call in range(max(int(world.calls(rng)), 1)):
            ts += world.tool(rng) if call else 0.0
            prompt += rng.exponential(world.growth)
            if prompt > world.limit:
                prompt, part = world.start + 0.1 * prompt, part + 1
            steps.append(Step(ts, int(prompt), int(50 + rng.exponential(300)), call == 0, kind, part))
            ts += SECONDS
    return steps


class Provider:
    """The prompt caches of a provider in one session, exactly: a prompt is kept `life` seconds after its last use."""

    def __init__(self, world: World, steps: Sequence[Step], life: float) -> None:
        self.world, self.steps, self.life, self.long = world, steps, life, life > min(LIVES.values())
        self.times, self.prompts, self.parts = (np.array([step[k] for step in steps]) for k in (0, 1, 5))

    def reads(self, i: int, last: Sequence[int]) -> Floats:
        """Tokens that call i reads from the cache of a model whose last call was each of `last`."""
        step, before = self.steps[i], np.array(last, dtype=int)
        same = np.where(self.parts[before] == step.part, self.prompts[before], self.world.start)
        alive = self.world.caches & (step.ts - self.times[before] <= self.life) & (before >= 0)
        read = np.minimum(same, step.prompt)
        found: Floats = np.where(alive & (read >= CACHE_TOKENS), read, 0)
        return found

    def usage(self, i: int, read: int) -> Usage:
        """Usage of call i that reads so many tokens."""
        step = self.steps[i]
        written = step.prompt - read if self.world.marked and step.prompt >= CACHE_TOKENS else 0
        return Usage(
            prompt_tokens=step.prompt,
            completion_tokens=step.answer,
            cached_tokens=read,
            written_tokens=written,
            written_1h_tokens=written if self.long else 0,
        )

    def after(self, i: int, last: int) -> Usage:
        """Usage of call i at a model whose last call was `last`; -1 for none."""
        return self.usage(i, int(self.reads(i, [last])[0]))

    def bill(self, arms: Sequence[int]) -> Bill:
        """What the calls of a session cost at the models that answered them."""
        last, money, lost, switches = [-1, -1], 0.0, 0.0, 0
        for i, arm in enumerate(arms):
            money += charge(self.world.cards[arm], self.after(i, last[arm])).usd
            quality = self.world.quality[self.steps[i].kind]
            lost += (max(quality) - quality[arm]) / self.world.per_usd
            switches += i > 0 and arm != arms[i - 1]
            last[arm] = i
        return Bill(money, lost, switches, len(arms))

    def oracle(self) -> list[int]:
        """The models of the least total, by dynamic programming over (model, last call of the other model)."""
        world, n = self.world, len(self.steps)
        move = world.consistency / world.per_usd
        # best[arm][j + 1]: least total so far where the last call was of `arm`, and that of the other model was j
        best, came = np.full((2, n + 1), math.inf), list[list[int]]()
        for i, step in enumerate(self.steps):
            quality, after, back = world.quality[step.kind], np.full((2, n + 1), math.inf), [0, 0]
            for arm, card in enumerate(world.cards):
                lost = (max(quality) - quality[arm]) / world.per_usd
                cold, warm = (charge(card, self.usage(i, read)).usd for read in (0, step.prompt))
                costs = cold + (warm - cold) * self.reads(i, range(-1, i)) / step.prompt + lost  # prices are linear
                if i == 0:
                    after[arm, 0] = costs[0]
                    continue
                after[arm] = best[arm] + costs[i]
                total = best[1 - arm, : i + 1] + costs + move  # the last call of the other was i - 1, of this one j
                back[arm] = int(total.argmin())
                after[arm, i] = total[back[arm]]
            best = after
            came.append(back)
        arm, j = divmod(int(best.argmin()), n + 1)
        path = [0] * n
        for i in range(n - 1, 0, -1):
            path[i] = arm
            if j == i:
                arm, j = 1 - arm, came[i][arm]
        path[0] = arm
        return path


class Router:
    """Decides and learns as the product: beliefs of the learner, draws of the decider, sessions of the fold."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.cards, self.rng = world, world.cards, np.random.default_rng([seed, 7])
        self.arms = [card.arm for card in self.cards]
        learner = Learner(2, 1, votes_per_day=1 << 30, expects_scores=False)
        if not world.learnt:
            learner = warmed(world.quality, world.labelled, seed)
        unit = 0.01
        rules = Rules(
            seed=seed,
            cost_weight=world.per_usd * unit,
            cost_unit_usd=unit,
            consistency=world.consistency,
            floor=0.0,
        )
        self.process = InProcess(learner, LinearThompson(), rules, self.cards, ts=WARM_UP + 1.0)
        self.decider, self.sessions, self.known = self.process.decider, Sessions(), dict[int, Estimate]()

    @staticmethod
    def x(kind: int) -> Floats:
        """The context of a kind of turn."""
        return np.array([1.0, float(kind)])

    def draw(self, name: str, step: Step, key: str, current: CurrentModel | None = None) -> Decision:
        """Draw a model for a call."""
        identity = Identity(session=key, task=self.world.task(step.kind))
        return self.decider.decide(
            name, step.ts, identity, self.x(step.kind), self.cards, prompt_tokens=step.prompt, current=current
        )

    def utility(self, step: Step) -> Floats:
        """Expected utility of the models in a call, without caches."""
        if self.world.learnt or step.kind not in self.known:
            fit = self.process.learner.fit
            self.known[step.kind] = fit.estimate(
                Identity(task=self.world.task(step.kind)), self.x(step.kind), tuple(self.arms), step.ts
            )
        beliefs = self.known[step.kind]
        prices = [card.prices for card in self.cards]
        usd = [(p.input * step.prompt + p.output * t) / 1e6 for p, t in zip(prices, beliefs.tokens, strict=True)]
        found: Floats = beliefs.mean - self.world.per_usd * np.array(usd)
        return found

    def serve(self, name: str, step: Step, key: str) -> Decision:
        """Decide a call of a session as the pipeline does."""
        found, rules = self.sessions.get(key), self.decider.rules
        if found is None:
            return self.draw(name, step, key)
        every, idle = rules.redraw_every, rules.idle_s
        reason = redraw_reason(
            found,
            eligible=self.arms,
            now=step.ts,
            user_turn=step.user_turn,
            every=every,
            idle_s=idle,
            task=self.world.task(step.kind),
        )
        if reason:
            usd = switch_cost(self.cards, found, step.prompt, step.ts)
            current = CurrentModel(found.arm, dict(zip(self.arms, usd.tolist(), strict=True)))
            return self.draw(name, step, key, None if reason == "idle" else current)
        return sticky(name, step, key, self.world.task(step.kind), found.draw_id, found.arm, self.arms)

    def answered(self, decision: Decision, step: Step, usage: Usage) -> None:
        """Fold what the session learns of an answer."""
        self.sessions.observe_decision(decision, user_turn=step.user_turn)
        counts = counted(usage)
        attempts = (Attempt(model=decision.chosen, probability=1.0),)
        end = step.ts + SECONDS
        self.sessions.observe_execution(
            execution_of(decision, end, status="ok", served_by=decision.chosen, attempts=attempts, **counts)
        )

    def learn(self, decision: Decision, step: Step) -> None:
        """Let the learner read the answer, and perhaps a vote."""
        made = answer_events(
            decision, h=np.zeros(1), prompt_tokens=step.prompt, completion_tokens=step.answer, seconds=SECONDS
        )
        for place, event in enumerate(made):
            self.process.fold(event, made[:place])
        if step.user_turn and self.rng.random() < VOTED:
            quality = self.world.quality[step.kind][self.arms.index(decision.chosen)]
            self.process.vote(Turn(decision, made), FeedbackKind.RATING, rating(self.rng, quality))


def sticky(name: str, step: Step, key: str, task: str | None, draw: str, arm: str, arms: Sequence[str]) -> Decision:
    """A decision that keeps a model."""
    return Decision(
        id=name,
        ts=step.ts,
        draw_id=draw,
        identity=Identity(session=key, task=task),
        mode=Mode.STICKY,
        eligible=tuple(arms),
        chosen=arm,
        propensity=1.0,
        policy=PolicyVersion(algorithm="linear_thompson"),
    )


@functools.cache
def warmed(quality: tuple[tuple[float, float], ...], labelled: bool, seed: int) -> Learner:
    """A learner that has read the votes of the warm-up, on answers of both models."""
    rng, arms = np.random.default_rng([seed, 8]), ("a", "b")
    learner = Learner(2, 1, votes_per_day=1 << 30, expects_scores=False)
    cards = [ModelCard(name=arm, provider="sim") for arm in arms]
    process = InProcess(learner, Uniform(), Rules(seed=seed), cards)
    for number in range(1, 1 + WARM_UP):
        kind = int(rng.random() < 0.5)
        identity = Identity(task=f"kind {kind}" if labelled else None)
        decision = process.decide(number, number, identity, Router.x(kind))
        turn = process.answer(decision, h=np.zeros(1), prompt_tokens=2000, completion_tokens=350, seconds=SECONDS)
        process.vote(turn, FeedbackKind.RATING, rating(rng, quality[kind][arms.index(decision.chosen)]))
    return learner


def rating(rng: Random, quality: float) -> float:
    """A noisy rating."""
    return float(np.clip(quality + rng.normal(0.0, NOISE), 0.0, 1.0))


def play(world: World, life: float, rule: str, seed: int, sessions: Sequence[list[Step]]) -> Bill:
    """Play all sessions of a seed under a rule."""
    router, bills = Router(world, seed), list[Bill]()
    limit = float(rule.removeprefix("threshold ")) if rule.startswith("threshold") else math.inf
    for s, steps in enumerate(sessions):
        provider, arms, last, key = Provider(world, steps, life), list[int](), [-1, -1], f"session {s}"
        first: Decision | None = None
        for i, step in enumerate(steps):
            name = str(uuid.UUID(int=(s + 1) << 20 | i))
            if rule == "router":
                decision = router.serve(name, step, key)
            elif first is None or (rule == "never" and step.user_turn):
                decision = router.draw(name, step, key)
            else:
                arm = arms[-1]
                if step.user_turn and limit < math.inf:
                    utility = router.utility(step)
                    arm = 1 - arm if utility[1 - arm] - utility[arm] > limit else arm
                decision = sticky(name, step, key, world.task(step.kind), first.id, router.arms[arm], router.arms)
            first = first or decision
            arm = router.arms.index(decision.chosen)
            if rule == "router":
                router.answered(decision, step, provider.after(i, last[arm]))
            if world.learnt:
                router.learn(decision, step)
            arms.append(arm)
            last[arm] = i
        bills.append(provider.bill(arms))
    return added(bills)


def added(bills: Sequence[Bill]) -> Bill:
    """Sum of bills."""
    return Bill(*(sum(part) for part in zip(*bills, strict=True)))


def priced(ratio: float, read: float | None, write: float | None = 1.25) -> tuple[ModelCard, ModelCard]:
    """Two models, the second `ratio` times as dear; prices of the cache in proportion to that of the input."""
    cards = []
    for name, price in (("a", 3.0 / ratio), ("b", 3.0)):
        prices = Prices(
            input=price,
            output=5 * price,
            cache_read=None if read is None else read * price,
            cache_write=None if write is None else write * price,
            cache_write_1h=None if write is None else 2 * price,
        )
        cards.append(ModelCard(name=name, provider="sim", prices=prices))
    return cards[0], cards[1]


def mean(turns: float) -> Drawn:
    """Geometric with a mean of at least 1."""
    return lambda rng: rng.geometric(1.0 / turns)


def about(median: float, spread: float = 0.6) -> Drawn:
    """Lognormal."""
    return lambda rng: median * math.exp(spread * rng.normal())


def heavy(rng: Random) -> float:
    """Pareto with exponent 1.1, at most 120 turns."""
    return float(min(1.0 + 2.0 * rng.pareto(1.1), 120.0))


def bursts(rng: Random) -> float:
    """Three of four messages follow within half a minute, the others after 20 minutes."""
    return rng.exponential(30.0) if rng.random() < 0.75 else rng.exponential(1200.0)


ALIKE = ((0.7, 0.7),) * 2
CONSTANT = ((0.7, 0.8),) * 2
REVERSED = ((0.8, 0.7),) * 2
HARD = ((0.75, 0.75), (0.6, 0.85))
"""The dear model is better in turns of kind 1 alone."""
EACH = ((0.8, 0.7), (0.7, 0.8))
"""Each is better in its kind of turn."""


def worlds() -> Iterator[World]:
    """The distributions."""
    five, alike = priced(5.0, 0.1), priced(1.0, 0.1)
    each: dict[str, Any] = {"quality": EACH, "kinds": 0.5}
    hard: dict[str, Any] = {"quality": HARD, "kinds": 0.3}
    phases: dict[str, Any] = {"quality": HARD, "kinds": 0.5, "lasting": 0.9}
    chat = functools.partial(World, turns=mean(10.0), per_usd=5.0, cards=five, gap=about(300.0))
    tail = functools.partial(chat, turns=heavy, gap=bursts, start=6000)
    agent = functools.partial(
        World,
        turns=mean(6.0),
        calls=mean(12.0),
        gap=about(90.0, 1.0),
        tool=about(6.0, 1.0),
        cards=five,
        start=12_000,
        growth=1200.0,
        per_usd=1.0,
        sessions=5,
    )
    unbilled = priced(5.0, 0.5, None)
    yield chat("short chats, hard turns", turns=mean(3.0), gap=about(40.0), start=300, growth=200.0, **hard)
    yield chat("chats below 1,024 tokens, each better", gap=about(40.0), start=100, growth=60.0, **each)
    yield chat("chats at the edge, constant gain", quality=CONSTANT)
    yield chat("chats at the edge, hard turns", **hard)
    yield chat("chats at the edge, each better, 1x", cards=alike, start=8000, **each)
    yield chat("chats, half hours, each better, 1x", gap=about(1500.0), cards=alike, start=8000, **each)
    yield chat("chats, hours, hard turns", gap=about(5000.0, 1.0), start=8000, **hard)
    yield chat("bursts, phases, reads at .25", gap=bursts, cards=priced(5.0, 0.25, None), marked=False, **phases)
    yield tail("heavy tail, alike, 1x", cards=alike, quality=ALIKE)
    yield tail("heavy tail, hard turns", **hard)
    yield chat("chats, the cheap one is better, learnt", gap=about(60.0), quality=REVERSED, learnt=True)
    yield agent("agents, alike, 20x", cards=priced(20.0, 0.1), quality=ALIKE)
    yield agent("agents, constant gain", quality=CONSTANT)
    yield agent("agents, hard turns", **hard)
    yield agent("agents, hard turns, no task named", labelled=False, **hard)
    yield agent("agents, phases, reads at .5", cards=unbilled, marked=False, **phases)
    yield agent("agents, each better, 1x", cards=alike, **each)
    yield agent("agents, summaries, each better, 1x", cards=alike, limit=40_000, **each)
    yield agent("agents, no cache, hard turns", cards=priced(5.0, None, None), marked=False, caches=False, **hard)
    yield agent("agents, slow tools, hard turns", tool=about(120.0, 1.0), gap=about(600.0, 1.0), **hard)


def sessions_of(world: World, seed: int) -> list[list[Step]]:
    """The sessions of a seed, the same for every rule."""
    rng = np.random.default_rng([seed, sum(map(ord, world.name))])
    return [session(world, rng, 1e6 + 1e6 * s) for s in range(world.sessions)]


THRESHOLD_RULES = tuple(f"threshold {limit}" for limit in THRESHOLDS)
FIXED = ("always", "never", *THRESHOLD_RULES)


def played(world: World, life: float, seeds: int) -> dict[str, list[Bill]]:
    """Rule → its bill of each seed."""
    bills: dict[str, list[Bill]] = {}
    for seed in range(seeds):
        sessions = sessions_of(world, seed)
        for rule in ("router", *FIXED):
            bills.setdefault(rule, []).append(play(world, life, rule, seed, sessions))
        known = [Provider(world, steps, life) for steps in sessions]
        bills.setdefault("oracle", []).append(added([each.bill(each.oracle()) for each in known]))
    return bills


def totals_of(world: World, bills: dict[str, list[Bill]]) -> dict[str, Floats]:
    """Rule → its total of each seed."""
    return {rule: np.array([bill.total(world) for bill in each]) for rule, each in bills.items()}


def compared(world: World, bills: dict[str, list[Bill]], threshold: str) -> dict[str, Any]:
    """Mean totals of all rules, and how the router compares: with one threshold for all, and the best in hindsight."""
    totals = totals_of(world, bills)
    hindsight = min(THRESHOLD_RULES, key=lambda rule: totals[rule].sum())
    rules = {each: each for each in ("router", "always", "never", "oracle")}
    rules |= {"threshold": threshold, "threshold in hindsight": hindsight}
    one, any_ = (min(("always", "never", each), key=lambda rule: totals[rule].sum()) for each in (threshold, hindsight))
    found: dict[str, Any] = {"best fixed": one, "in hindsight": any_, "calls": bills["router"][0].calls}
    for name, rule in rules.items():
        mean = added(bills[rule])
        per = 1.0 / len(bills[rule])
        found[name] = {
            "total": float(totals[rule].mean()),
            "money": mean.money * per,
            "lost": mean.lost * per,
            "switches": mean.switches * per,
        }
        if name != "router":
            found[name]["router dearer"] = dearer(totals["router"], totals[rule])
    found["router dearer than best fixed"] = dearer(totals["router"], totals[one])
    found["router dearer than the best in hindsight"] = dearer(totals["router"], totals[any_])
    return found


def dearer(ours: Floats, theirs: Floats) -> list[float]:
    """By how many percent our sum is above theirs, with a paired 95 % interval over seeds (ratio of sums)."""
    ratio = ours.sum() / theirs.sum()
    n = len(ours)
    se = float(np.std(ours - ratio * theirs, ddof=1) / (theirs.mean() * math.sqrt(n))) if n > 1 else math.nan
    t = float(stats.t.ppf(0.975, n - 1)) if n > 1 else math.nan
    return [100.0 * (ratio - 1.0), 100.0 * (ratio - 1.0 - t * se), 100.0 * (ratio - 1.0 + t * se)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--only", default="", help="part of the names of distributions")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    every = [
        (f"{world.name}, {life}", world, played(world, seconds, args.seeds))
        for world in worlds()
        if args.only in world.name
        for life, seconds in LIVES.items()
    ]
    # One threshold for all: the one whose totals are the least in the mean, as shares of the oracle's.
    shares = {
        rule: [np.sum(t[rule]) / np.sum(t["oracle"]) for t in (totals_of(w, b) for _, w, b in every)]
        for rule in THRESHOLD_RULES
    }
    threshold = min(shares, key=lambda rule: float(np.mean(shares[rule])))
    tables = {name: compared(world, bills, threshold) for name, world, bills in every}
    for name, table in tables.items():
        print(name, threshold, json.dumps(table), flush=True)
    if args.json:
        args.json.write_text(json.dumps(tables, indent=1) + "\n")


if __name__ == "__main__":
    main()
