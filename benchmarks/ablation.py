"""Ablations of the posterior (docs/results/ablation.md): each part switched off, paired with what ships. Prints JSON.

python benchmarks/ablation.py --data ../shared/data --on people sets --out FILE     # resumes measure by measure

Measures:

people   real people's streams of pairs, folded by `Fit`: a crowd first, new people after it; test, then learn
sets     the sets of the development targets D1 to D7 as streams of labels, folded in the same way
tasks    simulated users whose tastes apply in some tasks only
pool     the personal pool: regret of 4,000 rounds
demo     the demo's simulation: satisfaction in the last quarter
crews    the example crews: satisfaction, and that of roles which join late under a similar name
speed    microseconds of a decision and of a label

Differences are "without the part minus as shipped" on the same people, seeds and draws; a standard error is that of the
mean over people (`people`, `sets`, `tasks`) or over seeds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import duckdb
import msgspec
import numpy as np

from fitrouter import _upper, arms, texts
from fitrouter.decide import Decider, Rules
from fitrouter.encoders import get_encoder
from fitrouter.features import context_features, context_names, read_prompt
from fitrouter.fit import Answered, Fit, FitParams, Label
from fitrouter.kin import Kin
from fitrouter.people import DAY_S, Person
from fitrouter.policies import SquareCB
from fitrouter.relevance import FEATURE, OWN, REST, Relevance
from fitrouter.signals import SIGNALS, heard
from fitrouter.taste import innovate
from fitrouter.tastes import TastePrior, role_key
from fitrouter.types import FeedbackKind, Floats, Identity, ModelCard, Request, RoleText, pack
from fitrouter.worth import Worth
from fitrouter_evaluators.bench.context import KINDS, Setting, draw_setting, measure_setting
from fitrouter_evaluators.bench.context import ROWS as TASK_ROWS
from fitrouter_evaluators.datasets import (
    Pair,
    Rating,
    halie,
    llm_rubric,
    mt_bench,
    pluriharms,
    realhumaneval,
    ttcw,
)
from fitrouter_evaluators.personal_pool import open_pool
from fitrouter_evaluators.pool import Pool
from fitrouter_evaluators.reward import Answer, ResponseFeatures, global_scalar
from fitrouter_evaluators.reward.prior import shipped_prior
from fitrouter_evaluators.simulate import contender, simulate
from fitrouter_evaluators.worlds import draw_play, load_world

HERE = Path(__file__).resolve().parent
SHIPPED = "as shipped"
LABELS_A_DAY = 3
"""The streams have no timestamps; every person gives so many labels a day."""
EXPERIENCED = 20
"""Of the people's streams: those with so many comparisons can be new people; all others are the crowd."""
BINS = (0, 5, 20, 40, 1 << 30)
"""Edges of the numbers of labels that a person had given before the one that is predicted."""
CELLS = (("lab-s1", 0.3), ("lab-s0", 0.3), ("harm", 0.3))
"""Worlds and shares of rated answers of the personal pool."""
ROUNDS = 4000
"""Of the personal pool: half of a world's own."""

# --- switches --------------------------------------------------------------------------------------------------------


class _Float64:
    """`_upper.Upper` without a cache: every quadratic form from the covariances themselves."""

    def __init__(self, _d: int) -> None:
        self.changed: set[int] = set()

    def squares(self, x: Floats) -> Floats:
        """float64[d²]."""
        return np.multiply.outer(x, x).ravel()

    def of(self, covs: Floats) -> Floats:
        """float64[rows, d²]."""
        return covs.reshape(len(covs), -1)


