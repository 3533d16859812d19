"""Installations in temporary folders that simulated people use through the product, and the worlds of their tastes.

Benchmarks of quiz, leaderboard and report stand on it. An installation has the default settings, recorded answers
(`../shared/data/alpaca_eval`) of some models, a journal, a scorer and a warehouse. Its clock is simulated. Answers are
`Router.complete`, votes `Router.feedback`, quizzes `Quizzes`, rankings `Leaderboards`: what the routes `POST
/v1/chat/completions`, `/v1/feedback`, `/v1/quiz` and `GET /v1/leaderboard` call.

Worlds, by the structure of people's tastes:

* `form`: one of the five tastes of `benchmarks.strangers`, thresholds on length and list items;
* `linear`: normal weights of eight text attributes (`simulation.pool.attributes`), independent of the scorer;
* `models`: a normal liking of each model, which no text explains, and luck of each answer;
* `mixed`: weights and likings;
* `shared`: the weights of `linear` common to all people, with small differences.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from benchmarks.strangers import CROWD, CROWD_LABELS, CROWD_PEOPLE, DAY_S, RANDOM
from benchmarks.strangers import TASTES as FORMS

from fitrouter.config import Config, QuizConfig, parse_config
from fitrouter.router import Router
from fitrouter.types import Completion, FeedbackKind, Floats, Identity, Request
from fitrouter_evaluators.personal import Leaderboard, Leaderboards, Progress, Quizzes
from fitrouter_evaluators.personal.beliefs import PAIR
from fitrouter_evaluators.simulation.pool import ATTRIBUTES, attributes

WORLDS = ("form", "linear", "models", "mixed", "shared")
FIVE = ("Meta-Llama-3-8B-Instruct", "Qwen2-72B-Instruct", "gpt-3.5-turbo-1106_concise", "gpt4_0613_concise",
        "gpt4_1106_preview_verbose")  # fmt: skip
CROWD_FROM, PERSON_FROM, BATCH = 1e9, 2e9, 20
MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
"""Where folders need no disk."""


class Taste(NamedTuple):
    """One person's ratings of every answer of K models to P prompts."""

    ratings: Floats
    """float64[P, K]: P(thumb up)."""
    weights: Floats
    """float64[8]: logits per standardised attribute; zeros where tastes are no weights."""

    @property
    def worth(self) -> Floats:
        """Mean rating of each model, float64[K]."""
        found: Floats = self.ratings.mean(axis=0)
        return found

    def prefers(self, p: int, first: int, second: int, rng: np.random.Generator) -> bool:
        """Whether the first of two answers is preferred: with the noise of people's comparisons, one in ten random."""
        gap = (self.ratings[p, first] - self.ratings[p, second]) / PAIR.temperature
        return bool(rng.random() < (1.0 / (1.0 + np.exp(-gap)) if rng.random() > RANDOM else 0.5))


class Answers(NamedTuple):
    """Recorded answers of all models, with what simulated people look at."""

    models: tuple[str, ...]
    prompts: tuple[str, ...]
    texts: tuple[tuple[str, ...], ...]
    """By prompt and model."""
    n: Floats
    b: Floats
    """float64[P, M]: characters and list items."""
    attributes: Floats
    """float64[P, M, 8], standardised."""


def read_answers(file: Path) -> Answers:
    """Read the recorded answers and their attributes."""
    import duckdb

    rows = duckdb.sql(f"SELECT prompt, model, response FROM '{file}' ORDER BY prompt_id, model").fetchall()
    by: dict[str, dict[str, str]] = {}
    for prompt, model, text in rows:
        by.setdefault(prompt, {})[model] = text
    models = tuple(sorted({model for _, model, _ in rows}))
    by = {prompt: row for prompt, row in by.items() if prompt.strip() and len(row) == len(models)}
    texts = tuple(tuple(row[model] for model in models) for row in by.values())
    found = np.array([[attributes(text) for text in row] for row in texts])
    flat = found.reshape(-1, len(ATTRIBUTES))
    lines = [[[line.lstrip()[:2] for line in text.split("\n")] for text in row] for row in texts]
    return Answers(
        models,
        tuple(by),
        texts,
        np.array([[float(len(text)) for text in row] for row in texts]),
        np.array([[float(sum(m in {"- ", "* "} or m.rstrip(".").isdigit() for m in t)) for t in row] for row in lines]),
        np.clip((found - flat.mean(axis=0)) / (flat.std(axis=0) + 1e-9), -3.0, 3.0),
    )


