"""`fitrouter audits role`: whether personalising a role changes what it must not, and how fast it can be stopped."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from fitrouter.assemble import registry_of
from fitrouter.config import Config, load_config
from fitrouter.errors import ConfigError, InvalidRequest
from fitrouter.identity import canonical_role
from fitrouter.router import Router
from fitrouter.routing.variants import expand
from fitrouter.stores.audits import KEY, OBJECT, audit_file
from fitrouter.stores.signing import signed, signing_key, verified
from fitrouter.types import Identity, Request
from fitrouter_evaluators.personal.audit.page import audit_page
from fitrouter_evaluators.personal.audit.probes import Probe
from fitrouter_evaluators.personal.audit.swaps import DRILL_S, TASTES, Audit, AuditReply, Drill, audited
from fitrouter_integrations._http import call, url_of
from fitrouter_integrations.commands._files import write_private
from fitrouter_integrations.commands._gateway import Url
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile

_STORES = ("journal.db", "identities.db")
_PATIENCE_S = 10.0


def command(
    role: Annotated[str, typer.Option(help="Role to audit.")],
    config: ConfigFile = DEFAULT,
    url: Url = None,
    repeats: Annotated[int, typer.Option(min=2, max=10, help="Times that each person asks each question.")] = 2,
    out: Annotated[bool, typer.Option("--json", help="Print the signed JSON.")] = False,
) -> None:
    """Ask as twenty people, in a copy of the stores, and drill stop, pin and override against the running gateway.

    Writes the signed audit and its page into the data folder; the exit code is 1 if it did not pass.
    """
    settings = load_config(config)
    name = canonical_role(role)
    if not name:
        raise InvalidRequest(f"--role: {role!r} has no name; give the role that requests have")
    drills = run_drills(url or url_of(settings))
    found = asyncio.run(audit_on_copy(settings, name, drills, repeats))
    path, document = write_audit(settings.data, found)
    typer.echo(msgspec.json.format(msgspec.json.encode(document)).decode() if out else _text(found, path))
    if not found.passed:
        raise typer.Exit(1)


async def audit_on_copy(settings: Config, role: str, drills: list[Drill], repeats: int) -> Audit:
    """Audit a role with a separate router over copies of the stores, so that the originals do not change."""
    settings.journal_file()  # of a database there is no copy yet: it says how to make one
    with tempfile.TemporaryDirectory(prefix="fitrouter-audit-") as folder:
        for store in _STORES:
            if (settings.data / store).is_file():
                _copied(settings.data / store, Path(folder) / store)
        free = settings.policy.model_copy(update={"high_stakes_roles": ()})
        copy = settings.model_copy(update={"data": Path(folder), "policy": free, "share": 1.0})
        async with Router.from_config(copy) as router:
            people = [Identity(user=f"audit:{i}", role=role) for i in range(len(TASTES))]
            for who, taste in zip(people, TASTES, strict=True):
                await router.declare(who, taste)
            await router.settled()

            async def ask(person: int, probe: Probe) -> AuditReply:
                params = {"tools": [probe.tool]} if probe.tool else {}
                message = {"role": "user", "content": probe.prompt}
                answer = await router.complete(Request(messages=(message,), params=params, identity=people[person]))
                said = answer.completion.message
                found = said.get("tool_calls") or ()
                calls = tuple((str(each["function"]["name"]), str(each["function"]["arguments"])) for each in found)
                return AuditReply(str(said.get("content") or ""), calls)

            registry = registry_of(expand(settings.cards()))
            return await audited(ask, role=role, registry=registry, ts=time.time(), drills=drills, repeats=repeats)


def _copied(source: Path, target: Path) -> None:
    """Copy a SQLite file that another process may be writing."""
    try:
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as old,
            closing(sqlite3.connect(target)) as new,
        ):
            old.backup(new)
    except sqlite3.Error as error:
        raise ConfigError(f"{str(source)!r} cannot be copied: {error}") from None


def write_audit(data: Path, found: Audit) -> tuple[Path, dict[str, Any]]:
    """Write the signed audit and its page; returns the file and the document."""
    path = audit_file(data, found.role)
    path.parent.mkdir(parents=True, exist_ok=True)
    document = signed({"object": OBJECT, **msgspec.to_builtins(found)}, signing_key(data / KEY))
    write_private(path, msgspec.json.format(msgspec.json.encode(document)), "audit")
    write_private(path.with_suffix(".html"), audit_page(found, verified(document)).encode(), "audit")
    return path, document


def run_drills(url: str) -> list[Drill]:
    """Try stop, override and pin on a running gateway, each undone at once, and time until decisions follow.

    Raises:
        NoGateway: nothing answers there.
        NotAuthorized: the key is not that of an administrator.
    """
    names = [each["id"] for each in call("GET", url, "/v1/models")["data"] if not each["id"].startswith("fitrouter/")]
    if not names:
        raise ConfigError(f"--url: the gateway at {url} lists no models")

    def plan(model: str = "fitrouter/auto") -> dict[str, Any]:
        message = {"role": "user", "content": "Drill of an audit."}
        found = call("POST", url, "/v1/plans", {"model": model, "messages": [message]})
        return dict(call("GET", url, f"/v1/decisions/{found['about']['decision_id']}"), order=found["order"])

    def steer(**settings: Any) -> str:
        return str(call("POST", url, "/v1/policy", {"action": "set", "settings": settings})["config_hash"])

    def restore() -> None:
        call("POST", url, "/v1/policy", {"action": "restore"})

    def timed(step: str, followed: Callable[[], bool], began: float) -> Drill:
        while not (done := followed()) and time.monotonic() - began < _PATIENCE_S:
            time.sleep(0.02)
        seconds = time.monotonic() - began
        return Drill(step=step, seconds=seconds, passed=done and seconds <= DRILL_S)

    found = []
    began = time.monotonic()
    stopped = steer(personal=False)
    try:
        found.append(timed("stop", lambda: plan()["policy"]["config_hash"] == stopped, began))
    finally:
        restore()
    began = time.monotonic()
    steer(force=names[-1])
    try:
        found.append(
            timed("override", lambda: (p := plan())["mode"] == "forced" and p["order"][0]["model"] == names[-1], began)
        )
    finally:
        restore()
    began = time.monotonic()
    found.append(
        timed("pin", lambda: (p := plan(names[0]))["mode"] == "pinned" and p["order"][0]["model"] == names[0], began)
    )
    return found


def _text(found: Audit, path: Path) -> str:
    swap = found.swap
    return "\n".join(
        [
            f"role {found.role}: {'passed' if found.passed else 'did not pass'}",
            *(f"  {reason}" for reason in found.reasons),
            f"identity swap: {swap.flips:.2%} flips (p = {swap.p:.3f}), {swap.people} people, {swap.probes} questions",
            *(f"  {kind:<10} {rate:>7.2%}" for kind, rate in swap.by_kind.items()),
            "range of behaviour, in standard deviations:",
            *(f"  {each.dimension:<16} {each.low:+.2f} … {each.high:+.2f}" for each in found.ranges[:5]),
            "drill: " + ", ".join(f"{each.step} {each.seconds:.2f} s" for each in found.drills),
            f"written: {path} and {path.with_suffix('.html').name}",
        ]
    )