class _OneVector:
    """`Relevance` reduced to one vector for every task, with one level: a_d = clip(b + e_d, 0, 1)."""

    def __init__(self, D: int) -> None:
        self.D = D
        self.levels: dict[float, tuple[Floats, Floats]] = {}
        """Where it started from → mean and variance of b and e."""

    def _of(self, level: float) -> tuple[Floats, Floats]:
        first = np.concatenate([[level], np.zeros(self.D)]), np.concatenate([[OWN], np.full(self.D, FEATURE + REST)])
        return self.levels.get(level, first)

    def at(self, _task: str, level: float = 1.0) -> Floats:
        """float64[D] in [0, 1]."""
        mean, _ = self._of(level)
        return np.clip(mean[0] + mean[1:], 0.0, 1.0)

    def see(self, _task: str, z: Floats, residual: float, noise: float, level: float = 1.0) -> None:
        """Learn that residual ≈ Σ_d a_d z_d."""
        (mean, variance), along = self._of(level), np.concatenate([[z.sum()], z])
        gain = variance * along
        moved = innovate(float(mean @ along), float(gain @ along), residual, noise=noise)
        self.levels[level] = mean + gain * moved.step, variance - gain * gain * moved.shrink

    def dump(self) -> bytes:
        """Nothing: no run here is restored."""
        return b""


def _counted(person: Person, ts: float, _memory: float) -> None:
    person.seen = max(person.seen, ts)


_Change = tuple[Any, str, Any]
RELEVANCE: list[_Change] = [
    (Relevance, "at", lambda self, _task, _level=1.0: np.ones(self.D)),
    (Relevance, "see", lambda *_, **__: None),
]
TASK_TASTES: list[_Change] = [(Person, "task", lambda self, *_: np.zeros((2, len(self.base_mean))))]
KIN: list[_Change] = [(Kin, "meet", lambda *_: False)]
SURPRISES: list[_Change] = [(Person, "surprise", lambda *_, **__: False)]
AGE: list[_Change] = [(Person, "age", _counted)]
WORTH: list[_Change] = [(Worth, "nothing", lambda self: [0.0] * len(self.evidence))]
FLOAT32: list[_Change] = [(arms, "Upper", _Float64)]
WITHOUT: dict[str, list[_Change]] = {
    SHIPPED: [],
    "relevance": RELEVANCE,
    "task tastes": TASK_TASTES,
    "all but one vector": [(texts, "Relevance", _OneVector), *TASK_TASTES],
    "relevance and task tastes": RELEVANCE + TASK_TASTES,
    "role similarity": KIN,
    "surprises": SURPRISES,
    "all forgetting": SURPRISES + AGE,
    "worth": WORTH,
    "float32": FLOAT32,
    "all of these": RELEVANCE + TASK_TASTES + KIN + SURPRISES + AGE + WORTH + FLOAT32,
}
"""What is switched off → what is replaced by what. `all but one vector`: relevance and tastes of tasks go, and one
relevance of each feature, for every task, stays."""
IMPERSONAL = "everything personal"
"""Beside them, for scale: `FitParams.personal` false."""
NOT_SIMULATED = {"relevance", "task tastes", "role similarity", "surprises"}
"""Not switched off in the pool and the demo: the first two go together there, roles have no text, and the rule about
surprises goes with all forgetting."""
NOT_STREAMED = {"role similarity", "float32"}
"""Not switched off in streams: they have no roles, and nothing is decided."""
NOT_TOLD = {*NOT_STREAMED, "relevance", "surprises", "all forgetting"}
"""Not switched off where tasks are told: labels have no times there."""
assert _upper.Upper is arms.Upper


def _but(parts: Collection[str]) -> list[str]:
    """`WITHOUT` without these."""
    return [part for part in WITHOUT if part not in parts]


@contextmanager
def without(part: str) -> Iterator[None]:
    """Switch a part off."""
    with ExitStack() as stack:
        for target, name, value in WITHOUT.get(part, []):
            stack.enter_context(patch.object(target, name, value))
        yield


def params_of(part: str) -> FitParams:
    """The prior scales under a switch."""
    return FitParams(personal=part != IMPERSONAL)


Measured = Iterator[tuple[str, Callable[[], Any]]]
"""Name of a result → what finds it; results that are there already are not found again."""

