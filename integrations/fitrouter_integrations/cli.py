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

_GROUPS = {
    "Run a router": {
        "init": "Write a configuration for the provider keys in the environment.",
        "config": "Check, edit and import configurations.",
        "doctor": "Check configuration, keys, models, disk, clock and stores, and say what to do.",
        "serve": "Serve an OpenAI-compatible gateway.",
        "top": "Watch a running gateway in a terminal.",
    },
    "Answers and votes": {
        "decisions": "List the last answers, with model, probability, cost, score and votes.",
        "explain": "Explain why a decision chose its model.",
        "rate": "Rate an answer.",
        "comment": "Comment on an answer, and see or correct what was understood.",
        "feedback": "List the last votes and remarks.",
    },
    "Models and policy": {
        "models": "List the models; add and remove some at run time.",
        "policy": "Show and change the policy of a running gateway.",
        "replay": "Evaluate a policy change on logged traffic; the exit code is the verdict.",
    },
    "People": {
        "users": "List the known users, and show what is known of one.",
        "profile": "Show, declare, export, import, merge and erase a person's portable profile.",
        "quiz": "Find out in at most ten questions which model and style fit a person.",
        "leaderboard": "Rank the models for a person or a role, beside everybody's ranking.",
        "report": "Report which model fits a person, on what, how sure that is, and what it is worth.",
        "score": "Score any texts as a person would rate them.",
    },
    "Audit and certify": {
        "satisfaction": "How satisfied people are: mean, variance, worst tenth and worst role, and who is worse off.",
        "exposure": "How varied what people get is, and what more or less of it costs in satisfaction.",
        "audit": "Audit a role: what changes with the user, what must not, and how fast it can be stopped.",
        "certificate": "Write a signed certificate of which model fits a person, with the rows that it follows from.",
        "verify": "Verify a certificate, and recompute it from its rows.",
        "diagnose": "Find where personalisation fails in recorded conversations, stage by stage.",
        "suite": "Generate a personal test suite, have people validate it, and run models on it.",
    },
    "Operate": {
        "keys": "Create, list, rotate and revoke the API keys of a gateway.",
        "audit-log": "Show who changed policy and keys, and verify that no entry was changed.",
        "journal": "Check a journal, salvage a damaged one, copy one, and exclude events from what is learnt.",
        "deploy": "Deploy gateways and scorers to a Ray cluster.",
    },
    "Try out and train": {
        "demo": "Run the router against simulated users and models over HTTP.",
        "bench": "Run benchmarks on your own data, or convert public datasets.",
        "simulate": "Simulate users who rate logged responses, and compare variants of the router.",
        "train": "Train encoders and priors, or rebuild the learned state.",
    },
}
"""Group in the help → its verbs, the most used first, and what each does."""
_HELP = ["-h", "--help"]
_MODULES = {
    "policy": "fitrouter_integrations.commands.running.policy",
    "deploy": "fitrouter_integrations.commands.running.deploy",
    "keys": "fitrouter_integrations.commands.running.keys",
    "top": "fitrouter_integrations.commands.running.top",
    "demo": "fitrouter_integrations.demo._command",
    "init": "fitrouter_integrations.commands.setup.init",
    "satisfaction": "fitrouter_integrations.commands.audits.satisfaction",
    "audit": "fitrouter_integrations.commands.audits.audit",
    "exposure": "fitrouter_integrations.commands.audits.exposure",
    "config": "fitrouter_integrations.commands.setup.config",
    "doctor": "fitrouter_integrations.commands.setup.doctor",
    "audit-log": "fitrouter_integrations.commands.setup.audit_log",
    **{
        name: f"fitrouter_integrations.commands.personal.{name}"
        for name in ("quiz", "score", "leaderboard", "report", "profile", "certificate", "verify", "diagnose", "suite")
    },
    **{name: f"fitrouter_integrations.commands.experiments.{name}" for name in ("bench", "simulate", "train")},
    **{name: f"fitrouter_integrations.commands.feedback.{name}" for name in ("rate", "comment")},
    **{name: f"fitrouter_integrations.commands.lists.{name}" for name in ("decisions", "feedback", "users", "models")},
}

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
        _fail("a file that was given is nested too deeply; flatten it", 2)
    except ModuleNotFoundError as error:
        _fail(str(MissingExtra.of(error.name, "this command")), 2)


def _fail(message: str, code: int) -> None:
    Console(stderr=True).print(f"fitrouter: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
    sys.exit(code)


def _lazy(verb: str) -> Callable[[typer.Context], None]:
    """A command that hands its arguments to the verb's module: its `run`, its app, or its function `command`."""

    def forward(context: typer.Context) -> None:
        try:
            module: Any = importlib.import_module(_MODULES.get(verb, f"fitrouter_integrations.commands.{verb}"))
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


for _group, _verbs in _GROUPS.items():
    for _verb, _text in _verbs.items():
        app.command(
            _verb,
            help=_text,
            rich_help_panel=_group,
            context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
        )(_lazy(_verb))


if __name__ == "__main__":
    main()
