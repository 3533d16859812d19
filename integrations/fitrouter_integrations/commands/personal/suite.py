"""`fitrouter personal suite`: generate a personal test suite, have people validate it, and run models on it."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fitrouter.config import Config, load_config
from fitrouter.errors import ConfigError
from fitrouter.providers import Recorded, build_providers
from fitrouter.router import Router
from fitrouter.stores.figures import Money, many
from fitrouter.types import Identity
from fitrouter_evaluators.personal.filters import Filters
from fitrouter_evaluators.personal.suite import (
    ANCHORS,
    Generator,
    Ledger,
    ModelResult,
    Models,
    PairJudge,
    Prompt,
    Runner,
    Suite,
    agreements,
    blind,
    decoded,
    estimated,
    imported,
    results,
    with_mark,
    with_pairs,
    with_prompts,
    written,
    written_prompts,
)
from fitrouter_evaluators.personal.suite.generate import TURNED, WRITTEN
from fitrouter_evaluators.personal.suite.pairs import from_pool, from_recorded
from fitrouter_integrations.commands._files import as_json, read_file, refuse_existing, replace_file, write_new
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile, MaxPrice, MinContext, User, verbs
from fitrouter_integrations.commands._text import WIDTH, metric_lines, printable, wrapped

app = verbs("Generate a personal test suite, have people validate it, and run models on it.")

_CHOICES = {"1": "first", "2": "second", "3": "same"}
_WORDS = {
    "factuality": "Which answer has fewer factual errors?",
    "relevance": "Which answer keeps closer to what was asked?",
    "usefulness": "Which answer is more useful?",
    "fit": "Which answer do you prefer?",
}
Tenant = Annotated[str, typer.Option(help="Tenant of the user.")]
Role = Annotated[str | None, typer.Option(help="Role of the user; alone, the suite of the role.")]
Answers = Annotated[Path | None, typer.Option(help="Recorded answers, Parquet or JSONL with prompt, model, response.")]
Judge = Annotated[
    str | None, typer.Option(help="A configured model that writes prompts and pairs, checks them, and judges.")
]
Limit = Annotated[float, typer.Option(min=0.0, help="Maximum USD to spend.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask before money is spent.")]
AskAgain = Annotated[
    bool, typer.Option("--ask-again", help="Make the calls again that were in progress when a run was killed.")
]


@app.command()
def generate(
    file: Annotated[Path, typer.Argument(help="Suite to write, JSON lines; it must not exist.")],
    user: User = None,
    role: Role = None,
    prompts: Annotated[Path | None, typer.Option(help="Further prompts, one a line.")] = None,
    own: Annotated[
        int, typer.Option(min=0, max=200, help="Maximum number of prompts from the person's own requests, if kept.")
    ] = 20,
    answers: Answers = None,
    pairs: Annotated[int, typer.Option(min=0, max=200, help="Maximum number of contrast pairs.")] = 40,
    pool: Annotated[bool, typer.Option(help="Whether prompts and pairs of the pool that ships are among them.")] = True,
    turned: Annotated[
        int, typer.Option("--tasks", min=0, max=40, help="Number of tasks over several turns, from the pool.")
    ] = TURNED,
    judge: Judge = None,
    new: Annotated[
        int, typer.Option("--written", min=0, max=40, help="Maximum number of prompts that --judge writes.")
    ] = WRITTEN,
    limit: Limit = 0.5,
    yes: Yes = False,
    ask_again: AskAgain = False,
    config: ConfigFile = DEFAULT,
    tenant: Tenant = "default",
) -> None:
    """Write a suite from a person's profile: own tasks, probes, anchors and contrast pairs. It names nobody."""
    refuse_existing(file, "FILE")
    settings, who = load_config(config), Identity(tenant=tenant, user=user, role=role)
    recorded = None if answers is None else Recorded(answers)
    given = [] if prompts is None else read_file(prompts, "--prompts").decode("utf-8", "replace").splitlines()

    async def made() -> Suite:
        with Router.offline(settings) as router:
            tasks = await _tasks(router, who, own)
            suite = await Generator(router).suite(
                who, tasks=tasks, given=given, recorded=recorded, pairs=pairs, pool=pool, turned=turned
            )
        if judge is None:
            return suite
        with Ledger(_calls(file), ask_again=ask_again) as ledger:
            models = _models(settings, ledger, limit, None)
            prices = models.card(judge).prices
            most = (2 * pairs + bool(new)) * (prices.input * 1500 + prices.output * 2300) / 1e6
            told = f"{many(new, 'prompt')} and {many(2 * pairs, 'pair')}"
            _agree(f"{told} written by {judge} {_most(most, models, [judge])}", most, limit, yes)
            try:
                asked = PairJudge(models, judge, suite)
                suite = with_prompts(suite, await written_prompts(suite, asked, new) if new else [])
                found = await written(suite, asked, 2 * pairs)
            finally:
                await models.aclose()
            paid = Money.of(ledger.usd, ledger.paid, ledger.unpriced)
            failed = f"; {asked.failed} could not be written" if asked.failed else ""
            typer.echo(f"{len(found)} of {2 * pairs} written pairs were accepted{failed}; cost: {paid}", err=True)
        others = [
            *(from_pool(suite.rubric) if pool else ()),
            *(from_recorded(suite.rubric, recorded) if recorded else ()),
        ]
        return with_pairs(suite, found, pairs) if len(found) >= pairs else with_pairs(suite, [*found, *others], pairs)

    suite = asyncio.run(made())
    write_new(file, suite.encoded().decode(), "FILE")
    told = f"{len(suite.prompts)} prompts and {len(suite.pairs)} contrast pairs written to {file}"
    if suite.surface is not None:
        told += f"; length and format tell {suite.surface:.0%} of the pairs apart"
    typer.echo(told)


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="Own evaluation set: JSON, JSON lines, CSV, or promptfoo's YAML.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Suite to write, JSON lines; it must not exist.")],
    user: User = None,
    role: Role = None,
    anchors: Annotated[
        bool, typer.Option("--anchors", help="Add the twelve anchor prompts, so that scores can be equated.")
    ] = False,
    config: ConfigFile = DEFAULT,
    tenant: Tenant = "default",
) -> None:
    """Import an evaluation set as a suite; with --user or --role it has their rubric. What is not read is named."""
    refuse_existing(out, "--out")
    found = imported(read_file(file, "FILE"), file.suffix.lower().removeprefix("."))
    rubric, statements = dict[str, float](), tuple[str, ...]()
    if user or role:
        with Router.offline(load_config(config)) as router:
            who = Identity(tenant=tenant, user=user, role=role)
            rubric, statements = asyncio.run(Generator(router).rubric(who))
    more = [Prompt(id=f"anchor-{n}", text=text, source="anchor") for n, text in enumerate(ANCHORS, 1) if anchors]
    prompts = (*more, *found.prompts)
    suite = Suite(rubric=rubric, statements=statements, role=role, prompts=prompts)
    write_new(out, decoded(suite.encoded()).encoded().decode(), "--out")
    for each in found.left_out:
        typer.echo(printable(each), err=True)
    checks = Counter(each.check for each in found.prompts if each.check)
    checked = f"{checks.total()} with answers to check" + "".join(f", {n} {name}" for name, n in checks.items())
    kept = sum(bool(each.reference) and each.check is None for each in found.prompts)
    told = (
        f"{many(len(found.prompts), 'prompt')} written to {out}: {checked}; {kept} with a reference that is kept alone"
    )
    typer.echo(f"{told}; {many(len(found.left_out), 'note')} above" if found.left_out else told)


