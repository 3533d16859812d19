"""`fitrouter users`: the known users, and what is stored of one: shown, exported, erased."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from fitrouter.config import load_config
from fitrouter.errors import ConfigError
from fitrouter.routing.explanation_text import FEATURES
from fitrouter.stores.audit_log import AuditLog, command_act
from fitrouter.stores.contents import ContentStore, KeptContent
from fitrouter.stores.erasure import Erased
from fitrouter.stores.figures import many
from fitrouter.stores.identities import merge
from fitrouter.stores.journal import digest_of
from fitrouter.stores.listing import MOST, ListedAnswer, ListedFeedback, ListedUser, ShownUser
from fitrouter.types import Identity
from fitrouter_evaluators.personal import Profile, parsed_profile
from fitrouter_integrations._http import url_of
from fitrouter_integrations.commands._files import as_json as text_of
from fitrouter_integrations.commands._files import write_new
from fitrouter_integrations.commands._gateway import Gateway, Tenant, Url, connect
from fitrouter_integrations.commands._options import (
    DEFAULT,
    ConfigFile,
    Domain,
    MaxPrice,
    MinContext,
    OneUser,
    Role,
    User,
)
from fitrouter_integrations.commands.lists import _source
from fitrouter_integrations.commands.lists._source import AsJson, Last

app = typer.Typer(
    help="List the known users; show, export and erase what is stored of one.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class UserView(ShownUser, frozen=True, kw_only=True):
    """Logged data and profile of a user."""

    profile: Profile


@app.callback()
def users(
    context: typer.Context,
    last: Last = 20,
    config: ConfigFile = DEFAULT,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """List the known users, those first that were met last."""
    if context.invoked_subcommand is not None:  # `users list` is this function, too
        return
    with connect(config, url, tenant=tenant) as gateway:
        found = gateway.entries("/v1/users", ListedUser, last=last)
    _source.show(found, lambda: [line for one in found for line in _listed(one)], as_json, "no users yet")


app.command("list")(users)


def _listed(one: ListedUser) -> list[str]:
    name = one.user + (f" (tenant {one.tenant})" if one.tenant != "default" else "")
    seen = f", last {_source.when(one.last)} (UTC)" if one.last else ""
    counts = _counts(one) + seen
    return _source.record(name, counts, f"subject {one.subject}")


@app.command()
def show(
    user: OneUser,
    config: ConfigFile = DEFAULT,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Show what is known of a user: answers, votes, tastes, and the subject by which the log names them."""
    with connect(config, url, tenant=tenant) as gateway:
        found = _shown(gateway, user)
    typer.echo(text_of(found) if as_json else "\n".join(_lines(found)))


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of what is stored of a user."""

    known: UserView
    answers: Sequence[ListedAnswer] = ()
    """The last 1000."""
    feedback: Sequence[ListedFeedback] = ()
    """The last 1000 votes and remarks."""
    contents: Sequence[KeptContent] = ()
    """Questions and answers, where `content` keeps them; none over --url."""
    events: Sequence[Any] = ()
    """All events of the journal, with arrays of float32 in base64; none over --url."""


@app.command()
def export(
    file: Annotated[Path, typer.Argument(help="A new file.")],
    user: OneUser,
    config: ConfigFile = DEFAULT,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Write all that is stored of a user to a new file, as JSON."""
    with connect(config, url, tenant=tenant or (None if url else Identity().tenant)) as gateway:
        found = Export(
            known=_shown(gateway, user),
            answers=gateway.entries("/v1/decisions", ListedAnswer, user=user, last=MOST),
            feedback=gateway.entries("/v1/feedback", ListedFeedback, user=user, last=MOST),
        )
    if url is None:
        known = found.known
        with _source.opened(config) as (folder, journal, identities):
            AuditLog(folder).note(command_act("user export", tenant=known.tenant, user=digest_of(known.subject)))
            rows = [row for subject in (known.subject, *known.aliases) for row in journal.of(subject)]
            contents = ContentStore(folder, journal, identities)
            kept = [*contents.of([row.event.id for row in rows]), *contents.comments(known.subject, MOST)]
        events = [{"seq": row.seq, **msgspec.to_builtins(row.event)} for row in rows]
        found = msgspec.structs.replace(found, contents=kept, events=events)
    write_new(file, text_of(found) + "\n", "FILE")
    typer.echo(f"{file}: {_counts(found.known)}")


