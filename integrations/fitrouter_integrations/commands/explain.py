"""`fitrouter explain`: why a decision chose its model, from the journal or a running gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from fitrouter.errors import InvalidRequest, UnknownDecision
from fitrouter.routing.explanation import TERMS, Account, Explanation
from fitrouter.routing.explanation_text import PHRASES, odds
from fitrouter.stores.listing import ListedAnswer
from fitrouter_integrations.commands._files import as_json, write_json
from fitrouter_integrations.commands._gateway import Gateway, Url, connect, path_of
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile

_MODELS = 8
"""Models in the table of terms; more do not fit into 80 columns."""
_SMALL = 5e-4


def command(
    decision_id: Annotated[
        str | None, typer.Argument(help="Decision id, from the answer's header x-fitrouter-decision.")
    ] = None,
    last: Annotated[
        bool, typer.Option("--last", help="Instead of an id: the last decision, or that of --user.")
    ] = False,
    user: Annotated[str | None, typer.Option(help="With --last: the user who asked.")] = None,
    config: ConfigFile = DEFAULT,
    url: Url = None,
    now: Annotated[
        bool, typer.Option("--now", help="Compare the predictions logged with the decision with today's.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--json", help="Write JSON to this file; - for standard output.")] = None,
) -> None:
    """Explain why a decision chose its model, in sentences and in terms that add up, from the logged predictions."""
    if last is (decision_id is not None) or (user is not None and not last):
        raise InvalidRequest("explain: give either a decision id, or --last, with --user or without")
    with connect(config, url) as gateway:
        decision_id = decision_id or _last(gateway, user)
        told = gateway.call("GET", path_of("v1", "decisions", decision_id), now="1" if now else None)
    found = msgspec.convert(told["explanation"], Explanation)
    if out == Path("-"):
        typer.echo(as_json(found))
        return
    show(found, Console())
    write_json(found, out)


def _last(gateway: Gateway, user: str | None) -> str:
    """Return the id of the last decision, of all users or of one."""
    found = gateway.entries("/v1/decisions", ListedAnswer, user=user, last=1)
    if not found:
        raise UnknownDecision("explain: there is no decision yet; send a request first")
    return found[0].decision_id


# --- display ---


def show(found: Explanation, console: Console) -> None:
    """Print the sentences, then the tables behind them."""
    for sentence in found.sentences:
        console.print(sentence, markup=False, highlight=False)
    if found.models:
        for table in (_models(found), _terms(found), _features(found), _changes(found)):
            if table is not None:
                console.print()
                console.print(table, markup=False)


def _order(found: Explanation) -> list[Account]:
    """Sort the models by probability, the likeliest first."""
    return sorted(found.models, key=lambda account: (-(account.probability or 0.0), -(account.utility or 0.0)))


def _models(found: Explanation) -> Table:
    """Build the table of models with their full names; row numbers are the columns of `_terms`."""
    table = _table("models", "", "", "probability", "rating", "votes up")
    for i, a in enumerate(_order(found), start=1):
        votes = f"{a.votes_up} of {a.votes}" if a.votes else ""
        mark = " ←" if a.arm == found.chosen else ""
        table.add_row(str(i), f"{a.arm}{mark}", _odds(a.probability), _cell(a.rating), votes)
    return table


def _terms(found: Explanation) -> Table | None:
    """Build the table of utility terms: a row for each that is not 0, a column for each of the likeliest models."""
    models = _order(found)[:_MODELS]
    table = _table("expected utility by term", "", *(str(i) for i, _ in enumerate(models, start=1)))
    terms = [{term.name: term.value for term in account.terms} for account in models]
    for name, words in TERMS.items():
        if any(abs(each.get(name, 0.0)) >= _SMALL for each in terms):
            table.add_row(words, *(f"{each[name]:+.3f}" if name in each else "" for each in terms))
    rows = (
        ("expected utility", [_cell(a.utility) for a in models]),
        ("± (rating)", [_cell(a.sd) for a in models]),
        ("probability without user and role", [_odds(a.blind_probability) for a in models]),
        ("expected USD", [_usd(a) for a in models]),
        ("expected seconds", [_cell(a.latency_s, 2) for a in models]),
        ("probability of an answer", [_odds(a.availability) for a in models]),
        ("answers", [_cell(a.answers, 0) for a in models]),
        ("ratings of all users", [_cell(a.labels, 0) for a in models]),
    )
    for label, cells in rows:
        if any(cells):
            table.add_row(label, *cells)
    return table if table.rows else None


def _table(title: str, *columns: str) -> Table:
    """Create a table; columns without a title are left-aligned for texts, the others right-aligned for numbers."""
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column else "left", overflow="fold")
    return table


def _features(found: Explanation) -> Table | None:
    contrast = found.contrast
    if contrast is None:
        return None
    shown = [f for f in contrast.features if max(map(abs, (f.population, f.role, f.user, f.value))) >= 0.0005]
    if not shown:  # nothing is known of any of them yet
        return None
    title = f"effect of what {contrast.rival} writes, compared with {contrast.arm}"
    table = _table(title, "", "all users", "role", "this user", "total")
    for f in shown:
        words = PHRASES[f.name][f.difference < 0] if f.name in PHRASES else "all other properties of the text"
        table.add_row(words, *(f"{v:+.3f}" for v in (f.population, f.role, f.user, f.value)))
    return table


def _changes(found: Explanation) -> Table | None:
    """Build the table of predicted ratings at the time of the decision and now."""
    if found.today is None:
        return None
    today = {account.arm: account for account in found.today.models}
    table = _table("then and now", "", "rating then", "now", "up then", "now")
    for account in _order(found):
        votes = [f"{a.votes_up} of {a.votes}" for a in (account, today[account.arm])]
        table.add_row(account.arm, _cell(account.rating), _cell(today[account.arm].rating), *votes)
    return table


def _usd(a: Account) -> str:
    """Expected cost; of a model without a price what it is weighed as."""
    if not a.unpriced:
        return _cell(a.cost_usd, 6)
    return "not known" if a.cost_usd is None else f"{a.cost_usd:.6f} assumed"


def _odds(probability: float | None) -> str:
    return "" if probability is None else odds(probability)


def _cell(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}f}"
