"""`fitrouter feedback`: the last votes and remarks of users."""

from __future__ import annotations

import typer

from fitrouter.stores.listing import ListedFeedback
from fitrouter_integrations.commands._gateway import Tenant, Url, connect
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile, verbs
from fitrouter_integrations.commands.feedback import comment
from fitrouter_integrations.commands.lists import _source
from fitrouter_integrations.commands.lists._source import AsJson, Last, Model, Role, User
from fitrouter_integrations.commands.lists.decisions import voted

app = verbs("List the last votes and remarks; comment on an answer.", bare_help=False)


@app.callback(invoke_without_command=True)
def command(
    context: typer.Context,
    user: User = None,
    role: Role = None,
    model: Model = None,
    last: Last = 20,
    config: ConfigFile = DEFAULT,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """List the last votes, comments and remarks: when, whose, on which answer of which model."""
    if context.invoked_subcommand is not None:
        return
    with connect(config, url, tenant=tenant) as gateway:
        found = gateway.entries("/v1/feedback", ListedFeedback, user=user, role=role, model=model, last=last)
    empty = "no feedback" + (" of these" if user or role or model or tenant else " yet")
    _source.show(found, lambda: [line for one in found for line in _lines(one)], as_json, empty)


app.command("comment")(comment.command)


def _lines(one: ListedFeedback) -> list[str]:
    who = _source.who(one.user, one.subject, one.role, one.tenant)
    return _source.record(f"{_source.when(one.ts)}  {one.decision_id}", f"{who}: {one.model}", ", ".join(_facts(one)))


def _facts(one: ListedFeedback) -> list[str]:
    if one.value is None:
        moved = [f"{'more' if value > 0 else 'less'} {name} ({value:+.2g})" for name, value in one.understood.items()]
        return [f"{one.kind}: {', '.join(moved) or 'withdrawn, or a verdict on the whole'}"]
    found = [
        f"{one.kind} {one.value:g} of {one.scale[0]:g} to {one.scale[1]:g}" if one.scale else voted(one.kind, one.value)
    ]
    found += [f"dimension {one.dimension}"] if one.dimension != "overall" else []
    return found + ["asked"] * one.asked + ["replaced by a later vote"] * one.replaced
