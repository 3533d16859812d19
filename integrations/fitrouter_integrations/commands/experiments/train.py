"""`fitrouter train`: train encoders and priors, or rebuild the learned state."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from fitrouter.config import load_config, parse_config
from fitrouter.errors import ConfigError
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile, verbs

app = verbs("Train encoders and priors, or rebuild the learned state.")


@app.command()
def encoder(
    out: Annotated[Path, typer.Option(help="Output folder.")],
    dim: Annotated[int, typer.Option(min=8, max=256, help="Dimension of a token vector.")] = 128,
) -> None:
    """Distil the sentence encoder into a table of token vectors; prints its metadata as JSON."""
    from fitrouter_evaluators.training.train_encoder import train_static

    typer.echo(json.dumps(train_static(out, dim)))


@app.command()
def int8(
    out: Annotated[Path | None, typer.Option(help="Output folder; by default where `minilm-int8` looks.")] = None,
) -> None:
    """Export the sentence encoder with int8 weights for CPUs, as used by `encoder: minilm-int8`."""
    from fitrouter_evaluators.training.train_int8 import train_int8

    typer.echo(json.dumps(train_int8(out)))


@app.command()
def refit(config: ConfigFile = DEFAULT) -> None:
    """Rebuild all learned state from the journal, with the latest version of each vote and without erased users.

    Running gateways rebuild in the background, others when they start.
    """
    from fitrouter.assemble import open_journal
    from fitrouter.draw import uuid7
    from fitrouter.stores.journal import Entry
    from fitrouter.types import Refit

    settings = load_config(config)
    if not settings.database and not settings.journal_file().is_file():
        raise ConfigError(f"there is no journal {str(settings.journal_file())!r}, so nothing has been learned yet")
    journal = open_journal(settings)
    try:
        now = time.time()
        journal.append(Entry(Refit(id=uuid7(now), ts=now))).result(30.0)
    finally:
        journal.close()
    typer.echo(
        f"requested a rebuild in {journal!r}"
        if settings.database
        else f"requested a rebuild in {settings.journal_file()}"
    )


@app.command()
def prior(
    data: Annotated[
        Path | None, typer.Option(help="Folder of public datasets, or of pairs and ratings in the open formats.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Output file.")] = Path("prior.safetensors"),
    encoder: Annotated[str, typer.Option(help="Encoder of the response features.")] = "static",
    federated: Annotated[
        str | None, typer.Option(help="Coordinate federated clients, which keep their votes: HOST:PORT to listen at.")
    ] = None,
    clients: Annotated[int, typer.Option(min=1, help="With --federated: number of clients.")] = 8,
    join: Annotated[
        str | None, typer.Option(help="Run as a federated client over --data: HOST:PORT of the coordinator.")
    ] = None,
    clip: Annotated[
        float | None, typer.Option(min=1e-9, help="Largest norm of a client's sums; default: by the other clients'.")
    ] = None,
    noise: Annotated[float, typer.Option(min=0.0, help="With --join: sd of the noise on sums, in clips.")] = 0.0,
    tls: Annotated[
        Path | None, typer.Option(help="Folder with ca.pem, and for --federated server.pem and server.key.")
    ] = None,
) -> None:
    """Estimate a prior of user tastes from public preference data, or from clients; prints its data sheet as JSON."""
    from fitrouter.context.encoders import get_encoder
    from fitrouter_evaluators.training.train_prior import train_prior

    if federated is not None or join is not None:
        _federate(data, out, encoder, federated, clients, join, clip, noise, tls)
    elif data is None:
        raise ConfigError("--data is missing; give a folder, or --federated to coordinate clients")
    else:
        _print(train_prior(data, out, get_encoder(encoder)))


def _federate(
    data: Path | None,
    out: Path,
    encoder: str,
    federated: str | None,
    clients: int,
    join: str | None,
    clip: float | None,
    noise: float,
    tls: Path | None,
) -> None:
    """Coordinate a federated fit, or take part in one."""
    from fitrouter.context.encoders import get_encoder
    from fitrouter.errors import require
    from fitrouter_evaluators.training import train_prior
    from fitrouter_evaluators.training.federated import Federation

    if (join is None) == (federated is None) or (join is None) != (data is None):
        raise ConfigError("give --federated without --data, or --join with --data")
    if noise and clip is None:
        raise ConfigError("--noise needs --clip: the noise hides sums up to that norm")
    require("flwr", "a federated fit")
    from fitrouter_integrations.federation import coordinate, take_part

    reader = get_encoder(encoder)
    features = train_prior.trained_features(reader)
    if join is not None and data is not None:
        users = train_prior.observed(data, features)
        return take_part(join, users, features.schema, clip=clip or math.inf, noise=noise, tls=tls)
    assert federated is not None
    federation = Federation(
        features.dim, train_prior.source_shrinkage(features.dim), iterations=train_prior.ITERATIONS, clip=clip
    )
    coordinate(federated, federation, clients, features.schema, tls)
    return _print(train_prior.write_federated(federation, out, features, clients))


def _print(sheet: dict[str, Any]) -> None:
    typer.echo(json.dumps(sheet, indent=1, ensure_ascii=False))


@app.command()
def basis(
    data: Annotated[Path, typer.Option(help="Pairs in the open format, JSONL or Parquet.")],
    model: Annotated[str, typer.Option(help="Model whose embeddings the basis maps: a folder, or a hub id.")],
    out: Annotated[Path, typer.Option(help="Output file.")] = Path("basis.safetensors"),
    rank: Annotated[int, typer.Option(min=1, max=64, help="Maximum number of dimensions.")] = 8,
    max_tokens: Annotated[int, typer.Option(min=32, help="Tokens of prompt and answer that the model reads.")] = 4096,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Learn from people's pairs in which directions of a model's embeddings they differ; prints a data sheet as JSON.

    Set `scorer: {models: [{name: taste, kind: embedding, model: MODEL, basis: FILE}]}` to use it.
    """
    from fitrouter_evaluators.training.train_basis import train_basis

    typer.echo(json.dumps(train_basis(data, model, out, rank=rank, max_tokens=max_tokens, device=device), indent=1))


@app.command("policy")
def warm_start(
    data: Annotated[
        Path, typer.Option(help="A matrix, ratings with model names, a folder of exported tables, or a journal folder.")
    ],
    out: Annotated[Path, typer.Option(help="Output file; in a folder, the file is named by its sha256.")] = Path(
        "models.arms"
    ),
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", help="Configuration with encoders and prices; else fitrouter.yaml, else the defaults."
        ),
    ] = None,
    trust: Annotated[float, typer.Option(help="Number of labels that the prior of a model counts for.")] = 5.0,
    scale: Annotated[tuple[float, float], typer.Option(help="Lowest and highest reward of a matrix.")] = (0.0, 1.0),
    responses: Annotated[bool, typer.Option(help="Use the texts of the answers, if the data has them.")] = True,
) -> None:
    """Estimate each model's quality from logged data, for a warm start; prints a summary as JSON.

    Set `policy: {prior: FILE}` to start a new installation from it.
    """
    from fitrouter_evaluators.training.train_policy import train_policy

    plain = {"providers": {"file": {"kind": "simulated"}}, "models": [{"name": "any", "provider": "file"}]}
    config = config or (DEFAULT if DEFAULT.is_file() else None)
    settings = load_config(config) if config is not None else parse_config(plain)
    typer.echo(json.dumps(train_policy(data, out, settings, trust=trust, scale=scale, responses=responses), indent=1))