# --- streams of labels -----------------------------------------------------------------------------------------------


class Said(NamedTuple):
    """One label of one person: on one answer, or on two."""

    user: str
    kind: FeedbackKind
    y: float
    answers: tuple[Answered, ...]


class Reader:
    """Contexts and features of texts, as the router and the scorer read them with the default encoder."""

    def __init__(self) -> None:
        self.encoder = get_encoder("static")
        self.features = ResponseFeatures(self.encoder, scalar=global_scalar(self.encoder))
        self._x: dict[str, Floats] = {}
        self._h: dict[tuple[str, str], Floats] = {}

    def prior(self) -> TastePrior | None:
        """The prior that ships."""
        return shipped_prior(self.features.names, self.encoder.id)

    def read(self, arm: str, prompt: str, text: str) -> Answered:
        """An answer as labels speak of it."""
        if prompt not in self._x:
            request = Request(messages=({"role": "user", "content": prompt or " "},))
            self._x[prompt] = context_features(read_prompt(request), self.encoder)
        if (prompt, text) not in self._h:
            self._h[prompt, text] = self.features.encode([Answer(prompt=prompt, text=text)])[0]
        return Answered(arm, self._x[prompt], self._h[prompt, text])


def comparisons(file: Path, reader: Reader) -> list[Said]:
    """People's streams of pairs in the file's order: 1 where a is rated higher, ½ for a tie."""
    columns = '"user", prompt, a, a_model, b, b_model, a_rating, b_rating'
    rows = duckdb.sql(f"SELECT {columns} FROM '{file}' ORDER BY \"order\"").fetchall()
    return [
        Said(
            user,
            FeedbackKind.PAIR,
            0.5 + 0.5 * float(np.sign(one - other)),
            (reader.read(a_model, prompt, a), reader.read(b_model, prompt, b)),
        )
        for user, prompt, a, a_model, b, b_model, one, other in rows
    ]


def _overall(rows: Sequence[Rating], *names: str) -> list[Rating]:
    return [row for row in rows if row.dimension in names]


def _by_trial(rows: Sequence[Rating]) -> list[Rating]:
    return sorted(rows, key=lambda row: row.extra.get("trial") or 0)


SETS: Mapping[str, tuple[str, Callable[[Path], Sequence[Pair | Rating]]]] = {
    "D1 MT-bench": ("mt_bench_human", mt_bench.convert),
    "D2 PluriHarms": ("pluriharms", lambda folder: _by_trial(pluriharms.convert(folder))),
    "D3 LLM-Rubric": ("llm_rubric", lambda folder: _overall(llm_rubric.convert(folder), "Q0")),
    "D4 HALIE dialogues": ("halie", lambda folder: _overall(halie.convert_dialogue(folder), "overall", "preference")),
    "D5 HALIE metaphors": ("halie", halie.convert_metaphor),
    "D6 RealHumanEval": ("realhumaneval", realhumaneval.convert),
    "D7 TTCW": ("ttcw", ttcw.convert),
}
"""Development target → folder, and what makes its labels."""
MOST = 3000
"""Labels of a set that are streamed for a seed: whole people, drawn anew for each."""


def labels_of(rows: Sequence[Pair | Rating], reader: Reader) -> list[Said]:
    """The rows of a set as labels; those about a text that is not there are left out, and so are stays."""
    found = []
    for row in rows:
        if isinstance(row, Pair):
            both = [reader.read(text.model or "unknown", row.prompt, text.text) for text in (row.a, row.b)]
            found.append(Said(row.user, FeedbackKind.PAIR, row.label, (both[0], both[1])))
        elif row.kind != "dwell" and (row.response or not row.model):
            # Where nobody answered, the prompt is what was rated.
            answer = reader.read(row.model or "unknown", row.prompt, row.response or row.prompt)
            found.append(Said(row.user, FeedbackKind(row.kind), row.y, (answer,)))
    return found


