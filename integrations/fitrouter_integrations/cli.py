"""The command `fitrouter`: registers the verbs in `commands/`, each of which is imported when it runs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Annotated, Any

import typer
from rich.console import Console

from fitrouter.errors import ConfigError, FitrouterError, MissingExtra

_FIRST = {
    "init": "Write a configuration for the provider keys in the environment.",
    "config": "Check, edit and import configurations.",
    "doctor": "Check configuration, keys, models, disk, clock and stores, and say what to do.",
    "serve": "Serve an OpenAI-compatible gateway.",
    "top": "Watch a running gateway in a terminal.",
    "decisions": "List the last answers, with model, probability, cost, score and votes.",
    "explain": "Explain why a decision chose its model.",
    "rate": "Rate an answer.",
    "models": "List the models; add and remove some at run time.",
    "policy": "Show and change the policy.",
    "replay": "Evaluate a policy change on logged traffic; the exit code is the verdict.",
    "users": "List the known users; show, export and erase what is stored of one.",
    "report": "Report which model fits a person, on what, how sure that is, and what it is worth.",
    "demo": "Run the router against simulated users and models over HTTP.",
}
"""Command → what it does, in the order of use."""
_GROUPS = {
    "personal": (
        "A person's profile, quiz, ranking, scores, test suite and certificate.",
        {
            "profile": "Show, declare, export, import, merge and erase a person's portable profile.",
            "quiz": "Find out in at most ten questions which model and style fit a person.",
            "leaderboard": "Rank the models for a person or a role, beside everybody's ranking.",
            "score": "Score any texts as a person would rate them.",
            "suite": "Generate a personal test suite, have people validate it, and run models on it.",
            "diagnose": "Find where personalisation fails in recorded conversations, stage by stage.",
            "certificate": "Write a signed certificate of which model fits a person, with the rows behind it.",
            "verify": "Verify a certificate, and recompute it from its rows.",
        },
    ),
    "audits": (
        "Whom an installation serves, how safely, and who changed it.",
        {
            "satisfaction": "How satisfied people are: mean, variance, worst tenth and role, and who is worse off.",
            "exposure": "How varied what people get is, and what more or less of it costs in satisfaction.",
            "role": "Audit a role: what changes with the user, what must not, and how fast it can be stopped.",
            "log": "Show who changed policy and keys, and verify that no entry was changed.",
        },
    ),
    "feedback": ("List the last votes and remarks; comment on an answer.", {}),
    "keys": ("Create, list, rotate and revoke the API keys of a gateway.", {}),
    "journal": ("Check a journal, salvage a damaged one, copy one, and exclude events from what is learnt.", {}),
    "deploy": ("Deploy gateways and scorers to a Ray cluster.", {}),
    "bench": ("Run benchmarks on your own data, convert public datasets, and simulate users.", {}),
    "train": ("Train encoders and priors, or rebuild the learned state.", {}),
}
"""Group → what it is about, and its commands; without any, they are those of its module."""
_HELP = ["-h", "--help"]
_FOLDERS = {
    "setup": ("init", "config", "doctor", "audits log"),
    "running": ("policy", "deploy", "keys", "top"),
    "lists": ("decisions", "feedback", "users", "models"),
    "feedback": ("rate",),
    "personal": ("report", *(f"personal {name}" for name in _GROUPS["personal"][1])),
    "audits": ("audits satisfaction", "audits exposure", "audits role"),
    "experiments": ("bench", "train"),
}
_COMMANDS = "fitrouter_integrations.commands"
MODULES = {name: f"{_COMMANDS}.{name}" for name in ("explain", "replay", "serve", "journal")}
"""Command → its module."""
MODULES |= {name: f"{_COMMANDS}.{folder}.{name.split()[-1]}" for folder, names in _FOLDERS.items() for name in names}
MODULES |= {"demo": "fitrouter_integrations.demo._command"}

app = typer.Typer(
    help="Route each request to the model that suits its user and task, and learn from feedback.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": _HELP},
)


def main() -> None:
    """Run the command line. Errors are one message on standard error: exit code 2 for a configuration error, else 1."""
    try:
        app()
    except FitrouterError as error:
        _fail(str(error), 2 if isinstance(error, ConfigError) else 1)
    except RecursionError:
        from fitrouter_integrations.commands._files import TOO_DEEP

        _fail(TOO_DEEP, 2)
    except ModuleNotFoundError as error:
        _fail(str(MissingExtra.of(error.name, "this command")), 2)


def _fail(message: str, code: int) -> None:
    Console(stderr=True).print(f"fitrouter: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
    sys.exit(code)


def _lazy(verb: str) -> Callable[[typer.Context], None]:
    """A command that hands its arguments to the verb's module: its `run`, its app, or its function `command`."""

    def forward(context: typer.Context) -> None:
        try:
            module: Any = importlib.import_module(MODULES[verb])
        except ModuleNotFoundError as error:
            raise MissingExtra.of(error.name, f"`fitrouter {verb}`") from error
        except ImportError as error:
            raise ConfigError(f"`fitrouter {verb}` cannot run: {error}") from error
        if hasattr(module, "run"):
            module.run(context.args)
        elif hasattr(module, "app"):
            module.app(context.args, prog_name=f"fitrouter {verb}", help_option_names=_HELP)
        else:
            single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            single.command()(module.command)
            single(context.args, prog_name=f"fitrouter {verb}", help_option_names=_HELP)

    return forward


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(f"fitrouter {metadata.version('fitrouter')}")
        raise typer.Exit


def _register(app: typer.Typer, name: str, text: str, panel: str | None = None, group: str = "") -> None:
    """Add a command of a module to an app."""
    settings = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    register = app.command(name, help=text, rich_help_panel=panel, context_settings=settings)
    register(_lazy(f"{group} {name}".strip()))


for _name, _text in _FIRST.items():
    _register(app, _name, _text, "Commands")
for _name, (_text, _verbs) in _GROUPS.items():
    if not _verbs:
        _register(app, _name, _text, "Groups of commands")
        continue
    _group = typer.Typer(help=_text, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    for _verb, _help in _verbs.items():
        _register(_group, _verb, _help, group=_name)
    app.add_typer(_group, name=_name, rich_help_panel="Groups of commands")


if __name__ == "__main__":
    main()
