"""`fitrouter policy`: show and change the policy while the router runs."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from fitrouter.errors import InvalidRequest
from fitrouter.monitors.propensities import ALPHA
from fitrouter.serving.policy_control import Outlook, Standing
from fitrouter.state.settings import SECTIONS, SETTINGS, described
from fitrouter.stores.figures import many
from fitrouter.types import UNPRICED
from fitrouter_integrations.commands._files import as_json as as_json_text
from fitrouter_integrations.commands._gateway import Url, connect
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile, verbs

app = verbs("Show and change the policy of a running gateway; without one, changes are written to the journal.")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def show(config: ConfigFile = DEFAULT, url: Url = None, as_json: AsJson = False) -> None:
    """Show the active version, earlier versions, shadow candidates, and the monitors' reports."""
    _print(*_apply(config, url), as_json)


def set_(config: ConfigFile = DEFAULT, url: Url = None, as_json: AsJson = False, **given: Any) -> None:
    """Change settings; those that are not given stay as they are."""
    settings = {name: value for name, value in given.items() if value is not None}
    if not settings:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in SETTINGS)
        raise InvalidRequest(f"no setting was given; give one of {options}")
    body = {"action": "set", "settings": settings}
    _print(*_apply(config, url, body), as_json)


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each setting that can change at run time."""
    signature, named = inspect.signature(command, eval_str=True), inspect.Parameter.KEYWORD_ONLY
    texts = {name: text for section in SECTIONS for name, text in described(section).items()}
    options = [
        inspect.Parameter(
            name,
            named,
            default=None,
            annotation=Annotated[setting.kind | None, typer.Option(help=setting.text or texts[name])],
        )
        for name, setting in SETTINGS.items()
    ]
    others = [each.replace(kind=named) for each in signature.parameters.values() if each.kind != each.VAR_KEYWORD]
    command.__annotations__ = {each.name: each.annotation for each in (*options, *others)}
    setattr(command, "__signature__", signature.replace(parameters=[*options, *others]))  # noqa: B010 - no attribute of the type
    return command


app.command("set")(_with_options(set_))


@app.command()
def promote(
    name: Annotated[str, typer.Argument(help="Name of a candidate in `policy.candidates`.")],
    config: ConfigFile = DEFAULT,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Make a shadow candidate the active policy."""
    body = {"action": "promote", "name": name}
    _print(*_apply(config, url, body), as_json)


@app.command()
def restore(config: ConfigFile = DEFAULT, url: Url = None, as_json: AsJson = False) -> None:
    """Return to the previous version."""
    _print(*_apply(config, url, {"action": "restore"}), as_json)


@app.command()
def budget(
    tenant: Annotated[str, typer.Argument(help="Whose limit is changed.")],
    usd_per_period: Annotated[
        float | None, typer.Argument(help="USD per period; without it, the configuration's limit is in force again.")
    ] = None,
    config: ConfigFile = DEFAULT,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Change the limit of a tenant's period; a changed configuration drops it."""
    body = {"action": "budget", "tenant": tenant, "usd_per_period": usd_per_period}
    _print(*_apply(config, url, body), as_json)


class PolicyView(Standing, frozen=True, kw_only=True):
    """The state of the policy with the monitors' reports."""

    outlook: Outlook | None = None


def _apply(config: Path, url: str | None, body: dict[str, Any] | None = None) -> tuple[PolicyView, str]:
    """Send a change to a running gateway, else write it to the journal; returns the new state and where it was sent."""
    with connect(config, url, running=True) as gateway:
        if body is not None and not gateway.running:
            gateway.configure()
        found = gateway.call("GET" if body is None else "POST", "/v1/policy", body)
    return msgspec.convert(found, PolicyView), gateway.address


def _print(shown: PolicyView, source: str, as_json: bool) -> None:
    if as_json:
        typer.echo(as_json_text(shown))
        return
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("active", f"{shown.live}, by {shown.algorithm}")
    table.add_row("overrides", _listed(shown.settings) or "none")
    table.add_row("versions", " → ".join(shown.versions))
    for tenant, usd in shown.budgets.items():
        table.add_row(f"budget of {tenant}", f"{usd:g} USD per period")
    if shown.unpriced:
        table.add_row("without a price", f"{', '.join(shown.unpriced)}. {UNPRICED}")
    for name, settings in shown.candidates.items():
        table.add_row(f"candidate {name}", _listed(settings))
    table.add_row("checksum of all settings", shown.config_hash)
    for topic, text in _reports(shown.outlook) if shown.outlook else ():
        table.add_row(topic, text)
    applied = source if "://" in source else f"{source}; no gateway answers, so it takes effect at the next start"
    table.add_row("source", applied)
    Console().print(table, markup=False)


def _reports(outlook: Outlook) -> Iterator[tuple[str, str]]:
    """The monitors' reports, one line each."""
    for role, found in outlook.personalisation.items():
        gain = f"{found.gain:+.4f} per label ({found.low:+.4f} … {found.high:+.4f}, {many(found.labels, 'rating')})"
        word = "helps" if found.low > 0.0 else "harms" if found.high < 0.0 else "not known"
        if word != found.verdict:
            gain += f"; its terms predict ratings {'better' if found.verdict == 'helps' else 'worse'}"
        off = "; switched off" if found.off else ""
        yield f"personal terms{f' as {role}' if role else ''}", f"{word}: {gain}{off}"
    for arm, text in outlook.flattered.items():
        yield f"scores of {arm}", text
    evidence, alarm = outlook.evidence_against_propensities, 1.0 / ALPHA
    word = "do not match" if evidence >= alarm else "match"
    yield "draws", f"{word} their logged probabilities (evidence that they do not {evidence:.2g}, alarm at {alarm:g})"


def _listed(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name} {json.dumps(value)}" for name, value in settings.items())