def predicted(fit: Fit, who: Identity, answer: Answered) -> float:
    """The fit of a written answer as decisions add it up, with its own features for the expected ones."""
    relied, names = fit.reliance(), (answer.arm,)
    assert answer.h is not None
    h = np.where(np.isfinite(answer.h), answer.h, 0.0)
    found = float(h @ fit.taste(who, answer.x))
    found += float(fit.arms.read(fit.arms.find(names), answer.x, float(relied[0])).correction[0])
    if fit.params.personal:
        (role, user), _ = fit.offsets(who, names)
        found += float(relied[1] * role[0] + relied[3] * user[0])
    return found


def experts(fit: Fit, who: Identity, answer: Answered) -> Floats:
    """float64[4]: the user-blind fit of a written answer, and with a person's taste, offset and both in full."""
    relied, names = fit.reliance(), (answer.arm,)
    assert answer.h is not None
    h = np.where(np.isfinite(answer.h), answer.h, 0.0)
    found = float(h @ fit.tastes.population.mean)
    found += float(fit.arms.read(fit.arms.find(names), answer.x, float(relied[0])).correction[0])
    user = fit.texts.anybody(who)[1]
    taste = float(h @ fit.texts.added(user, fit.texts.where(who, answer.x, user), 1.0)[0])
    offset = float(fit.offsets(who, names)[0][1, 0])
    return found + np.array([0.0, taste, offset, taste + offset])


class Mixtures:
    """Each person's Bayesian mixture of `experts`, with a fixed share (Herbster and Warmuth 1998).

    What could take the place of `Fit.reliance`: the people before a new one give the prior of their weights.
    """

    def __init__(self, share: float = 0.02) -> None:
        self.share, self.total = share, np.array([3.0, 1.0, 1.0, 1.0])
        self.people: dict[str, tuple[Floats, Floats]] = {}
        """Person → prior and weights."""

    def see(self, user: str, nats: Floats) -> float:
        """The loss of a label's prediction, before the weights move."""
        if user not in self.people:
            start = self.total + sum((weights for _, weights in self.people.values()), np.zeros(4))
            self.people[user] = start / start.sum(), start / start.sum()
        prior, weights = self.people[user]
        moved = weights * np.exp(-nats)
        total = float(moved.sum())
        self.people[user] = prior, (1.0 - self.share) * moved / total + self.share * prior
        return -math.log(total)


def loss(fit: Fit, who: Identity, said: Said) -> tuple[float, float]:
    """Nats of a label before it is learnt, up to a constant of its kind, and for a pair whether it was foreseen."""
    found = [predicted(fit, who, answer) for answer in said.answers]
    seen = heard(said.kind, said.y)
    value = found[0] - (found[1] if len(found) > 1 else 0.0)
    user = fit.tastes.user(who)
    if said.kind is FeedbackKind.RATING and user is not None:
        level = fit.tastes.params.level
        value = level + user.scale.offset + user.scale.gain * (value - level)
    hit = float((value > 0) == (said.y > 0.5)) if len(found) > 1 else math.nan
    return seen.surprise(value) / seen.signal.weight, hit


class Stream(NamedTuple):
    """What was predicted of new people: a row a label."""

    user: list[str]
    before: list[int]
    """Labels that the person had given."""
    nats: list[float]
    hit: list[float]
    mixed: list[float]
    """Nats under `Mixtures`; of pairs alone."""


