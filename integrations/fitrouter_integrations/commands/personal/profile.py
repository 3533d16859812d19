"""`fitrouter personal profile`: show, declare, export, approve, import, merge and erase a profile."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from fitrouter.config import load_config
from fitrouter.errors import ConfigError, InvalidRequest
from fitrouter.router import Router
from fitrouter.stores.audit_log import AuditLog, command_act
from fitrouter.stores.journal import digest_of
from fitrouter.types import Identity
from fitrouter_evaluators.personal import Profile, Profiles, approve_profile, merged_profiles, parsed_profile
from fitrouter_integrations.commands._files import as_json, replace_file, write_new
from fitrouter_integrations.commands._gateway import Tenant, Url, connect
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile, OneUser, Role, pair, verbs
from fitrouter_integrations.commands.lists import users

app = verbs("Show, declare, export, approve, import, merge and erase a person's portable profile.")


@app.command()
def show(
    user: OneUser, role: Role = None, config: ConfigFile = DEFAULT, url: Url = None, tenant: Tenant = None
) -> None:
    """Print the profile as JSON."""
    typer.echo(as_json(_shown(user, role, config, url, tenant)))


@app.command()
def export(
    file: Annotated[Path, typer.Argument(help="A new file.")],
    user: OneUser,
    role: Role = None,
    config: ConfigFile = DEFAULT,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Write the profile to a new file, for another installation; with texts that `content` keeps, not by --url."""
    write_new(file, as_json(_shown(user, role, config, url, tenant, contents=True)) + "\n", "FILE")


@app.command()
def approve(
    file: Annotated[Path, typer.Argument(help="An exported profile; the approval is written into it.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask first.")] = False,
) -> None:
    """Approve your profile: it describes you. An approval ends with any change of the file."""
    profile = msgspec.structs.replace(_read(file, changed=True), approved=None)
    if not yes:
        typer.echo(as_json(profile))
        typer.confirm("Does it describe you?", abort=True)
    replace_file(file, as_json(approve_profile(profile, time.time())) + "\n")
    typer.echo(f"approved: {file}")


@app.command()
def declare(
    user: OneUser,
    value: Annotated[list[str] | None, typer.Option(help="DIMENSION=VALUE, −1 (less) … 1 (more); repeatable.")] = None,
    say: Annotated[list[str] | None, typer.Option(help="A statement such as 'no bullet points'; repeatable.")] = None,
    goal: Annotated[list[str] | None, typer.Option(help="Goal of the user; repeatable.")] = None,
    priority: Annotated[
        list[str] | None, typer.Option(help="DIMENSION=FACTOR: how much more it counts than for everybody; repeatable.")
    ] = None,
    role: Role = None,
    config: ConfigFile = DEFAULT,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Declare preferences, goals or priorities, each of which replaces the earlier ones; the rest stays."""
    body = {
        "values": dict(pair(each, "--value") for each in value) if value else None,
        "statements": say or None,
        "goals": goal or None,
        "priorities": dict(pair(each, "--priority") for each in priority) if priority else None,
    }
    if not any(body.values()):
        raise InvalidRequest("profile: nothing to declare; give --value, --say, --goal or --priority")
    _declare(user, role, body, config, url, tenant)


@app.command()
def mark(
    user: OneUser,
    decision_id: Annotated[str, typer.Argument(help="Decision id, or the answer's id; none with --text.")] = "",
    good: Annotated[bool | None, typer.Option("--good/--bad", help="What it is an example of.")] = None,
    withdraw: Annotated[bool, typer.Option(help="Undo an earlier mark.")] = False,
    text: Annotated[Path | None, typer.Option(help="File of any answer, instead of a decision.")] = None,
    prompt: Annotated[str, typer.Option(help="Prompt that the text answers.")] = "",
    config: ConfigFile = DEFAULT,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Mark an answer as a good or bad example; it counts as a comparison with the average answer."""
    if (good is None) is not withdraw:
        raise InvalidRequest("profile: give --good, --bad or --withdraw")
    try:
        said = text.read_text(encoding="utf-8") if text is not None else ""
    except (OSError, ValueError) as error:
        raise ConfigError(f"--text: {str(text)!r} cannot be read: {error}") from None
    given = {"decision_id": decision_id, "prompt": prompt, "text": said}
    example = {"good": good, **{name: each for name, each in given.items() if each}}
    _declare(user, None, {"examples": [example]}, config, url, tenant)


@app.command()
def erase(
    user: OneUser,
    config: ConfigFile = DEFAULT,
    url: Url = None,
    tenant: Tenant = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask first.")] = False,
) -> None:
    """Erase a user and all that was logged of them, as `fitrouter users erase`."""
    users.erase(user, config=config, url=url, tenant=tenant, yes=yes)


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="An exported profile.")],
    user: OneUser,
    role: Role = None,
    config: ConfigFile = DEFAULT,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Import a profile: it replaces what the user declared here; feedback can overrule it."""
    _declare(user, role, {"profile": msgspec.to_builtins(_read(file))}, config, url, tenant)


@app.command()
def merge(
    files: Annotated[list[Path], typer.Argument(help="Exported profiles of one person, the latest last.")],
    out: Annotated[Path | None, typer.Option("--out", help="A new file instead of the standard output.")] = None,
) -> None:
    """Merge profiles of one person: later words win, learnt tastes by their precision."""
    text = as_json(merged_profiles([_read(file) for file in files]))
    typer.echo(text) if out is None else write_new(out, text + "\n", "--out")


def _shown(
    user: str, role: str | None, config: Path, url: str | None, tenant: str | None, *, contents: bool = False
) -> Profile:
    if url is not None or not contents:
        with connect(config, url, tenant=tenant) as gateway:
            return parsed_profile(gateway.call("GET", "/v1/profile", user=user, role=role))
    settings, who = load_config(config), Identity(tenant=tenant or Identity().tenant, user=user, role=role)
    with Router.offline(settings) as router:
        if router.people.keeps_contents:
            subject = asyncio.run(router.people.recall(who)).user or ""
            AuditLog(settings.data).note(command_act("profile export", tenant=who.tenant, user=digest_of(subject)))
        return asyncio.run(Profiles(router).show(who, contents=True))


def _declare(
    user: str, role: str | None, body: dict[str, Any], config: Path, url: str | None, tenant: str | None
) -> None:
    """Send a body of PUT /v1/profile, and print the resulting preferences."""
    body = {key: each for key, each in {"user": user, "role": role, **body}.items() if each is not None}
    with connect(config, url, tenant=tenant, started=True) as gateway:
        found = gateway.call("PUT", "/v1/profile", body)
    values = ", ".join(f"{name} {each:+.2f}" for name, each in found["declared"].items())
    typer.echo(f"{len(found['declared'])} preferences: {values}")
    for said, moved in found["moved"].items():
        typer.echo(f"{said}: " + ", ".join(f"{'more' if each > 0 else 'less'} {name}" for name, each in moved.items()))
    for said in found["topics"]:
        typer.echo(f"about a topic, which answers are compared with: {said}")
    for said in found["not_understood"]:
        reason = found["reasons"].get(said)
        typer.echo(f"moves no preference: {said}" + (f" ({reason})" if reason else ""))


def _read(file: Path, *, changed: bool = False) -> Profile:
    """Read the profile in a file; `changed` if it may have been changed after its approval."""
    try:
        found = msgspec.json.decode(file.read_bytes())
        if changed and isinstance(found, dict):
            found.pop("approved", None)
        return parsed_profile(found)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"{str(file)!r} cannot be read: {error}; `fitrouter personal profile export` writes one"
        ) from None
