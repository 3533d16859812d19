"""`fitrouter bench rewardbench`: the served score on files of the shape of Personalized RewardBench."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from fitrouter.errors import ConfigError
from fitrouter_evaluators.bench.rewardbench import DomainAccuracy, Mean, Ratings, accuracy, candidates, others
from fitrouter_evaluators.datasets import Pair, personalized_rewardbench
from fitrouter_evaluators.personal import LONGEST_HISTORY, LONGEST_TEXT, MOST_HISTORY, MOST_TEXTS, PromptAnswers
from fitrouter_integrations.commands._files import write_json
from fitrouter_integrations.commands._gateway import Gateway, Url, connect
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile, JsonFile
from fitrouter_integrations.commands._text import printable
from fitrouter_integrations.commands.personal.score import scores_of

_NAMED = 10
"""Most rows that are named where they cannot be read; `--json` has all."""


def command(
    files: Annotated[list[Path], typer.Argument(help="Files or folders in the published shape: Parquet, JSONL, JSON.")],
    n: Annotated[int, typer.Option("--n", min=2, max=MOST_TEXTS, help="Candidates of best-of-n.")] = 16,
    seed: Annotated[int, typer.Option(min=0, help="Of the candidates that are drawn.")] = 0,
    rubric: Annotated[
        bool, typer.Option(help="An oracle: the rubric's aspects, which are withheld from scores, instead of posts.")
    ] = False,
    split: Annotated[str, typer.Option(help="Split that is read of folders.")] = "test",
    config: ConfigFile = DEFAULT,
    url: Url = None,
    out: JsonFile = None,
) -> None:
    """Personalized RewardBench: accuracy of POST /v1/score with a person's posts, without, and with another's."""
    pairs, bad = personalized_rewardbench.read(files, split, rubric=rubric)
    for row in bad[:_NAMED]:
        typer.echo(printable(f"{row.file}, line {row.line}: {row.reason}"), err=True)
    if bad:
        typer.echo(f"{len(bad)} rows cannot be read and are left out; --json lists them", err=True)
    if not pairs:
        raise ConfigError("no file has a row that can be read; give files in the shape of Personalized RewardBench")
    histories = [_history(pair, rubric=rubric) for pair in pairs]
    with connect(config, url, fresh=True) as gateway:
        found = accuracy(pairs, _ratings(gateway, pairs, histories, candidates(pairs, n, seed)))
    Console(width=max(Console().width, 150)).print(_table(found, n, rubric=rubric), markup=False)
    typer.echo(f"published: {personalized_rewardbench.PUBLISHED:.2%}, the best reward model there, without posts")
    result = {"published": personalized_rewardbench.PUBLISHED, "rubric": rubric, "n": n, "seed": seed}
    write_json(result | {"domains": msgspec.to_builtins(found), "bad_rows": msgspec.to_builtins(bad)}, out)


def _history(pair: Pair, *, rubric: bool) -> tuple[str, ...]:
    """The texts of a pair's posts, as many as a call takes, or its rubric's aspects as wishes."""
    if rubric:
        return tuple(f"I like {aspect}." for aspect in pair.extra["rubric"])
    texts = [post["text"][:LONGEST_TEXT] for post in pair.extra["profile"][:MOST_HISTORY]]
    while sum(map(len, texts)) > LONGEST_HISTORY:
        texts.pop()
    return tuple(texts)


def _ratings(
    gateway: Gateway,
    pairs: Sequence[Pair],
    histories: Sequence[tuple[str, ...]],
    answers: Sequence[tuple[str, ...]],
) -> list[Ratings]:
    """Score the candidates of each pair without and with the posts, and its two answers with another person's."""

    def rated(items: list[PromptAnswers]) -> list[list[float]]:
        return [[each["dimensions"]["overall"]["mean"] for each in item] for item in scores_of(gateway, items)]

    prompts = [pair.prompt for pair in pairs]
    without = rated([PromptAnswers(*each) for each in zip(prompts, answers, strict=True)])
    own = rated([PromptAnswers(*each) for each in zip(prompts, answers, histories, strict=True)])
    theirs = others(pairs)
    compared = zip(prompts, answers, theirs, strict=True)
    other = iter(rated([PromptAnswers(p, a[:2], histories[place]) for p, a, place in compared if place is not None]))
    found = [[] if place is None else next(other) for place in theirs]
    return [Ratings(*each) for each in zip(without, own, found, strict=True)]


def _table(found: Sequence[DomainAccuracy], n: int, *, rubric: bool) -> Table:
    by = "rubric (oracle)" if rubric else "posts"
    table = Table(title="accuracy of the served score on pairs, with 95% intervals", box=None)
    table.add_column("domain", no_wrap=True)
    columns = ["pairs", "without", f"with {by}", "difference", "of another", "own − another's"]
    for column in (*columns, f"best of {n} without", f"with {by}", "chance"):
        table.add_column(column, justify="right")
    for row in found:
        table.add_row(
            row.domain,
            str(row.pairs),
            *(_share(each) for each in (row.without, row.history)),
            _points(row.gain),
            _share(row.other),
            _points(row.personal),
            *(_share(each) for each in (row.best_without, row.best_history)),
            f"{row.chance:.1%}",
        )
    return table


def _share(mean: Mean | None) -> str:
    return "–" if mean is None else f"{mean.mean:.1%} ({mean.low:.1%} … {mean.high:.1%})"


def _points(mean: Mean | None) -> str:
    return "–" if mean is None else f"{100 * mean.mean:+.1f} ({100 * mean.low:+.1f} … {100 * mean.high:+.1f})"