@app.command()
def validate(
    file: Annotated[Path, typer.Argument(help="A suite; marks are kept in it after each answer.")],
    rater: Annotated[str, typer.Option(help="Name or number of the rater.")] = "1",
    most: Annotated[int, typer.Option("--max", min=1, help="Maximum number of questions in this session.")] = 10_000,
) -> None:
    """Compare the answers of contrast pairs without knowing which is which; κ of all raters is kept in the suite."""
    suite, console = decoded(read_file(file, "FILE")), Console(highlight=False)
    try:
        for number, asked in enumerate(blind(suite, rater), 1):
            if number > most:
                break
            console.rule(f"question {number}")
            console.print(printable(asked.prompt), style="bold", markup=False)
            for place, text in (("1", asked.first), ("2", asked.second)):
                console.rule(f"answer {place}", style="dim", align="left")
                console.print("\n".join(map(printable, text.splitlines())), markup=False)
            console.print(f"{_WORDS[asked.dimension]} 1 first · 2 second · 3 no difference · q stop", markup=False)
            if (choice := _choice(console)) is None:
                break
            suite = with_mark(decoded(read_file(file, "FILE")), rater, asked, choice)  # others may be marking it too
            replace_file(file, suite.encoded().decode())
    except (KeyboardInterrupt, EOFError):
        console.print("\nInterrupted. Your answers are kept; the same command goes on.")
        raise typer.Exit(130) from None
    for name, each in agreements(suite.pairs).items():
        if each.kappa is not None:
            kappa = f"κ {each.kappa:.2f}"
        else:
            kappa = "no κ, as no two raters differ" if each.raters > 1 else "with one rater there is no κ"
        console.print(f"{name}: {each.marks} marks, {each.agrees:.0%} as the suite claims; {kappa}", markup=False)


