"""`fitrouter personal quiz`: a few comparisons that find out which model and style fit a person."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from fitrouter.config import Config, load_config
from fitrouter.context.features import estimate_tokens
from fitrouter.errors import AllModelsFailed, BudgetExhausted, ConfigError, Unavailable
from fitrouter.providers import Recorded
from fitrouter.router import Router
from fitrouter.serving.spending import spent
from fitrouter.stores.figures import Money, many
from fitrouter.types import ModelCard, Request, Usage
from fitrouter_evaluators.personal import ASKED
from fitrouter_integrations.commands._files import as_json, for_owner
from fitrouter_integrations.commands._gateway import Gateway, Tenant, Url, connect, path_of
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile, OneUser, Role

PROMPTS = (
    "Explain how a vaccine works.",
    "How should I prepare for a job interview?",
    "What is the difference between a virus and a bacterium?",
    "Suggest a plan for three days in Rome.",
    "My laptop has become slow. What can I do?",
    "Write a short message that turns down an invitation to a wedding.",
    "Is it better to rent or to buy a home?",
    "Explain recursion to somebody who has just begun to program.",
    "How can I sleep better?",
    "What were the main causes of the First World War?",
    "Give me ideas for a quick dinner with rice and eggs.",
    "A colleague takes credit for my work. How do I bring it up?",
    "What does inflation mean for my savings?",
    "Compare electric cars and cars with petrol engines.",
    "How do I start running without getting hurt?",
    "Write a function that checks whether a text is a palindrome.",
)
"""Prompts of `--ask` if no file gives others."""
TOKENS = 1000
"""Longest answer of `--ask`, in tokens."""
KEYS = {"1": "first", "2": "second", "3": "same", "4": "bad", "5": "skip", "u": "undo", "q": "stop"}
HELP = "1 first · 2 second · 3 no preference · 4 neither is good · 5 skip · u undo · q stop"


def command(
    user: OneUser,
    role: Role = None,
    config: ConfigFile = DEFAULT,
    url: Url = None,
    tenant: Tenant = None,
    answers: Annotated[
        Path | None, typer.Option(help="Recorded answers, Parquet or JSONL with prompt, model, response.")
    ] = None,
    most: Annotated[
        int | None, typer.Option("--max", min=1, max=50, help="Maximum number of questions, instead of the setting.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Start anew although a quiz is unfinished.")] = False,
    ask: Annotated[
        bool, typer.Option("--ask", help="First ask every model the prompts, once, and keep its answers.")
    ] = False,
    prompts: Annotated[Path | None, typer.Option(help="Prompts for --ask, one a line.")] = None,
    limit: Annotated[float, typer.Option(min=0.0, help="Maximum USD that --ask may spend.")] = 0.5,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before --ask spends money.")] = False,
    out: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON; questions go to standard error.")
    ] = False,
) -> None:
    """Find out in at most ten questions which model and style fit a person. Answers are kept after each question."""
    console = Console(stderr=out, highlight=False)
    start = {"user": user, "role": role, "questions": most, "again": again}
    try:
        settings: dict[str, Any] = {}
        if url is None:
            quiz = load_config(config).quiz
            settings["quiz"] = quiz.model_copy(
                update={"questions": most or quiz.questions, "answers": answers or quiz.answers}
            )
        elif ask or answers is not None:
            raise ConfigError("--url: the gateway has its own recorded answers; leave --ask and --answers out")
        if ask:
            _ask(load_config(config), _lines(prompts), limit, console, yes=yes)
        with connect(config, url, tenant=tenant, started=True, **settings) as gateway:
            found = _converse(gateway, start, console)
    except (KeyboardInterrupt, EOFError):
        console.print("\nInterrupted. Your answers are kept; the same command goes on.")
        raise typer.Exit(130) from None
    for sentence in found["sentences"]:
        console.print(sentence, markup=False)
    if out:
        typer.echo(as_json(found))


# --- conversation ---


def _converse(gateway: Gateway, start: dict[str, Any], console: Console) -> dict[str, Any]:
    """Ask questions until the quiz ends; returns its last progress."""
    begin = {name: value for name, value in start.items() if value is not None}
    progress: dict[str, Any] = gateway.call("POST", "/v1/quiz", begin)
    while (question := progress["question"]) is not None:
        console.rule(f"question {question['number']} of at most {question['of']}")
        console.print(question["prompt"], markup=False, style="bold")
        for place, name in (("1", "first"), ("2", "second")):
            console.rule(f"answer {place}", style="dim", align="left")
            console.print(question[name], markup=False)
        console.rule(style="dim")
        choice = _choice(console, first=question["number"] == 1)
        body = {"user": start["user"], "question": question["number"], "choice": choice}
        progress = gateway.call("POST", path_of("v1", "quiz", progress["id"]), body)
    console.rule()
    return progress


def _choice(console: Console, *, first: bool) -> str:
    """Read a choice from standard input, asking again until there is one.

    Raises:
        EOFError: the input has ended.
    """
    while True:
        console.print(f"Which answer do you prefer? {HELP}", markup=False)
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        choice = KEYS.get(line.strip().lower(), line.strip().lower())
        if choice in KEYS.values() and not (first and choice == "undo"):
            return choice
        console.print(f"{line.strip()[:40]!r} is not one of {', '.join(KEYS)}.", markup=False)


# --- fresh answers ---


def _lines(file: Path | None) -> tuple[str, ...]:
    if file is None:
        return PROMPTS
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--prompts: {str(file)!r} cannot be read: {error}") from None
    found = tuple(dict.fromkeys(line.strip() for line in lines if line.strip()))
    if not found:
        raise ConfigError(f"--prompts: {str(file)!r} has no prompts; write one a line")
    return found


def _ask(settings: Config, prompts: tuple[str, ...], limit: float, console: Console, *, yes: bool) -> None:
    """Ask every model every prompt that it has not answered yet, and append the answers to the file in the data folder.

    A model that does not answer is not asked again; the quiz compares the others.

    Raises:
        ConfigError: it would cost more than the limit, or the person declines.
        BudgetExhausted: the installation's own budget is spent.
    """
    file = settings.data / ASKED
    known = Recorded(file) if file.is_file() and file.stat().st_size else None
    cards = settings.cards()
    missing = [(p, c) for p in prompts for c in cards if known is None or c.target not in known.answers(p)]
    if not missing:
        return
    usd = sum(_cost(prompt, card) for prompt, card in missing)
    priced = [_cost(prompt, card) for prompt, card in missing if card.prices.known]
    money = Money.of(sum(priced), len(priced), len(missing) - len(priced))
    said = f"{many(len(missing), 'answer')} of {many(len(cards), 'model')}; estimated cost: {money}"
    if usd > limit:
        raise ConfigError(f"--ask: {said}, above the limit of USD {limit:.2f}; raise --limit, or give fewer --prompts")
    console.print(f"{said}.", markup=False)
    if not yes and not typer.confirm("Ask them?", err=True):
        raise ConfigError("--ask: no model was asked")
    with asyncio.Runner() as runner:
        router = Router.from_config(settings)
        try:
            runner.run(router.start())
            with open(file, "a", encoding="utf-8", opener=for_owner) as kept:
                spent, silent = 0.0, set[str]()
                for prompt, card in missing:
                    if card.name in silent:
                        continue
                    if spent >= limit > 0.0:
                        raise ConfigError(f"--ask: the limit of USD {limit:.2f} is spent; the answers so far are kept")
                    request = Request(
                        messages=({"role": "user", "content": prompt},), model=card.name, params={"max_tokens": TOKENS}
                    )
                    try:
                        answer = runner.run(router.complete(request))
                    except BudgetExhausted:  # no model can be asked
                        raise
                    except (AllModelsFailed, Unavailable) as error:
                        silent.add(card.name)
                        console.print(f"{card.name} is left out, as it does not answer: {error}", markup=False)
                        continue
                    spent += _cost(prompt, card) if answer.cost_usd is None else answer.cost_usd
                    text = str(answer.completion.message.get("content") or "")
                    row = {"prompt": prompt, "model": card.target, "response": text}
                    kept.write(msgspec.json.encode(row).decode() + "\n")
                    kept.flush()
        finally:
            runner.run(router.aclose())


def _cost(prompt: str, card: ModelCard) -> float:
    """Upper bound of an answer's cost in USD."""
    tokens = estimate_tokens(({"role": "user", "content": prompt},), {})
    return spent(card.prices, Usage(prompt_tokens=tokens, completion_tokens=TOKENS))
