"""`fitrouter doctor`: check an installation from its configuration to its disk, and say what to do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fitrouter.config import Config, load_config
from fitrouter.errors import FitrouterError, in_words
from fitrouter.providers import Provider, build_provider
from fitrouter.types import Call, ModelCard
from fitrouter_integrations.commands._files import as_json
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile
from fitrouter_integrations.commands.setup import _health
from fitrouter_integrations.commands.setup._health import Check, JournalHealth, fault, ok, unchecked, warning
from fitrouter_integrations.commands.setup.check import findings

ANSWER_S = 20.0
"""How long a model may take to answer the question of `--online`."""
_MARKS = {"ok": ("✓", ""), "open": ("–", "dim"), "warning": ("!", "yellow"), "fault": ("✗", "red")}
_REMOTE = ("openai_compatible", "litellm")


def command(
    config: ConfigFile = DEFAULT,
    online: Annotated[bool, typer.Option(help="Ask each model for a word, which providers may charge for.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check configuration, keys, providers, models, disk, clock and stores; exit code 1 if something does not work.

    Nothing is changed. A gateway may be running.
    """
    found = list(_checks(config, online, time.time()))
    faults, warnings = (sum(check.level == level for check in found) for level in ("fault", "warning"))
    if json:
        typer.echo(as_json({"faults": faults, "warnings": warnings, "checks": found}))
    else:
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        for check in found:
            mark, style = _MARKS[check.level]
            table.add_row(mark, check.name, check.text + (f"\n→ {check.do}" if check.do else ""), style=style or None)
        Console().print(table, markup=False, highlight=False)
        typer.echo(f"faults: {faults}, warnings: {warnings}")
    if faults:
        raise typer.Exit(1)


def _checks(file: Path, online: bool, now: float) -> Iterator[Check]:
    """Run all checks; one that raises is itself a fault."""
    yield from _guarded("versions", lambda: [_health.versions()])
    try:
        config = load_config(file)
    except FitrouterError as error:
        yield fault("config", str(error), "mend the file, or write one with `fitrouter init`")
        return
    log, data = JournalHealth(), config.data
    looked = (lambda: [_health.database(config, log)]) if config.database else (lambda: _health.journal(data, now, log))
    yield from _guarded("journal", looked)
    # A damaged journal would be replaced by whoever opens it.
    yield from _guarded("config", lambda: _check_configuration(config, log.sound))
    yield from _guarded("providers", lambda: _check_reachable(config, online))
    yield from _guarded("device", lambda: [_health.device(config)])
    yield from _guarded("keys", lambda: [_health.stored_keys(config, now)])
    yield from _guarded("limits", lambda: [_health.limits()])
    yield from _guarded("disk", lambda: _health.disk(data))
    yield from _guarded("clock", lambda: [_health.clock(log.newest, now)])
    yield from _guarded("warehouse", lambda: [_health.warehouse(data, log)])
    yield from _guarded("cold store", lambda: list(_health.cold_store(config, log)))
    yield from _guarded("identities", lambda: [_health.identities(config)])
    yield from _guarded("audit log", lambda: [_health.audit_log(data)])
    yield from _guarded("gateway", lambda: _health.gateway(config))


def _guarded(name: str, checks: Callable[[], Iterator[Check] | list[Check]]) -> list[Check]:
    found: list[Check] = []
    try:
        found.extend(checks())
    except Exception as error:  # noqa: BLE001 - the other checks must be seen
        found.append(fault(name, f"the check itself failed: {in_words(error)}", "report it to us, with this line"))
    return found


def _check_configuration(config: Config, start: bool) -> Iterator[Check]:
    """Yield the findings of `fitrouter config check` as checks."""
    for finding in findings(config, start=start):
        if finding.ok:
            yield (ok if finding.known else unchecked)(finding.topic, finding.text)
        else:
            yield fault(finding.topic, finding.text, "mend it as it says; `fitrouter config check` looks again")


def _check_reachable(config: Config, online: bool) -> Iterator[Check]:
    """Check that the models answer, if they are to be asked."""
    remote = [card for card in config.cards() if config.providers[card.provider].kind in _REMOTE]
    if not remote:
        return
    if not online:
        names = ", ".join(dict.fromkeys(card.provider for card in remote))
        yield unchecked("reachable", f"not asked: {names}; `fitrouter doctor --online` asks each model for a word")
        return
    answers = asyncio.run(_ask_models(config, remote))
    lost = all(why for _, why, _ in answers)
    for card, why, took in answers:
        if why:
            do = f"see key, address and rights of the provider {card.provider!r}, and the model's name {card.target!r}"
            level = fault if lost or card.name == config.default_model else warning
            yield level(f"model {card.name}", why, do)
        else:
            yield ok(f"model {card.name}", f"answered after {took:.1f} s")


async def _ask_models(config: Config, cards: list[ModelCard]) -> list[tuple[ModelCard, str, float]]:
    """Ask each model for a word: why it did not answer (empty if it did), and the seconds it took."""
    providers: dict[str, Provider | FitrouterError] = {}
    for name in {card.provider for card in cards}:
        try:
            providers[name] = build_provider(name, config.providers[name])
        except FitrouterError as error:
            providers[name] = error

    async def ask(card: ModelCard) -> tuple[ModelCard, str, float]:
        provider, began = providers[card.provider], time.monotonic()
        if isinstance(provider, FitrouterError):
            return card, str(provider), 0.0
        question = ({"role": "user", "content": "Say yes."},)
        asked = Call(target=card.target, messages=question, params={"max_tokens": 16}, timeout_s=ANSWER_S)
        why = ""
        try:
            async with asyncio.timeout(ANSWER_S):
                await provider.complete(asked)
        except Exception as error:  # noqa: BLE001 - whatever a provider raises is the finding
            why = in_words(error)
        return card, why, time.monotonic() - began

    try:
        return await asyncio.gather(*map(ask, cards))
    finally:
        for provider in providers.values():
            if not isinstance(provider, FitrouterError):
                await provider.aclose()