@app.command("run")
def run_(
    file: Annotated[Path, typer.Argument(help="A suite.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Results to write, JSON lines; it must not exist.")],
    user: User = None,
    role: Role = None,
    models: Annotated[
        str | None, typer.Option(help="Names of configured models, with commas; without it, all.")
    ] = None,
    max_price: MaxPrice = None,
    min_context: MinContext = None,
    answers: Answers = None,
    judge: Judge = None,
    user_model: Annotated[
        str | None,
        typer.Option(help="A configured model that plays the user of tasks over several turns; default: --judge's."),
    ] = None,
    limit: Limit = 0.5,
    yes: Yes = False,
    ask_again: AskAgain = False,
    as_lines: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    config: ConfigFile = DEFAULT,
    tenant: Tenant = "default",
) -> None:
    """Ask models the suite's prompts, and rank them by the person's reward model, rubric and judge.

    A run that was interrupted or killed goes on where it was; answers are kept in OUT.calls.db and paid once.
    """
    refuse_existing(out, "--out")
    settings, who = load_config(config), Identity(tenant=tenant, user=user, role=role)
    suite, recorded = decoded(read_file(file, "FILE")), None if answers is None else Recorded(answers)

    async def ran() -> list[ModelResult]:
        with ExitStack() as stack:
            ledger = stack.enter_context(Ledger(_calls(out), ask_again=ask_again))
            router = stack.enter_context(Router.offline(settings))
            asker = _models(settings, ledger, limit, recorded)
            names = models.split(",") if models else list(asker.cards)
            filters = Filters(max_price=max_price, min_context=min_context)
            given = {each.name for each in settings.models if "context_window" in each.model_fields_set}
            names, left = filters.models({name: asker.card(name) for name in names}, {*names} - given)
            for name, why in left.items():
                typer.echo(f"{name} is left out: {why}", err=True)
            player = (user_model or judge) if suite.tasks and recorded is None else None
            calls, usd = estimated(suite, asker, names, judge, player)
            if calls:
                said = _most(usd, asker, [*names, *filter(None, (judge, player))])
                _agree(f"{many(calls, 'call')} of {many(len(names), 'model')} {said}", usd, limit, yes)
            if ledger.lost:
                typer.echo(
                    f"{len(ledger.lost)} calls were in progress when a run was killed, and may have been paid; their "
                    "prompts are left out. --ask-again makes them again",
                    err=True,
                )
            bar = stack.enter_context(
                Progress(
                    TextColumn("asking"),
                    BarColumn(),
                    MofNCompleteColumn(),
                    TimeRemainingColumn(),
                    console=Console(stderr=True),
                    disable=not sys.stderr.isatty(),
                )
            )
            task = bar.add_task("asking")
            runner = Runner(
                router, asker, lambda done, of: bar.update(task, completed=done, total=of), settings.encoder
            )
            try:
                judging = None if judge is None else PairJudge(asker, judge, suite)
                return await runner.run(suite, who, names, judging, player)
            finally:
                await asker.aclose()

    found = asyncio.run(ran())
    write_new(out, results.encoded(found).decode(), "--out")
    typer.echo(as_json(found) if as_lines else "\n".join(suite_table(found)))


