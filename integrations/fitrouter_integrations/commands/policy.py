"""`fitrouter policy`: what it is to do, while it runs. Each change is an event, and one command takes it back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from fitrouter.config import load_config
from fitrouter.errors import InvalidRequest
from fitrouter.monitors.propensities import ALPHA
from fitrouter.router import Router
from fitrouter.serving.policy_control import Outlook, Standing
from fitrouter_integrations._http import NoGateway, call, url_of
from fitrouter_integrations.commands._files import as_json as as_json_text

app = typer.Typer(
    help="Show and change the policy while it runs. A running gateway is told; without one the journal is.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

ConfigPath = Annotated[
    Path, typer.Option("--config", "-c", help="The configuration: it says where the gateway listens.")
]
Url = Annotated[str | None, typer.Option(help="Of the gateway, instead of what the configuration says.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]
_DEFAULT = Path("fitrouter.yaml")


@app.command()
def show(config: ConfigPath = _DEFAULT, url: Url = None, as_json: AsJson = False) -> None:
    """Show the version in force, those before it, the candidates in shadow, and what the watchers say."""

    async def look(_router: Router) -> None:
        """Nothing is to be done."""

    _print(*_tell(config, url, None, look), as_json)


@app.command("set")
def set_(
    cost_weight: Annotated[float | None, typer.Option(help="Fit that one `cost_unit_usd` costs.")] = None,
    latency_weight: Annotated[float | None, typer.Option(help="Fit that one `latency_unit_s` costs.")] = None,
    share: Annotated[float | None, typer.Option(help="Share of the traffic that is routed; 0: shadow.")] = None,
    personal: Annotated[bool | None, typer.Option(help="Whether terms of user and role count.")] = None,
    force: Annotated[
        str | None, typer.Option(help="A model that takes all it can, in an emergency; '' ends it.")
    ] = None,
    floor: Annotated[float | None, typer.Option(help="Traffic that is spread over all models.")] = None,
    uniform_slice: Annotated[float | None, typer.Option(help="Traffic that is routed uniformly.")] = None,
    algorithm: Annotated[str | None, typer.Option(help="squarecb, linear_thompson, softmax …")] = None,
    gamma: Annotated[float | None, typer.Option(help="SquareCB's exploitation scale.")] = None,
    scale: Annotated[float | None, typer.Option(help="Thompson's width of the posterior.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Softmax' temperature.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε-greedy's ε.")] = None,
    config: ConfigPath = _DEFAULT,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Lay settings over those in force; what is not named stays."""
    given = {
        "cost_weight": cost_weight,
        "latency_weight": latency_weight,
        "share": share,
        "personal": personal,
        "floor": floor,
        "uniform_slice": uniform_slice,
        "algorithm": algorithm,
        "gamma": gamma,
        "scale": scale,
        "temperature": temperature,
        "epsilon": epsilon,
        "force": force,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    if not settings:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise InvalidRequest(f"no setting was given; allowed are {options}")
    body = {"action": "set", "settings": settings}
    _print(*_tell(config, url, body, lambda router: router.policy.set(settings)), as_json)


@app.command()
def promote(
    name: Annotated[str, typer.Argument(help="A candidate of `policy.candidates`, which ran in shadow.")],
    config: ConfigPath = _DEFAULT,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Let a candidate decide from now on."""
    body = {"action": "promote", "name": name}
    _print(*_tell(config, url, body, lambda router: router.policy.promote(name)), as_json)


@app.command()
def restore(config: ConfigPath = _DEFAULT, url: Url = None, as_json: AsJson = False) -> None:
    """Go back to the version before the one in force."""
    _print(*_tell(config, url, {"action": "restore"}, lambda router: router.policy.restore()), as_json)


class Shown(Standing, frozen=True, kw_only=True):
    """Where the policy stands, and what its watchers say."""

    outlook: Outlook | None = None


Act: TypeAlias = Callable[[Router], Awaitable[object]]


def _tell(config: Path, url: str | None, body: dict[str, Any] | None, otherwise: Act) -> tuple[Shown, str]:
    """Tell a running gateway, else the journal; returns where the policy stands then, and who was told."""
    if url is not None:
        return _ask(url, body), url
    settings = load_config(config)
    address = url_of(settings)
    try:
        return _ask(address, body), address
    except NoGateway:
        with Router.offline(settings) as router:
            return asyncio.run(_write(router, otherwise, changes=body is not None)), str(settings.data / "journal.db")


def _ask(url: str, body: dict[str, Any] | None) -> Shown:
    """What the gateway answers.

    Raises:
        NoGateway: whatever answers there knows no policy.
    """
    told = call("GET" if body is None else "POST", url, "/v1/policy", body)
    try:
        return msgspec.convert(told, Shown)
    except msgspec.ValidationError:
        raise NoGateway(f"what answers at {url} is no fitrouter gateway of this version") from None


async def _write(router: Router, act: Act, *, changes: bool) -> Shown:
    """Act on a router that rests: its journal takes the events, and its fold reads them."""
    if changes:
        await router.policy.apply_configuration()
    await act(router)
    return Shown(**msgspec.structs.asdict(router.policy.standing()), outlook=router.policy.outlook())


def _print(shown: Shown, told: str, as_json: bool) -> None:
    if as_json:
        typer.echo(as_json_text(shown))
        return
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("in force", f"{shown.live}, by {shown.algorithm}")
    table.add_row("over the file", _listed(shown.settings) or "nothing")
    table.add_row("versions", " → ".join(shown.versions))
    for name, settings in shown.candidates.items():
        table.add_row(f"candidate {name}", _listed(settings))
    table.add_row("settings hash", shown.config_hash)
    for topic, text in _watched(shown.outlook) if shown.outlook else ():
        table.add_row(topic, text)
    table.add_row("said by", told if "://" in told else f"{told}; no gateway answers, the next one to start heeds it")
    Console().print(table, markup=False)


def _watched(outlook: Outlook) -> Iterator[tuple[str, str]]:
    """What the watchers say, a line each."""
    for role, found in outlook.personalisation.items():
        worth = f"{found.gain:+.4f} a label ({found.low:+.4f} … {found.high:+.4f}, {found.labels} labels)"
        off = "; left out of decisions" if found.off else ""
        yield f"personal terms{f' as {role}' if role else ''}", f"{found.verdict}: {worth}{off}"
    for arm, text in outlook.flattered.items():
        yield f"score of {arm}", text
    evidence, alarm = outlook.evidence_against_propensities, 1.0 / ALPHA
    word = "do not follow" if evidence >= alarm else "follow"
    yield "draws", f"{word} their logged probabilities (evidence against it {evidence:.2g}, alarm at {alarm:g})"


def _listed(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name} {json.dumps(value)}" for name, value in settings.items())
