"""`fitrouter explain`: what moved a decision, out of the journal or from a running gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from fitrouter.config import Config, load_config
from fitrouter.errors import UnknownDecision
from fitrouter.router import Router
from fitrouter.routing.explain import explain
from fitrouter.routing.explanation import TERMS, Explanation
from fitrouter.stores.journal import Journal
from fitrouter.types import Decision, Event
from fitrouter_integrations._http import call
from fitrouter_integrations._offline import journal_at
from fitrouter_integrations.commands._files import as_json, write_json

_FEATURES = 6
_SMALL = 5e-4


def command(
    decision_id: Annotated[str, typer.Argument(help="From the answer's header x-fitrouter-decision.")],
    config: Annotated[
        Path, typer.Option("--config", "-c", help="The configuration: it says where the journal is.")
    ] = Path("fitrouter.yaml"),
    data: Annotated[
        Path | None, typer.Option(help="Folder of the journal, without a configuration: nothing is split.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Ask this gateway instead, such as http://127.0.0.1:8484.")] = None,
    then: Annotated[
        bool, typer.Option(help="Split the fit by what was known then, not now: folds the journal up to there.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--json", help="Write everything here; - for standard output.")] = None,
) -> None:
    """Say why this model: what moved a decision, in words and in numbers that add up."""
    if url is not None:
        found = _asked(url, decision_id)
    elif data is not None:
        with journal_at(data) as journal:
            found = explain(story(journal, decision_id))
    else:
        found = _looked_up(load_config(config), decision_id, then)
    if out == Path("-"):
        typer.echo(as_json(found))
        return
    show(found, Console())
    write_json(found, out)


def _asked(url: str, decision_id: str) -> Explanation:
    """What a gateway says; one that cannot explain in numbers says it in a sentence."""
    told = call("GET", url, f"/v1/decisions/{decision_id}")
    if isinstance(told, dict) and "explanation" in told:
        return msgspec.convert(told["explanation"], Explanation)
    return Explanation(
        decision_id=decision_id,
        draw_id=told["draw_id"],
        mode=told["mode"],
        chosen=told["chosen"],
        propensity=told["propensity"],
        sentences=(told["why"],),
    )


def _looked_up(config: Config, decision_id: str, then: bool) -> Explanation:
    """Explain a decision from the journal of a configuration."""
    with Router.offline(config) as router:
        return asyncio.run(router.explain(decision_id, tenant=None, as_decided=then))


def story(journal: Journal, decision_id: str) -> list[Event]:
    """The events of a decision, the decision first, with the draw that it lives on.

    Raises:
        UnknownDecision: there is no such decision in the journal.
    """
    events = [row.event for row in journal.of(decision_id)]
    decision = next((e for e in events if isinstance(e, Decision) and e.id == decision_id), None)
    if decision is None:
        raise UnknownDecision(
            f"there is no logged decision {decision_id!r}; the id stands in the answer's 'x-fitrouter-decision' header"
        )
    rest = [event for event in events if event is not decision]
    if decision.draw_id != decision.id:
        rest += [row.event for row in journal.of(decision.draw_id) if isinstance(row.event, Decision)]
    return [decision, *rest]


# --- on the screen ---


def show(found: Explanation, console: Console) -> None:
    """Sentences, then the sums behind them."""
    for sentence in found.sentences:
        console.print(sentence, markup=False, highlight=False)
    if found.models:
        console.print()
        console.print(_sums(found), markup=False)
    if found.contrast is not None and found.contrast.features:
        console.print()
        console.print(_features(found), markup=False)


def _sums(found: Explanation) -> Table:
    """A column a model, the likeliest first; a row a term."""
    models = sorted(found.models, key=lambda account: (-(account.probability or 0.0), -(account.utility or 0.0)))
    table = Table(title="expected utility, and what it is made of", box=None)
    table.add_column("")
    for account in models:
        table.add_column(f"{account.arm} ←" if account.arm == found.chosen else account.arm, justify="right")
    terms = [{term.name: term.value for term in account.terms} for account in models]
    for name, words in TERMS.items():
        if any(abs(each.get(name, 0.0)) >= _SMALL for each in terms):
            table.add_row(words, *(f"{each[name]:+.3f}" if name in each else "" for each in terms))
    rows: tuple[tuple[str, list[Any]], ...] = (
        ("expected utility", [_cell(account.utility) for account in models]),
        ("± (fit)", [_cell(account.sd) for account in models]),
        ("probability", [_cell(account.probability) for account in models]),
        ("without user and role", [_cell(account.blind_probability) for account in models]),
        ("expected USD", [_cell(account.cost_usd, 6) for account in models]),
        ("expected seconds", [_cell(account.latency_s, 2) for account in models]),
        ("P(answers)", [_cell(account.availability) for account in models]),
    )
    for label, cells in rows:
        if any(cells):
            table.add_row(label, *cells)
    return table


def _features(found: Explanation) -> Table:
    contrast = found.contrast
    assert contrast is not None
    table = Table(title=f"why {contrast.rival}'s text is worth more or less than {contrast.arm}'s", box=None)
    for column in ("feature", "difference", "everybody", "role", "user", "together"):
        table.add_column(column, justify="left" if column == "feature" else "right")
    for f in contrast.features[:_FEATURES]:
        table.add_row(f.name, f"{f.difference:+.2f}", *(f"{v:+.3f}" for v in (f.population, f.role, f.user, f.value)))
    return table


def _cell(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}f}"
