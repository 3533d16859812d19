"""`fitrouter personal score`: score any texts with a person's reward model."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from fitrouter.errors import ConfigError, InvalidRequest
from fitrouter_evaluators.personal import LONGEST_HISTORY, MOST_HISTORY, MOST_TEXTS, PromptAnswers
from fitrouter_integrations.commands._gateway import Gateway, Tenant, Url, connect
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile, Role
from fitrouter_integrations.commands._text import printable

LONGEST_FILE = 64 * 2**20
"""Bytes of a file."""
_MOST = (MOST_TEXTS, MOST_HISTORY, LONGEST_HISTORY)
"""Answers, texts of history and their characters, of a call."""


def command(
    file: Annotated[
        str,
        typer.Argument(help="JSONL with prompt, response (or answers), history; or any other text file: one answer."),
    ],
    user: Annotated[
        str | None, typer.Option(help="User whose reward model is used; default: the population's.")
    ] = None,
    role: Role = None,
    prompt: Annotated[str, typer.Option(help="Prompt that a text file answers.")] = "",
    config: ConfigFile = DEFAULT,
    url: Url = None,
    tenant: Tenant = None,
    out: Annotated[bool, typer.Option("--json", help="Print one JSON object per answer.")] = False,
) -> None:
    """Score texts from anywhere as a person would rate them: rating, 80% interval, and reasons. Nothing is logged."""
    items = _read(file, prompt)
    who = {name: value for name, value in (("user", user), ("role", role)) if value is not None}
    with connect(config, url, tenant=tenant) as gateway:
        for item, answers in zip(items, scores_of(gateway, items, **who), strict=True):
            for number, scored in enumerate(answers):
                if out:
                    row = {"prompt": item.prompt, "answer": number, **scored}
                    typer.echo(msgspec.json.encode(row).decode())
                    continue
                typer.echo(scored["words"])
                if len(answers) > 1:
                    typer.echo(
                        f"  answer {number + 1} of {len(answers)}: the best with probability {scored['best']:.0%}"
                    )
                if scored["heard"]:
                    typer.echo(f"  by the history: {' | '.join(map(printable, scored['heard']))}")
                for name, value in scored["metrics"].items():
                    typer.echo(f"  {name}: {value:+.2f}")
                for name, each in scored["dimensions"].items():
                    if name != "overall":
                        typer.echo(f"  {name}: {each['mean']:.2f} ({each['low']:.2f} to {each['high']:.2f})")


def scores_of(gateway: Gateway, items: Iterable[PromptAnswers], **who: str) -> Iterator[list[dict[str, Any]]]:
    """Score items by as few calls as take them; yields the scores of each item's answers."""
    for batch in _batches(items):
        found = gateway.call("POST", "/v1/score", {**who, "items": [msgspec.to_builtins(item) for item in batch]})
        yield from (item["answers"] for item in found["items"])


def _batches(items: Iterable[PromptAnswers]) -> Iterator[list[PromptAnswers]]:
    """Group items so that each group has at most as many answers, and as much history, as one call takes."""
    batch: list[PromptAnswers] = []
    taken = [0, 0, 0]
    for item in items:
        size = [len(item.answers), len(item.history), sum(map(len, item.history))]
        taken = [before + more for before, more in zip(taken, size, strict=True)]
        if batch and any(now > most for now, most in zip(taken, _MOST, strict=True)):
            yield batch
            batch, taken = [], size
        batch.append(item)
    if batch:
        yield batch


class _Row(msgspec.Struct):
    response: str | None = None
    answer: str | None = None
    prompt: str = ""
    answers: tuple[str, ...] = ()
    history: tuple[str, ...] = ()


def _read(file: str, prompt: str) -> list[PromptAnswers]:
    """Read the items of a file, or of standard input for `-`.

    Raises:
        ConfigError: it cannot be read.
        InvalidRequest: a line of a JSONL file is wrong, with its number.
    """
    try:
        data = sys.stdin.buffer.read(LONGEST_FILE + 1) if file == "-" else Path(file).read_bytes()
        if len(data) > LONGEST_FILE:
            raise ConfigError(f"{file!r} is larger than {LONGEST_FILE >> 20} MiB; split it")
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file!r} cannot be read: {error}; give a UTF-8 text or JSONL file") from None
    if not file.endswith((".jsonl", ".ndjson")) and not (file == "-" and text.lstrip().startswith("{")):
        return [PromptAnswers(prompt, (text,))]
    return [_row(line, number) for number, line in enumerate(text.splitlines(), 1) if line.strip()]


def _row(line: str, number: int) -> PromptAnswers:
    try:
        row = msgspec.json.decode(line, type=_Row)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"line {number}: {error}; give an object with prompt and response, or answers") from None
    given = row.answers or tuple(text for text in (row.response, row.answer) if text is not None)
    if not given or len(given) > MOST_TEXTS:
        raise InvalidRequest(f"line {number}: got {len(given)} answers; give response, or 1 to {MOST_TEXTS} answers")
    return PromptAnswers(row.prompt, given, row.history)