async def _tasks(router: Router, who: Identity, most: int) -> list[str]:
    """Return the latest prompts of a person's requests, where content is kept."""
    if not most or not who.user:
        return []
    listed = await asyncio.to_thread(router.lists.answers, 1000, tenant=who.tenant, user=who.user)
    found: dict[str, None] = {}
    for each in listed:
        kept = await router.content(each.decision_id, who.tenant)
        if kept is not None and kept.prompt.strip():
            found.setdefault(kept.prompt, None)
        if len(found) == most:
            break
    return list(found)


def _models(settings: Config, ledger: Ledger, limit: float, recorded: Recorded | None) -> Models:
    """Return the configured models; with recorded answers none of their providers is needed."""
    cards = {card.name: card for card in settings.cards()}
    try:
        providers = build_providers(settings)
    except ConfigError:
        if recorded is None:
            raise
        providers = {}
    return Models(cards, providers, ledger, limit_usd=limit, recorded=recorded)


def _calls(out: Path) -> Path:
    out.parent.mkdir(parents=True, exist_ok=True)
    return out.with_name(out.name + ".calls.db")


def _most(usd: float, models: Models, names: Sequence[str]) -> str:
    """Say what calls of models cost at most, where their prices are known."""
    unpriced = [name for name in dict.fromkeys(names) if not models.card(name).prices.known]
    if unpriced:
        return f"cost an unknown amount: no price is configured for {', '.join(unpriced)}"
    return f"cost at most about USD {usd:.2f}"


def _agree(said: str, usd: float, limit: float, yes: bool) -> None:
    """Show the cost of a run and ask for confirmation.

    Raises:
        ConfigError: it is above the limit, or the person declines.
    """
    if usd > limit:
        raise ConfigError(f"{said}, above the limit of USD {limit:g}; raise --limit, or ask fewer models or prompts")
    typer.echo(f"{said}.", err=True)
    if not yes and not typer.confirm("Ask them?", err=True):
        raise ConfigError("no model was asked")


def _choice(console: Console) -> str | None:
    """Read a choice from standard input; None to stop."""
    while True:
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        if line.strip().lower() == "q":
            return None
        if line.strip() in _CHOICES:
            return _CHOICES[line.strip()]
        console.print(f"{line.strip()[:40]!r} is not one of 1, 2, 3, q.", markup=False)


def suite_table(found: Sequence[ModelResult]) -> list[str]:
    """Format a suite's results as lines of at most 80 columns, and say why the first model is first."""
    heads = f"{'model':<26} {'wins':>5} {'80% interval':>14} {'rubric':>7} {'judge':>6} {'base':>5}"
    lines = [f"{'':>2}  {heads} {'rank of all':>11}"]
    for each in found:
        interval = f"{each.low:.0%} to {each.high:.0%}"
        judge = "" if each.judge is None else f"{each.judge:+.2f}"
        lines.append(
            f"{each.rank:>2}  {printable(each.model)[:26]:<26} {each.wins:>5.0%} {interval:>14} {each.rubric:>7.0%} "
            f"{judge:>6} {each.base:>5.0%} {each.population_rank:>11}"
        )
    turned = [(each.model, each.turns) for each in found if each.turns is not None]
    if turned:
        lines += [f"    {'over several turns':<26} {'wins':>5} {'80% interval':>14} {'tasks':>7} {'base':>13}"]
    for name, turns in turned:
        interval = f"{turns.low:.0%} to {turns.high:.0%}"
        lines.append(
            f"    {printable(name)[:26]:<26} {turns.wins:>5.0%} {interval:>14} {turns.tasks:>7} {turns.sound:>13.0%}"
        )
    said = [f"{each.model} {'; it '.join(each.why)}." for each in found[:1] if each.why]
    said += [
        f"{each.model} gave {each.right} of {each.checked} answers that were checked right."
        for each in found
        if each.checked
    ]
    said += [f"{each.model} left {many(each.failed, 'call')} without an answer." for each in found if each.failed]
    said += [f"{many(each.unjudged, 'comparison')} got no verdict." for each in found[:1] if each.unjudged]
    said += [
        f"{turns.user} did not write {many(turns.unplayed, 'message')} of the user; follow-ups stand for them."
        for _, turns in turned[:1]
        if turns.unplayed
    ]
    said += [
        f"The judge counts {each.trust:.0%} beside the reward model." for each in found[:1] if each.judge is not None
    ]
    return [line[:WIDTH].rstrip() for line in lines] + metric_lines(found) + wrapped(said)
