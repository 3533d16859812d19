"""`fitrouter explain`: why a decision chose its model, from the journal or a running gateway."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from fitrouter.config import load_config
from fitrouter.errors import ConfigError, UnknownDecision
from fitrouter.router import Router
from fitrouter.routing.explain import explain
from fitrouter.routing.explanation import TERMS, Explanation
from fitrouter.stores.journal import Journal, SqliteJournal
from fitrouter.types import Decision, Event
from fitrouter_integrations._http import call
from fitrouter_integrations.commands._files import as_json, write_json
from fitrouter_integrations.commands._options import DEFAULT

_FEATURES = 6
_SMALL = 5e-4


def command(
    decision_id: Annotated[str, typer.Argument(help="Decision id, from the answer's header x-fitrouter-decision.")],
    config: Annotated[
        Path, typer.Option("--config", "-c", help="Configuration file, which locates the journal.")
    ] = DEFAULT,
    data: Annotated[
        Path | None, typer.Option(help="Journal folder, without a configuration; ratings are not split into terms.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Ask a running gateway, such as http://127.0.0.1:8484.")] = None,
    then: Annotated[
        bool, typer.Option(help="Use the state at the time of the decision; replays the journal up to it.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--json", help="Write JSON to this file; - for standard output.")] = None,
) -> None:
    """Explain why a decision chose its model, in sentences and in terms that add up."""
    if url is not None:
        found = _asked(url, decision_id)
    elif data is not None:
        path = data if data.is_file() else data / "journal.db"
        if not path.is_file():
            raise ConfigError(f"--data: there is no journal {str(path)!r}; give the folder of a gateway's data")
        with contextlib.closing(SqliteJournal(path)) as journal:
            found = explain(story(journal, decision_id))
    else:
        with Router.offline(load_config(config)) as router:
            found = asyncio.run(router.explain(decision_id, tenant=None, as_decided=then))
    if out == Path("-"):
        typer.echo(as_json(found))
        return
    show(found, Console())
    write_json(found, out)


def _asked(url: str, decision_id: str) -> Explanation:
    """The explanation by a gateway; an old one gives a sentence instead of numbers."""
    found = call("GET", url, f"/v1/decisions/{decision_id}")
    if isinstance(found, dict) and "explanation" in found:
        return msgspec.convert(found["explanation"], Explanation)
    return Explanation(
        decision_id=decision_id,
        draw_id=found["draw_id"],
        mode=found["mode"],
        chosen=found["chosen"],
        propensity=found["propensity"],
        sentences=(found["why"],),
    )


def story(journal: Journal, decision_id: str) -> list[Event]:
    """The events of a decision, the decision first, with the decision whose draw it reuses.

    Raises:
        UnknownDecision: the journal has no such decision.
    """
    events = [row.event for row in journal.of(decision_id)]
    decision = next((e for e in events if isinstance(e, Decision) and e.id == decision_id), None)
    if decision is None:
        raise UnknownDecision(
            f"there is no logged decision {decision_id!r}; the answer's 'x-fitrouter-decision' header has the id"
        )
    rest = [event for event in events if event is not decision]
    if decision.draw_id != decision.id:
        rest += [row.event for row in journal.of(decision.draw_id) if isinstance(row.event, Decision)]
    return [decision, *rest]


# --- display ---


def show(found: Explanation, console: Console) -> None:
    """Print the sentences, then the tables behind them."""
    for sentence in found.sentences:
        console.print(sentence, markup=False, highlight=False)
    if found.models:
        console.print()
        console.print(_sums(found), markup=False)
    if found.contrast is not None and found.contrast.features:
        console.print()
        console.print(_features(found), markup=False)


def _sums(found: Explanation) -> Table:
    """A column for each model, the likeliest first; a row for each term."""
    models = sorted(found.models, key=lambda account: (-(account.probability or 0.0), -(account.utility or 0.0)))
    table = Table(title="expected utility by term", box=None)
    table.add_column("")
    for account in models:
        table.add_column(f"{account.arm} ←" if account.arm == found.chosen else account.arm, justify="right")
    terms = [{term.name: term.value for term in account.terms} for account in models]
    for name, words in TERMS.items():
        if any(abs(each.get(name, 0.0)) >= _SMALL for each in terms):
            table.add_row(words, *(f"{each[name]:+.3f}" if name in each else "" for each in terms))
    rows: tuple[tuple[str, list[Any]], ...] = (
        ("expected utility", [_cell(account.utility) for account in models]),
        ("± (rating)", [_cell(account.sd) for account in models]),
        ("probability", [_cell(account.probability) for account in models]),
        ("without user and role", [_cell(account.blind_probability) for account in models]),
        ("expected USD", [_cell(account.cost_usd, 6) for account in models]),
        ("expected seconds", [_cell(account.latency_s, 2) for account in models]),
        ("availability", [_cell(account.availability) for account in models]),
    )
    for label, cells in rows:
        if any(cells):
            table.add_row(label, *cells)
    return table


def _features(found: Explanation) -> Table:
    contrast = found.contrast
    assert contrast is not None
    table = Table(title=f"predicted effect of the text of {contrast.rival} compared with {contrast.arm}", box=None)
    for column in ("feature", "difference", "all users", "role", "user", "total"):
        table.add_column(column, justify="left" if column == "feature" else "right")
    for f in contrast.features[:_FEATURES]:
        table.add_row(f.name, f"{f.difference:+.2f}", *(f"{v:+.3f}" for v in (f.population, f.role, f.user, f.value)))
    return table


def _cell(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}f}"