@app.command()
def link(
    user: User = None,
    role: Role = None,
    config: ConfigFile = DEFAULT,
    url: Url = None,
    tenant: Tenant = None,
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="End all links, sessions and shares of the user or role instead.")
    ] = False,
    share: Annotated[
        str | None,
        typer.Option(help="Show these sections to whoever has the link: name, ranking, tastes, worth, with commas."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=90, help="For which a share lasts.")] = 7,
    domain: Domain = None,
    max_price: MaxPrice = None,
    min_context: MinContext = None,
) -> None:
    """Make a one-time link to a user's own page; with --share, one to parts of the report of a user or a role."""
    with connect(config, url, tenant=tenant) as gateway:
        if withdraw:
            ended = gateway.call("DELETE", "/v1/links", user=user, role=None if user else role)["links"]
            typer.echo(f"ended links and sessions of {user or role}: {ended}")
            return
        shown = {"domain": domain, "max_price": max_price, "min_context": min_context}
        body = {} if share is None else {"sections": share.split(","), "days": days, **shown}
        found = gateway.call("POST", "/v1/links", body, user=user, role=role)
    place, page = url or url_of(load_config(config)), "me" if share is None else "shared"
    typer.echo(f"{place.rstrip('/')}/{page}#{found['url'].partition('#')[2]}")


@app.command()
def erase(
    user: OneUser,
    config: ConfigFile = DEFAULT,
    url: Url = None,
    tenant: Tenant = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask first.")] = False,
) -> None:
    """Erase a user from every file; what was learnt is rebuilt without them. A gateway may be running."""
    if not yes:
        typer.confirm(f"Erase all that is stored of {user!r} for good?", abort=True)
    with connect(config, url, tenant=tenant) as gateway:
        found = msgspec.convert(gateway.call("DELETE", "/v1/profile", user=user, timeout_s=120.0), Erased)
    if not found.subjects:
        typer.echo(f"nothing is known of {user!r}; `fitrouter users` lists who is known")
    else:
        typer.echo(f"erased {user}: {many(found.events, 'event')}")
    if found.unfinished:
        typer.echo(f"not finished: {found.unfinished}. A gateway tries again; or give the command again")
    if found.unfinished or not found.subjects:
        raise typer.Exit(1)


@app.command()
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="File of identities, or postgresql://USER@HOST/NAME.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="The same; what is there is kept.")],
) -> None:
    """Copy who the users are, and the keys of their texts, between SQLite and PostgreSQL. Stop the gateways first.

    Users whom both know keep their subject in TO, and that of FROM becomes an alias. May be called again.
    """
    if "://" not in source and not Path(source).is_file():
        raise ConfigError(f"there is no file of identities {source!r}")
    with _source.open_rows(source) as first, _source.open_rows(target) as second:
        done = merge(first, second)
        typer.echo(f"{second.name}: {done.subjects} subjects, {done.added} of them copied now")
    if "://" not in source:
        typer.echo(f"next: delete {source} and its copy once {target.partition('?')[0]} works: no erasure reaches them")


def _counts(one: ListedUser | ShownUser) -> str:
    return ", ".join((many(one.requests, "request"), many(one.votes, "vote"), many(one.remarks, "remark")))


def _shown(gateway: Gateway, user: str) -> UserView:
    (one,) = gateway.entries("/v1/users", ShownUser, user=user)
    profile = parsed_profile(gateway.call("GET", "/v1/profile", user=user))
    return UserView(**msgspec.structs.asdict(one), profile=profile)


def _lines(one: UserView) -> list[str]:
    found = [f"user: {one.user} (tenant {one.tenant})"]
    found.append(f"subject: {one.subject}" + "".join(f", {alias}" for alias in one.aliases))
    found.append(f"in the log: {_source.when(one.first) or 'nothing'} to {_source.when(one.last) or 'now'} (UTC)")
    found += [f"roles: {', '.join(one.roles)}"] if one.roles else []
    found.append(_counts(one))
    found += [
        f"model: {each.model}: {many(each.answers, 'answer')}, {many(each.up, 'vote')} up, {each.down} down"
        for each in one.models
    ]
    declared = ", ".join(f"{name} {value:+.2f}" for name, value in one.declared.items())
    found.append(f"declared: {declared or 'nothing'}")
    found += [f"declared topic: {topic}" for topic in one.profile.topics]
    found += _tastes(one.profile)
    return [line for part in found for line in _source.record(part)]


def _tastes(profile: Profile) -> Iterator[str]:
    """Describe the learnt tastes that exceed their standard error, the strongest first."""
    sure = {name: each for name, each in profile.learnt.items() if abs(each.mean) > each.sd}
    for name, each in sorted(sure.items(), key=lambda item: -abs(item[1].mean)):
        does = FEATURES[name][each.mean < 0]
        yield f"taste: likes it more than others do when an answer {does} ({each.mean:+.3f} ± {each.sd:.3f})"
    if not sure:
        yield "tastes: none is known beyond its error yet"
