"""`fitrouter profile`: a portable profile, shown, declared, exported, approved, imported, merged and erased."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from fitrouter.config import Config, load_config
from fitrouter.errors import ConfigError, InvalidRequest
from fitrouter.providers import Simulated
from fitrouter.router import Router
from fitrouter.serving.feedback import Declared
from fitrouter.stores.audit_log import AuditLog, command_act
from fitrouter.stores.journal import digest_of
from fitrouter.types import Identity
from fitrouter_evaluators.personal import Mark, Profile, Profiles, approve_profile, merged_profiles, parsed_profile
from fitrouter_integrations._http import call
from fitrouter_integrations.commands._files import as_json, replace_file, write_new
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile, pair, verbs
from fitrouter_integrations.commands.lists import users

app = verbs("Show, declare, export, approve, import, merge and erase a person's portable profile.")

User = Annotated[str, typer.Option(help="Whose; the user id that requests have.")]
Role = Annotated[str | None, typer.Option(help="Role of the user.")]
Url = Annotated[str | None, typer.Option(help="Ask a running gateway, such as http://127.0.0.1:8484.")]
Tenant = Annotated[str, typer.Option(help="Tenant of the user; with --url that of the key.")]


@app.command()
def show(
    user: User, role: Role = None, config: ConfigFile = DEFAULT, url: Url = None, tenant: Tenant = "default"
) -> None:
    """Print the profile as JSON."""
    typer.echo(as_json(_shown(user, role, config, url, tenant)))


@app.command()
def export(
    file: Annotated[Path, typer.Argument(help="A new file.")],
    user: User,
    role: Role = None,
    config: ConfigFile = DEFAULT,
    url: Url = None,
    tenant: Tenant = "default",
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
    user: User,
    value: Annotated[list[str] | None, typer.Option(help="DIMENSION=VALUE, −1 (less) … 1 (more); repeatable.")] = None,
    say: Annotated[list[str] | None, typer.Option(help="A statement such as 'no bullet points'; repeatable.")] = None,
    goal: Annotated[list[str] | None, typer.Option(help="Goal of the user; repeatable.")] = None,
    priority: Annotated[
        list[str] | None, typer.Option(help="DIMENSION=FACTOR: how much more it counts than for everybody; repeatable.")
    ] = None,
    role: Role = None,
    config: ConfigFile = DEFAULT,
    url: Url = None,
    tenant: Tenant = "default",
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
    user: User,
    decision_id: Annotated[str, typer.Argument(help="Decision id, or the answer's id; none with --text.")] = "",
    good: Annotated[bool | None, typer.Option("--good/--bad", help="What it is an example of.")] = None,
    withdraw: Annotated[bool, typer.Option(help="Undo an earlier mark.")] = False,
    text: Annotated[Path | None, typer.Option(help="File of any answer, instead of a decision.")] = None,
    prompt: Annotated[str, typer.Option(help="Prompt that the text answers.")] = "",
    config: ConfigFile = DEFAULT,
    url: Url = None,
    tenant: Tenant = "default",
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
    user: User,
    config: ConfigFile = DEFAULT,
    url: Url = None,
    tenant: Tenant = "default",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask first.")] = False,
) -> None:
    """Erase a user and all that was logged of them, as `fitrouter users erase`."""
    users.erase(user, config=config, url=url, tenant=tenant, yes=yes)


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="An exported profile.")],
    user: User,
    role: Role = None,
    config: ConfigFile = DEFAULT,
    url: Url = None,
    tenant: Tenant = "default",
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
    user: str, role: str | None, config: Path, url: str | None, tenant: str, *, contents: bool = False
) -> Profile:
    if url is not None:
        return parsed_profile(call("GET", url, "/v1/profile", identity={"user": user, "role": role}, timeout_s=60.0))
    settings, who = load_config(config), Identity(tenant=tenant, user=user, role=role)
    with Router.offline(settings) as router:
        if contents and router.people.keeps_contents:
            subject = asyncio.run(router.people.recall(who)).user or ""
            AuditLog(settings.data).note(command_act("profile export", tenant=tenant, user=digest_of(subject)))
        return asyncio.run(Profiles(router).show(who, contents=contents))


def _declare(user: str, role: str | None, body: dict[str, Any], config: Path, url: str | None, tenant: str) -> None:
    """Send a body of PUT /v1/profile to a gateway, or apply it in this process; print the resulting preferences."""
    body = {key: each for key, each in {"user": user, "role": role, **body}.items() if each is not None}
    if url is not None:
        found = call("PUT", url, "/v1/profile", body, timeout_s=60.0)
    else:
        found = msgspec.to_builtins(asyncio.run(_declare_here(load_config(config), body, tenant)))
        found["declared"] = found["values"]
    values = ", ".join(f"{name} {each:+.2f}" for name, each in found["declared"].items())
    typer.echo(f"{len(found['declared'])} preferences: {values}")
    for said in found["not_understood"]:
        typer.echo(f"moves no preference: {said}")


async def _declare_here(settings: Config, body: dict[str, Any], tenant: str) -> Declared:
    """Apply a body of PUT /v1/profile with a router in this process, beside any gateway. No model is called."""
    async with Router.from_config(settings, providers={name: Simulated({}) for name in settings.providers}) as router:
        profiles, who = Profiles(router), Identity(tenant=tenant, user=body["user"], role=body.get("role"))
        if "profile" in body:
            return await profiles.import_profile(who, parsed_profile(body["profile"]))
        return await profiles.declare(
            who,
            body.get("values"),
            body.get("statements"),
            goals=body.get("goals"),
            priorities=body.get("priorities"),
            examples=[msgspec.convert(each, Mark) for each in body.get("examples", ())],
        )


def _read(file: Path, *, changed: bool = False) -> Profile:
    """Read the profile in a file; `changed` if it may have been changed after its approval."""
    try:
        found = msgspec.json.decode(file.read_bytes())
        if changed and isinstance(found, dict):
            found.pop("approved", None)
        return parsed_profile(found)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{str(file)!r} cannot be read: {error}; `fitrouter profile export` writes one") from None