def stream(crowd: Sequence[Said], new: Sequence[Said], fit: Fit) -> Stream:
    """Learn from the crowd, then predict and learn the labels of new people, each after the one before."""
    given: dict[str, int] = {}
    out, mixtures = Stream([], [], [], [], []), Mixtures()
    for place, said in enumerate(itertools.chain(crowd, new)):
        who, before = Identity(user=said.user), given.get(said.user, 0)
        if place >= len(crowd) and said.y != 0.5:  # a tie foretells nobody's choice
            nats, hit = loss(fit, who, said)
            mixed = math.nan
            if said.kind is FeedbackKind.PAIR:
                seen, (one, other) = heard(said.kind, said.y), (experts(fit, who, answer) for answer in said.answers)
                each = np.array([seen.surprise(value) for value in (one - other).tolist()])
                mixed = mixtures.see(said.user, each / seen.signal.weight)
            for column, value in zip(out, (said.user, before, nats, hit, mixed), strict=True):
                column.append(value)  # type: ignore[attr-defined]
        given[said.user] = before + 1
        ts = 1e9 + before * DAY_S / LABELS_A_DAY
        against = said.answers[1] if len(said.answers) > 1 else None
        fit.learn(Label(who, said.answers[0], said.y, said.kind, against=against, ts=ts))
    return out


def _by_user(rows: Sequence[Said]) -> dict[str, list[Said]]:
    found: dict[str, list[Said]] = {}
    for row in rows:
        found.setdefault(row.user, []).append(row)
    return found