def draw_taste(answers: Answers, models: Sequence[int], world: str, crowd: bool, rng: np.random.Generator) -> Taste:
    """Draw the taste of a person of a world, or of its crowd."""
    about, nothing = answers.attributes[:, models], np.zeros(len(ATTRIBUTES))
    if world == "form":
        name = rng.choice(list(CROWD), p=list(CROWD.values())) if crowd else rng.choice(list(FORMS))
        return Taste(FORMS[name](answers.n[:, models], answers.b[:, models]), nothing)
    common = np.random.default_rng(5).normal(0.0, 1.0, len(ATTRIBUTES))
    sd = {"linear": (1.0, 0.0), "models": (0.0, 1.0), "mixed": (0.7, 0.7), "shared": (0.1, 0.0)}[world]
    weights = rng.normal(0.0, sd[0], len(ATTRIBUTES)) + (common if world == "shared" else 0.0)
    logits = about @ weights + rng.normal(0.0, 1.0, len(models)) * sd[1]
    if world == "models":
        logits = logits + rng.normal(0.0, 0.5, logits.shape)
    return Taste(1.0 / (1.0 + np.exp(-logits)), weights)


class Clock:
    """A clock that is set."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        """Return the time that was set."""
        return self.now


class Person:
    """A person who uses a running installation."""

    def __init__(self, home: Home, router: Router, config: Config, clock: Clock, user: str) -> None:
        self.home, self.router, self.config, self.clock, self.who = home, router, config, clock, Identity(user=user)
        self.boards, self.quizzes = Leaderboards(router, config), Quizzes(router, config)

    async def ask(self, p: int, k: int | None = None) -> tuple[str, int]:
        """Ask a prompt, of the installation's k-th model or the router's; returns the decision and who answered."""
        model = None if k is None else self.home.names[k]
        request = Request(messages=({"role": "user", "content": self.home.answers.prompts[p]},), identity=self.who)
        if model is not None:
            request = Request(messages=request.messages, identity=self.who, model=model)
        answer = await self.router.complete(request)
        while not answer.logged:  # the disk was too slow: nobody could vote on it
            answer = await self.router.complete(request)
        return answer.decision.id, self.home.names.index(self.router.name_of(answer.served_by))

    async def compare(self, p: int, first: int, second: int, y: bool, ts: float) -> None:
        """Compare two recorded answers without a quiz: both are observed, and a pair says which is preferred."""
        self.clock.now = ts
        plans = []
        for k in (first, second):
            request = Request(messages=({"role": "user", "content": self.home.answers.prompts[p]},), identity=self.who)
            said = Completion(message={"role": "assistant", "content": self.home.text(p, k)})
            plans.append(await self.router.observe(request, said, self.home.names[k], cost_usd=0.0, latency_ms=None))
        await learnt(self.router)
        await self.router.feedback(
            plans[0].decision.id, FeedbackKind.PAIR, float(y), other=plans[1].decision.id, identity=self.who
        )

    async def play(self, taste: Taste, rng: np.random.Generator, questions: int, sure: float) -> Played:
        """Play a quiz to its end."""
        self.clock.now = PERSON_FROM
        step = await self.quizzes.start(self.who, QuizConfig(questions=questions, sure=sure), again=True)
        pairs = []
        while step.question is not None:
            self.clock.now += 30.0
            p = self.home.answers.prompts.index(step.question.prompt)
            first, second = (self.home.which(p, text) for text in (step.question.first, step.question.second))
            y = taste.prefers(p, first, second, rng)
            pairs.append((p, first, second, y))
            step = await self.quizzes.answer(step.id, self.who, step.question.number, "first" if y else "second")
        return Played(step, pairs)

    async def board(self) -> Leaderboard:
        """Read the leaderboard once everything is scored, folded and copied."""
        await learnt(self.router, copied=True)
        return await self.boards.of(self.who)


class Played(NamedTuple):
    """The end of a quiz, and its comparisons: prompt, first and second model, whether the first was preferred."""

    end: Progress
    pairs: list[tuple[int, int, int, bool]]


async def learnt(router: Router, *, copied: bool = False) -> None:
    """Wait until every answer is scored and every event folded, and with `copied` in the warehouse."""
    await router.settled()
    while (lag := router.status().lag).scorer_answers or (copied and lag.warehouse_events):  # noqa: ASYNC110
        await asyncio.sleep(0.005)  # the scorer and the warehouse are threads
    await router.settled()


class Home:
    """An installation: its folder and recorded answers.

    Args:
        folder: of its files.
        answers: all recorded ones.
        models: places of its models among them.
    """

    def __init__(self, folder: Path, answers: Answers, models: Sequence[int]) -> None:
        self.folder, self.answers, self.models = folder, answers, list(models)
        self.names = [answers.models[m] for m in models]
        self._places = [{texts[m]: k for k, m in reversed(list(enumerate(models)))} for texts in answers.texts]
        rows = [
            {"prompt": prompt, "model": name, "response": self.text(p, k)}
            for p, prompt in enumerate(answers.prompts)
            for k, name in enumerate(self.names)
        ]
        (folder / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def text(self, p: int, k: int) -> str:
        """Return the answer of the k-th model to a prompt."""
        return self.answers.texts[p][self.models[k]]

    def which(self, p: int, text: str) -> int:
        """Return the place of the model that gave an answer."""
        return self._places[p][text]

    def config(self, data: str, seed: int = 0) -> Config:
        """Return the configuration over a data folder."""
        settings: dict[str, Any] = {
            "data": str(self.folder / data),
            "seed": seed,
            "providers": {"recorded": {"kind": "recorded", "path": str(self.folder / "answers.jsonl")}},
            "models": [{"name": name, "provider": "recorded"} for name in self.names],
        }
        return parse_config(settings)

    @asynccontextmanager
    async def person(self, user: str, seed: int) -> AsyncIterator[Person]:
        """Open a copy of the installation for one new person."""
        config = self.config(f"copy-{user}-{seed}", seed)
        if (self.folder / "data").exists():
            shutil.copytree(self.folder / "data", config.data)
        clock = Clock(PERSON_FROM)
        async with Router.from_config(config, clock=clock) as router:
            yield Person(self, router, config, clock, user)
        shutil.rmtree(config.data)

    async def populate(self, world: str, rng: np.random.Generator) -> None:
        """Record thumbs of a crowd on answers of models drawn at random."""
        people = [draw_taste(self.answers, self.models, world, True, rng) for _ in range(CROWD_PEOPLE)]
        config, clock = self.config("data"), Clock(CROWD_FROM)
        async with Router.from_config(config, clock=clock) as router:
            crowd = [Person(self, router, config, clock, f"crowd {i}") for i in range(CROWD_PEOPLE)]
            for start in range(0, CROWD_LABELS, BATCH):
                clock.now = CROWD_FROM + start * DAY_S / CROWD_PEOPLE * 2
                turns = []
                for _ in range(BATCH):
                    i, p, k = (int(rng.integers(n)) for n in (CROWD_PEOPLE, len(self.answers.prompts), len(self.names)))
                    turns.append((i, p, k, (await crowd[i].ask(p, k))[0]))
                await learnt(router)
                for i, p, k, decision in turns:
                    liked = people[i].ratings[p, k] if rng.random() > RANDOM else 0.5
                    up = float(rng.random() < liked)
                    await router.feedback(decision, FeedbackKind.THUMB, up, identity=crowd[i].who)
            await learnt(router, copied=True)


@contextmanager
def installed(answers: Answers, models: Sequence[int]) -> Iterator[Home]:
    """Install in a temporary folder, in memory where there is one."""
    with tempfile.TemporaryDirectory(prefix="fitrouter-", dir=MEMORY) as folder:
        yield Home(Path(folder), answers, models)
