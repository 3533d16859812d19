"""`fitrouter keys`: create, list, rotate and revoke the API keys of a gateway. A running one follows within seconds."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from fitrouter.config import load_config
from fitrouter.errors import ConfigError
from fitrouter.stores.audit_log import AuditLog, command_act
from fitrouter.stores.keys import FILE, SCOPES, StoredKey, change_keys, digest_of, new_key, read_keys
from fitrouter_integrations._identity import name_of
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile, verbs

app = verbs("Create, list, rotate and revoke API keys. A running gateway follows within seconds.")

Name = Annotated[str, typer.Argument(help="Name of the key.")]
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_USUAL, _OWN = "chat,feedback,read", "chat,feedback"
_ONCE = "this is shown once, and stored nowhere; give it to the client"


@app.command()
def create(
    name: Name,
    tenant: Annotated[
        str | None, typer.Option(help="Tenant of its requests; by default the installation's own, `default`.")
    ] = None,
    user: Annotated[
        str, typer.Option(help="The one user that it speaks for, as requests name them; it opens their page, too.")
    ] = "",
    scopes: Annotated[
        str | None,
        typer.Option(help=f"What it may do, of {', '.join(SCOPES)}.", show_default=f"{_USUAL}; {_OWN} of a user"),
    ] = None,
    expires: Annotated[str | None, typer.Option(help="Time until it expires, such as 90d, 12h or 30m.")] = None,
    requests_per_minute: Annotated[float | None, typer.Option(min=0.001, help="Limit in each worker.")] = None,
    usd_per_day: Annotated[float | None, typer.Option(min=1e-6, help="Limit of the cost per day (UTC).")] = None,
    config: ConfigFile = DEFAULT,
) -> None:
    """Create a key and print it. Once there is a key, requests without one are refused."""
    given = scopes if scopes is not None else _OWN if user else _USUAL
    wanted = tuple(dict.fromkeys(filter(None, given.replace(" ", "").split(","))))
    if unknown := [scope for scope in wanted if scope not in SCOPES]:
        raise ConfigError(f"--scopes: unknown scope {unknown[0]!r}; allowed are {', '.join(SCOPES)}")
    if not name.strip() or len(name) > 100 or tenant == "":
        raise ConfigError("give a name of 1 to 100 characters, and a tenant that is not empty")
    if user and (more := [scope for scope in wanted if scope not in _OWN.split(",")]):
        raise ConfigError(f"--scopes: {more[0]!r} is of more than one user; a key with --user may have {_OWN}")
    now, (key_id, key) = time.time(), new_key()
    made = StoredKey(
        id=key_id,
        name=name,
        tenant=tenant,
        user=name_of(user, "--user") or "",
        scopes=wanted,
        digest=digest_of(key),
        created=now,
        expires=None if expires is None else now + _seconds(expires, "--expires"),
        requests_per_minute=requests_per_minute,
        usd_per_day=usd_per_day,
    )
    settings = load_config(config)

    def add(keys: Sequence[StoredKey]) -> Sequence[StoredKey]:
        if any(known.name == name and known.digest for known in keys) or name in {k.name for k in settings.server.keys}:
            raise ConfigError(f"there is a key {name!r} already; rotate or revoke it, or choose another name")
        _note(settings.data, "create", made)
        return [*(known for known in keys if known.name != name), made]

    change_keys(settings.data / FILE, add)
    typer.echo(_ONCE, err=True)
    typer.echo(key)


@app.command("list")
def show(config: ConfigFile = DEFAULT) -> None:
    """List the keys: name, tenant, scopes, limits and state."""
    settings, now = load_config(config), time.time()
    for key in settings.server.keys:
        typer.echo(f"{key.name}  tenant {key.tenant}  from the environment variable {key.key_env}")
    for stored in read_keys(settings.data / FILE):
        limits = [
            f"{value:g} {unit}"
            for value, unit in ((stored.requests_per_minute, "requests/min"), (stored.usd_per_day, "USD/day"))
            if value is not None
        ]
        state = "revoked" if not stored.digest else "expired" if not stored.opens(now) else ""
        if not state:
            state = "valid" if stored.expires is None else f"expires {_date(stored.expires)}"
        whose = [f"user {stored.user}"] if stored.user else []
        what = [f"tenant {stored.tenant or 'default'}", *whose, ",".join(stored.scopes), *limits, state]
        typer.echo("  ".join([stored.name, f"sk-fr-{stored.id}-…", *what, f"created {_date(stored.created)}"]))


@app.command()
def rotate(
    name: Name,
    keep: Annotated[str, typer.Option(help="Time for which the present secret stays valid, too.")] = "0s",
    config: ConfigFile = DEFAULT,
) -> None:
    """Give a key a new secret and print it; everything else about it stays."""
    until, key = time.time() + _seconds(keep, "--keep"), ""

    def renew(stored: StoredKey) -> StoredKey:
        nonlocal key
        _, key = new_key(stored.id)
        return msgspec.structs.replace(stored, digest=digest_of(key), previous=stored.digest, previous_until=until)

    _change(config, name, "rotate", renew)
    typer.echo(_ONCE, err=True)
    typer.echo(key)


@app.command()
def revoke(name: Name, config: ConfigFile = DEFAULT) -> None:
    """Revoke a key, with every secret that it has. Its name stays in the list."""
    _change(config, name, "revoke", lambda stored: msgspec.structs.replace(stored, digest="", previous=""))
    typer.echo(f"revoked {name!r}; running gateways refuse it within seconds")


def _change(config: ConfigFile, name: str, act: str, change: Callable[[StoredKey], StoredKey]) -> None:
    settings = load_config(config)

    def changed(keys: Sequence[StoredKey]) -> Sequence[StoredKey]:
        if not any(stored.name == name and stored.digest for stored in keys):
            if any(key.name == name for key in settings.server.keys):
                raise ConfigError(f"the key {name!r} is in an environment variable; change it there, and restart")
            raise ConfigError(f"there is no valid key {name!r}; `fitrouter keys list` shows them")
        _note(settings.data, act, next(stored for stored in keys if stored.name == name))
        return [change(stored) if stored.name == name else stored for stored in keys]

    change_keys(settings.data / FILE, changed)


def _note(folder: Path, act: str, key: StoredKey) -> None:
    """Enter a change of a key in the audit log."""
    about = {"name": key.name, "id": key.id, "tenant": key.tenant or "default", "scopes": ",".join(key.scopes)}
    AuditLog(folder).note(command_act(f"key {act}", **about))


def _seconds(text: str, option: str) -> float:
    if not (found := re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)([smhd])", text.strip())):
        raise ConfigError(f"{option}: got {text!r}; give a number and a unit, such as 90d, 12h or 30m")
    return float(found[1]) * _UNITS[found[2]]


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