def split(rows: Sequence[Said], rng: np.random.Generator, least: int) -> tuple[list[Said], list[Said]]:
    """The crowd in the file's order, and half of those who gave `least` labels as new people, one after the other."""
    people = _by_user(rows)
    able = sorted(user for user, mine in people.items() if len(mine) >= least)
    new = [able[i] for i in rng.permutation(len(able))[: (len(able) + 1) // 2]]
    chosen = set(new)
    return [row for row in rows if row.user not in chosen], [row for user in new for row in people[user]]


def drawn(rows: Sequence[Said], rng: np.random.Generator) -> list[Said]:
    """Whole people, in random order until there are `MOST` labels, their labels in the set's order."""
    people, left = _by_user(rows), MOST
    users, kept = sorted(people), set[str]()
    for i in rng.permutation(len(users)):
        if left > 0:
            kept.add(users[i])
            left -= len(people[users[i]])
    return [row for row in rows if row.user in kept]


def streams(draws: Sequence[tuple[Sequence[Said], Sequence[Said]]], reader: Reader, prior: TastePrior | None) -> Any:
    """Every part's mean loss by labels seen, and its differences from what ships, paired by label."""
    D, found = reader.features.dim, {}
    for part in (*_but(NOT_STREAMED), IMPERSONAL):
        with without(part):
            fits = [Fit(len(context_names()), D, params_of(part), prior=prior) for _ in draws]
            found[part] = [stream(*draw, fit) for draw, fit in zip(draws, fits, strict=True)]
    base, out = found[SHIPPED], {}
    for part, runs in found.items():
        rows = [
            _Row(user, draw, before, nats, nats - was, hit, hit - hit_was, mixed, mixed - mixed_was)
            for draw, (run, ref) in enumerate(zip(runs, base, strict=True))
            for user, before, nats, hit, mixed, was, hit_was, mixed_was in zip(
                *run, ref.nats, ref.hit, ref.mixed, strict=True
            )
        ]
        out[part] = {
            f"{low} to {high - 1}" if high < BINS[-1] else f"{low} and more": _people(
                [row for row in rows if low <= row.before < high]
            )
            for low, high in [*itertools.pairwise(BINS), (0, BINS[-1])]
        }
    return out


class _Row(NamedTuple):
    """One predicted label."""

    user: str
    draw: int
    before: int
    nats: float
    difference: float
    accuracy: float
    accuracy_difference: float
    mixed: float
    mixed_difference: float


def _people(rows: Sequence[_Row]) -> dict[str, Any]:
    """Means over labels, with standard errors over people or over draws, whichever is larger."""
    if not rows:
        return {"labels": 0}
    users, draws = [row.user for row in rows], [str(row.draw) for row in rows]
    out: dict[str, Any] = {"labels": len(rows), "people": len(set(users))}
    for name in _Row._fields[3:]:
        values = np.array([getattr(row, name) for row in rows])
        if np.isfinite(values).all():
            out[name], error = _clustered(values, users)
            out[f"{name}_se"] = max(error, _clustered(values, draws)[1])
    return out


def _clustered(values: Floats, groups: Sequence[str]) -> tuple[float, float]:
    """The mean, and its standard error with groups as units (0 for one group)."""
    _, index = np.unique(np.array(groups), return_inverse=True)
    mean = float(values.mean())
    sums = np.bincount(index, values - mean)
    n = len(sums)
    return mean, float(math.sqrt((sums**2).sum() * n / max(n - 1, 1)) / len(values))


def measure_people(data: Path, seeds: int) -> Measured:
    """After a crowd, and each in an installation of their own."""
    file = data / "human_feedback" / "comparisons.parquet"
    if not file.is_file():
        return
    reader = Reader()
    rows = comparisons(file, reader)
    after = [split(rows, np.random.default_rng([2607, seed]), EXPERIENCED) for seed in range(seeds)]
    alone = [([], mine) for mine in _by_user(rows).values() if len(mine) >= EXPERIENCED]
    yield "after a crowd", lambda: streams(after, reader, reader.prior())
    yield "installations of one", lambda: streams(alone, reader, reader.prior())


def measure_sets(data: Path, seeds: int) -> Measured:
    """D1 to D7; the prior that ships was taught by five of them, so it is left out."""
    reader = Reader()

    def find(folder: Path, convert: Callable[[Path], Sequence[Pair | Rating]]) -> Any:
        draws = []
        rows = labels_of(convert(folder), reader)
        for seed in range(seeds):
            rng = np.random.default_rng([2607, seed])
            draws.append(split(drawn(rows, rng), rng, 2))
        return streams(draws, reader, None)

    for name, (folder, convert) in SETS.items():
        if (data / folder).is_dir():
            yield name, partial(find, data / folder, convert)


# --- simulations -----------------------------------------------------------------------------------------------------


def paired(values: Mapping[str, Sequence[float]], scale: float = 1.0) -> dict[str, Any]:
    """Part → mean, and the paired difference from what ships with its standard error."""
    base, out = np.array(values[SHIPPED]), {}
    for part, found in values.items():
        apart = (np.array(found) - base) * scale
        out[part] = {
            "mean": float(np.mean(found)),
            "difference": float(apart.mean()),
            "se": float(apart.std(ddof=1) / math.sqrt(len(apart))) if len(apart) > 1 else None,
            "n": len(apart),
        }
    return out


_pools: dict[str, Pool] = {}


def _pool(data: Path) -> Pool:
    if "pool" not in _pools:
        _pools["pool"] = open_pool(data / "alpaca_eval" / "responses.parquet", encoder="minilm")
    return _pools["pool"]


def measure_pool(data: Path, seeds: int) -> Measured:
    """Regret of the router as it ships (γ and floor too); differences in per cent of the mean regret."""

    def find(name: str, feedback: float) -> Any:
        pool, world = _pool(data), load_world(HERE / "worlds" / f"{name}.yaml")
        world = msgspec.structs.replace(world, rounds=ROUNDS)
        regret: dict[str, list[float]] = {}
        for seed in range(seeds):
            play = draw_play(world, pool, seed)
            for part in _but(NOT_SIMULATED):
                with without(part):
                    outcome = simulate(world, pool, play, contender("ours", 2560.0), feedback=feedback, floor=0.05)
                regret.setdefault(part, []).append(float(outcome.regret.sum()))
        return paired(regret, 100.0 / float(np.mean(regret[SHIPPED])))

    for name, feedback in CELLS:
        yield f"{name}, {feedback:.0%}", partial(find, name, feedback)


def measure_demo(_data: Path, seeds: int) -> Measured:
    """Satisfaction in the last quarter of the demo's world, and of the one without tastes."""
    from fitrouter_integrations.demo._command import POLICY
    from fitrouter_integrations.demo._play import People
    from fitrouter_integrations.demo._seeds import learned, strategy
    from fitrouter_integrations.demo._stage import set_stage
    from fitrouter_integrations.demo._world import open_world

    def find(name: str | None) -> Any:
        world = msgspec.structs.replace(open_world(name)[0], rounds=6000)
        stage, last = set_stage(world), dict[str, list[float]]()
        for seed in range(1, seeds + 1):
            people = People(world, stage, seed)
            for part in _but(NOT_SIMULATED):
                with without(part):
                    probs, _ = learned(people, "ours", POLICY["gamma"], POLICY["floor"], world.rounds)
                last.setdefault(part, []).append(strategy(people, probs).quarters[-1])
        return paired(last)

    yield "demo", lambda: find(None)
    yield "null", lambda: find("null")


def measure_tasks(data: Path, seeds: int) -> Measured:
    """Gain over the global head, in P(satisfied), after 20 and 50 labels a user where tasks are told."""
    rows = {name: TASK_ROWS[name] for name in ("global", "relevance learnt")}

    def find(kind: str) -> Any:
        pool, world = _pool(data), load_world(HERE / "worlds" / "lab-s1.yaml")
        settings: list[Setting] = [draw_setting(pool, world, kind, 60, seed) for seed in range(min(seeds, 2))]
        gains: dict[str, dict[str, list[float]]] = {}
        for part in _but(NOT_TOLD):
            for seed, setting in enumerate(settings):
                with without(part):
                    picks = measure_setting(setting, rows, seed, (20, 50))
                for k in (20, 50):
                    gain = picks["relevance learnt", k].gain.mean(axis=1).tolist()
                    gains.setdefault(f"{k} labels", {}).setdefault(part, []).extend(gain)
        return {k: paired(of) for k, of in gains.items()}

    for kind in KINDS:
        yield kind, partial(find, kind)


def measure_crews(data: Path, seeds: int) -> Measured:
    """Satisfaction of the crews' roles, and of roles that join late, named as they are with "senior" before it."""
    import crews

    pool = crews.recorded(data / "alpaca_eval" / "responses.parquet")
    text = crews.read(pool)
    late = {role: f"senior {role}" for role in crews.JOBS}
    for role, other in late.items():
        text.x[other] = text.x[role]
    crews.start(pool, text)
    policy = crews.SETTINGS["the examples'"][0]

    def find(shift: int) -> Any:
        found: dict[str, dict[str, list[float]]] = {"crew": {}, "late roles": {}}
        for part in [part for part in (SHIPPED, "role similarity", "all of these") if part in WITHOUT]:
            for seed in range(seeds):
                with without(part):
                    crew, newcomers = _crew(crews, pool, policy, seed, late, shift)
                found["crew"].setdefault(part, []).append(crew)
                found["late roles"].setdefault(part, []).append(newcomers)
        return {name: paired(values) for name, values in found.items()}

    yield "200 rounds, then 50 of late roles with their namesakes' readers", lambda: find(0)
    yield "200 rounds, then 50 of late roles with another role's readers", lambda: find(1)


def _crew(
    crews: Any, pool: Any, policy: Mapping[str, Any], seed: int, late: Mapping[str, str], shift: int
) -> tuple[float, float]:
    """Mean satisfaction of 200 rounds, and of the next 50, in which only the late roles work."""
    tastes = {role: pool.tastes[taste] for role, taste in crews.TASTES.items()}
    others = [*list(tastes.values())[shift:], *list(tastes.values())[:shift]]
    readers = crews.Readers({**tastes, **dict(zip(map(late.__getitem__, tastes), others, strict=True))}, seed)
    day = np.random.default_rng(seed).integers(len(pool.cases), size=250).tolist()
    with tempfile.TemporaryDirectory() as folder:
        config = crews.configured(pool, folder)
        changed = config.policy.model_validate(policy)
        router = crews.Router.from_config(config.model_copy(update={"policy": changed, "seed": seed}))
        crew, number = crews._Crew(router, readers), 0
        for t, case in enumerate(day):
            if t == 200:
                vectors = np.asarray(get_encoder("static").encode(list(late.values())))
                for role, vector in zip(late.values(), vectors, strict=True):
                    key = role_key(Identity(role=role))
                    crew._fold(RoleText(id=role, ts=0.0, tenant="default", role=key, vector=pack(vector)))
            for role in crews.JOBS:
                crew.call(role if t < 200 else late[role], case, number)
                number += 1
    satisfied = readers.satisfied
    return tuple(float(np.mean([satisfied[role] for role in roles])) for roles in (late, late.values()))  # type: ignore[return-value]


def measure_speed(_data: Path, _seeds: int) -> Measured:
    """Microseconds of processor time, the best of some rounds, as benchmarks/decide.py measures them."""
    from decide import cpu_us, lived

    d, name = len(context_names()), str(uuid.UUID(int=7))

    def find(K: int) -> Any:
        cards, found = [ModelCard(name=f"m{k:02d}", provider="p") for k in range(K)], dict[str, dict[str, float]]()
        for _ in range(5):  # parts take turns, so that what else the machine does falls on all of them
            for part in _but(NOT_SIMULATED):
                with without(part):
                    fit, labels = lived(d, K, np.random.default_rng(0))
                    decider, rounds = Decider(SquareCB(2560.0), fit, Rules()), itertools.cycle(labels)
                    calls: dict[str, Callable[[], object]] = {
                        "decision": lambda: _decide(decider, name, labels[0], cards),  # noqa: B023 - called at once
                        "label": lambda: fit.learn(next(rounds)),  # noqa: B023
                        "answer, label and decision": lambda: _turn(decider, name, next(rounds), cards),  # noqa: B023
                    }
                    best = found.setdefault(part, {})
                    for what, call in calls.items():
                        best[what] = min(cpu_us(call, runs=100, rounds=3), best.get(what, math.inf))
        return found

    for K in (2, 8, 32):
        yield f"{K} models", partial(find, K)


def _decide(decider: Decider, name: str, label: Label, cards: Sequence[ModelCard]) -> None:
    decider.decide(name, 0.0, label.identity, label.answer.x, cards)


def _turn(decider: Decider, name: str, label: Label, cards: Sequence[ModelCard]) -> None:
    fit, answer = decider.fit, label.answer
    assert answer.h is not None
    fit.arms.observe_response(fit.arms.row(answer.arm), answer.x, answer.h)
    fit.learn(label)
    _decide(decider, name, label, cards)


MEASURES: Mapping[str, Callable[[Path, int], Measured]] = {
    "people": measure_people,
    "sets": measure_sets,
    "tasks": measure_tasks,
    "pool": measure_pool,
    "demo": measure_demo,
    "crews": measure_crews,
    "speed": measure_speed,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=HERE / "../../shared/data")
    parser.add_argument("--on", nargs="*", choices=list(MEASURES), default=list(MEASURES))
    parser.add_argument("--seeds", type=int, default=5, help="seeds of worlds, and draws of who is new")
    parser.add_argument("--without", nargs="*", choices=list(WITHOUT), help="only these; all where left out")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.without is not None:
        for part in set(WITHOUT) - {SHIPPED, *options.without}:
            WITHOUT.pop(part)
    if not options.data.is_dir():
        print(f"skipped: there is no folder {options.data}", file=sys.stderr)
        return 0
    assert SIGNALS[FeedbackKind.PAIR].link == "logistic"
    found: dict[str, Any] = json.loads(options.out.read_bytes()) if options.out and options.out.is_file() else {}
    for name in options.on:
        part = found.setdefault(name, {"seeds": options.seeds, "results": {}})
        for what, find in MEASURES[name](options.data, options.seeds):
            if what in part["results"]:
                continue
            started = time.process_time()
            part["results"][what] = find()
            print(f"{name}, {what}: {time.process_time() - started:.0f} s of CPU", file=sys.stderr, flush=True)
            if options.out:
                options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if not options.out:
        print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
