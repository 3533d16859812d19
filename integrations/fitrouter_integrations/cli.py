"""The command `fitrouter`: registers the verbs in `commands/`, each of which is imported when it runs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import typer
from rich.console import Console

from fitrouter.errors import ConfigError, FitrouterError

_VERBS = {
    "serve": "Serve an OpenAI-compatible gateway.",
    "init": "Write a configuration for the provider keys in the environment.",
    "config": "Check, edit and import configurations.",
    "explain": "Explain why a decision chose its model.",
    "policy": "Show and change the policy of a running gateway.",
    "replay": "Evaluate a policy change on logged traffic; the exit code is the verdict.",
    "train": "Train encoders and priors, or rebuild the learned state.",
    "demo": "Run the router against simulated users and models over HTTP.",
    "bench": "Run benchmarks on your own data, or convert public datasets.",
    "simulate": "Simulate users who rate logged responses, and compare variants of the router.",
}
_MODULES = {"demo": "fitrouter_integrations.demo._command"}

app = typer.Typer(
    help="Route each request to the model that suits its user and task, and learn from feedback.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line. Errors are one message on standard error: exit code 2 for a configuration error, else 1."""
    try:
        app()
    except FitrouterError as error:
        _fail(str(error), 2 if isinstance(error, ConfigError) else 1)
    except ModuleNotFoundError as error:
        _fail(f"this needs {error.name!r}, which is not installed; install 'fitrouter[all]'", 2)


def _fail(message: str, code: int) -> None:
    Console(stderr=True).print(f"fitrouter: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
    sys.exit(code)


def _lazy(verb: str) -> Callable[[typer.Context], None]:
    """A command that hands its arguments to the verb's module: its `run`, its app, or its function `command`."""

    def forward(context: typer.Context) -> None:
        try:
            module: Any = importlib.import_module(_MODULES.get(verb, f"fitrouter_integrations.commands.{verb}"))
        except ImportError as error:
            raise ConfigError(
                f"`fitrouter {verb}` cannot run: {error}; install fitrouter with all its extras"
            ) from error
        if hasattr(module, "run"):
            module.run(context.args)
        elif hasattr(module, "app"):
            module.app(context.args, prog_name=f"fitrouter {verb}")
        else:
            single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            single.command()(module.command)
            single(context.args, prog_name=f"fitrouter {verb}")

    return forward


for _verb, _text in _VERBS.items():
    app.command(
        _verb,
        help=_text,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    )(_lazy(_verb))


if __name__ == "__main__":
    main()
