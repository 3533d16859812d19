"""The command `fitrouter`."""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fitrouter.errors import ConfigError, FitrouterError

app = typer.Typer(
    help="Pick the model that fits this user and this task; learn from what people say.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
config_app = typer.Typer(help="Check and change a configuration.", no_args_is_help=True)
train_app = typer.Typer(help="Train what ships as a file.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(train_app, name="train")

ConfigPath = Annotated[Path, typer.Option("--config", "-c", help="The configuration.")]
_DEFAULT = Path("fitrouter.yaml")
_LATER = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Settings of commands whose options another module knows."""


def main() -> None:
    """Run the command line. A mistake is one message on standard error: exit code 2 for a configuration, else 1."""
    try:
        app()
    except FitrouterError as error:
        Console(stderr=True).print(f"fitrouter: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2 if isinstance(error, ConfigError) else 1)
    except ModuleNotFoundError as error:
        missing = f"fitrouter: this needs {error.name!r}, which is not installed; install 'fitrouter[all]'"
        Console(stderr=True).print(missing, style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)


@app.command()
def serve(
    config: ConfigPath = _DEFAULT,
    workers: Annotated[int, typer.Option(min=1, help="Processes that share the address and the journal.")] = 1,
    host: Annotated[str | None, typer.Option(help="Listen here instead of `server.host`.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Instead of `server.port`; 0: a free one.")] = None,
) -> None:
    """Serve an OpenAI-compatible gateway until SIGTERM or Ctrl-C; running answers may end."""
    from fitrouter.config import load_config

    settings = load_config(config)
    changes = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    settings = settings.model_copy(update={"server": settings.server.model_copy(update=changes)})
    gateway = _gateway()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    listener = gateway.bind(settings)
    address = f"http://{settings.server.host}:{listener.getsockname()[1]}/v1"
    typer.echo(f"fitrouter serves {len(settings.models)} models on {address}", err=True)
    gateway.serve(settings, workers, listener)


@app.command()
def init(path: Annotated[Path, typer.Option(help="Where to write it; never over another file.")] = _DEFAULT) -> None:
    """Write a configuration from the provider keys in the environment; with none, models are simulated."""
    from fitrouter_integrations.commands.init import found_keys, write_config

    keys = found_keys()
    write_config(path, keys)
    using = f"the keys {', '.join(keys)}" if keys else "simulated models, since no provider key is set"
    typer.echo(f"wrote {path} with {using}")
    typer.echo(f"next: fitrouter serve --config {path}")


@config_app.command()
def check(file: Annotated[Path, typer.Argument(help="The configuration.")] = _DEFAULT) -> None:
    """Explain the mistakes of a configuration (exit code 2), or what it would do."""
    from fitrouter.config import load_config
    from fitrouter_integrations.commands.check import findings

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    found = findings(load_config(file))
    for finding in found:
        table.add_row("✓" if finding.ok else "✗", finding.topic, finding.text, style=None if finding.ok else "red")
    Console().print(table, markup=False)
    missing = sum(not finding.ok for finding in found)
    if missing:
        typer.echo(f"{file} is valid; {missing} things are missing before it can be served")
    else:
        typer.echo(f"{file} is valid")


@config_app.command()
def share(
    value: Annotated[float, typer.Argument(min=0.0, max=1.0, help="0: shadow, 0.05: a rollout, 1: everything.")],
    config: ConfigPath = _DEFAULT,
    default_model: Annotated[str | None, typer.Option(help="Who takes the rest.")] = None,
) -> None:
    """Set the share of the traffic that is routed; comments stay. It holds from the next start of the gateway."""
    from fitrouter_integrations.commands.edit import set_top_level

    settings = {"share": repr(value)}
    if default_model is not None:
        settings = {"default_model": json.dumps(default_model), **settings}
    set_top_level(config, settings)
    typer.echo(f"share is {value:g} in {config}; restart the gateway")


@config_app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="A configuration of litellm's proxy.")],
    out: Annotated[Path, typer.Option(help="Where to write it; never over another file.")] = _DEFAULT,
) -> None:
    """Make a configuration out of one of litellm's proxy; what cannot be taken over is said in its comments."""
    from fitrouter_integrations.commands.import_litellm import import_litellm

    made = import_litellm(file, out)
    typer.echo(f"wrote {out} with {made.models} models; {len(made.notes)} notes at its top say what to look at")
    typer.echo(f"next: fitrouter config check {out}")


@train_app.command()
def encoder(
    out: Annotated[Path, typer.Option(help="Folder for the table.")],
    dim: Annotated[int, typer.Option(min=8, max=256, help="Dimensions of a token.")] = 128,
) -> None:
    """Distil the sentence encoder into a table of token vectors, and print what was made as JSON."""
    from fitrouter_evaluators.training.train_encoder import train_static

    typer.echo(json.dumps(train_static(out, dim)))


@train_app.command()
def refit(config: ConfigPath = _DEFAULT) -> None:
    """Ask for an exact re-fit from the journal: each vote as it stands now, nothing of those who were erased.

    Running gateways do it beside their requests, others when they start.
    """
    from fitrouter.config import load_config
    from fitrouter.draw import uuid7
    from fitrouter.stores.journal import Entry, SqliteJournal
    from fitrouter.types import Refit

    path = load_config(config).data / "journal.db"
    if not path.is_file():
        raise ConfigError(f"there is no journal {str(path)!r}; nothing was learnt yet that could be fitted again")
    journal = SqliteJournal(path)
    try:
        now = time.time()
        journal.append(Entry(Refit(id=uuid7(now), ts=now))).result(30.0)
    finally:
        journal.close()
    typer.echo(f"asked for a re-fit in {path}")


@train_app.command()
def int8(
    out: Annotated[Path | None, typer.Option(help="Folder; the one that is looked in by default.")] = None,
) -> None:
    """Export the sentence encoder with int8 weights for CPUs: `encoder: minilm-int8` uses it."""
    from fitrouter_evaluators.training.train_int8 import train_int8

    typer.echo(json.dumps(train_int8(out)))


@train_app.command()
def prior(
    data: Annotated[Path, typer.Option(help="Folder of public sets, or of pairs and ratings in the open formats.")],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("prior.safetensors"),
    encoder: Annotated[str, typer.Option(help="Encoder of the response features.")] = "static",
) -> None:
    """Learn what tastes are like from other people's judgements, and print its data sheet as JSON."""
    from fitrouter.context.encoders import get_encoder
    from fitrouter_evaluators.training.train_prior import train_prior

    typer.echo(json.dumps(train_prior(data, out, get_encoder(encoder)), indent=1, ensure_ascii=False))


@train_app.command("policy")
def warm_start(
    data: Annotated[
        Path,
        typer.Option(help="A matrix, ratings with model names, a folder of exported tables, or a journal's folder."),
    ],
    out: Annotated[Path, typer.Option(help="The file to write; a folder gets one that is named by its sha256.")] = Path(
        "models.arms"
    ),
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Whose encoders and prices count; without it the defaults.")
    ] = None,
    trust: Annotated[float, typer.Option(help="Labels that what is learnt of a model counts for.")] = 5.0,
    scale: Annotated[tuple[float, float], typer.Option(help="Lowest and highest reward of a matrix.")] = (0.0, 1.0),
    responses: Annotated[bool, typer.Option(help="Read the answers' texts where there are any.")] = True,
) -> None:
    """Learn what each model is worth from logged data, for a warm start; print what was learnt from what as JSON.

    A new installation starts from the file with `policy: {prior: FILE}`.
    """
    from fitrouter.config import load_config, parse_config
    from fitrouter_evaluators.training.train_policy import train_policy

    plain = {"providers": {"file": {"kind": "simulated"}}, "models": [{"name": "any", "provider": "file"}]}
    settings = load_config(config) if config is not None else parse_config(plain)
    typer.echo(json.dumps(train_policy(data, out, settings, trust=trust, scale=scale, responses=responses), indent=1))


@app.command(context_settings=_LATER)
def demo(context: typer.Context) -> None:
    """Simulated people and models over real HTTP, and what routing was worth."""
    _run("fitrouter_integrations.demo", "demo", context.args)


@app.command(context_settings=_LATER)
def bench(context: typer.Context) -> None:
    """Benchmarks on your own data: pairs, ratings, choices, matrices; and converters of public sets."""
    _module("fitrouter_integrations.commands.bench", "bench").app(context.args, prog_name="fitrouter bench")


@app.command(context_settings=_LATER)
def policy(context: typer.Context) -> None:
    """Show and change the policy while it runs: weights, share, the live version, the one before."""
    _module("fitrouter_integrations.commands.policy", "policy").app(context.args, prog_name="fitrouter policy")


@app.command(context_settings=_LATER)
def replay(context: typer.Context) -> None:
    """Prove a change on the log before it goes live; the exit code is the answer."""
    from fitrouter_integrations.commands.replay import run

    run(context.args)


@app.command(context_settings=_LATER)
def simulate(context: typer.Context) -> None:
    """The personal pool in process: simulated people judge real responses."""
    _run("fitrouter_integrations.commands.simulate", "simulate", context.args)


@app.command(context_settings=_LATER)
def explain(context: typer.Context) -> None:
    """Why this model: what moved a decision, in words and in numbers that add up."""
    _run("fitrouter_integrations.commands.explain", "explain", context.args)


def _run(module: str, verb: str, arguments: list[str]) -> None:
    """Run the function `command` of a module as this verb; its options are its own."""
    function: Any = _module(module, verb).command
    late = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    late.command()(function)
    late(arguments, prog_name=f"fitrouter {verb}")


def _module(name: str, verb: str) -> Any:
    """The module of a verb, which extras bring."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"`fitrouter {verb}` cannot run: {error}; install fitrouter with all its extras") from error


def _gateway() -> Any:
    """The gateway, which the extra `gateway` brings."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        return importlib.import_module("fitrouter_integrations.gateway")
    except ModuleNotFoundError as error:
        raise ConfigError(f"the gateway needs {error.name!r}; install 'fitrouter[gateway]'") from error


if __name__ == "__main__":
    main()
