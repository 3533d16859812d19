"""`fitrouter bench`: benchmarks on files in the open formats, and converters of public datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from fitrouter.errors import ConfigError
from fitrouter_integrations.commands._files import write_json
from fitrouter_integrations.commands._options import JsonFile, verbs
from fitrouter_integrations.commands.experiments import rewardbench, simulate

app = verbs("Benchmarks on your own data, in the open formats, and simulated users.")
app.command("simulate")(simulate.command)
app.command("rewardbench")(rewardbench.command)

Data = Annotated[Path, typer.Option(help="JSONL or Parquet file in the open format of the same name.")]
EncoderName = Annotated[str, typer.Option(help="Text encoder: static, minilm, hashing, or another by name.")]
Seeds = Annotated[int, typer.Option(min=1, help="Number of splits into seen and unseen users and items.")]

Labels = Annotated[list[int] | None, typer.Option("--k", min=0, help="Labels of a new user; may be repeated.")]
_KS = (0, 2, 5, 10, 20)


@app.command()
def pairs(
    data: Data, out: JsonFile = None, encoder: EncoderName = "static", seeds: Seeds = 5, k: Labels = None
) -> None:
    """Pairwise preferences: accuracy, likelihood and calibration on unseen users and prompts."""
    from fitrouter_evaluators.bench.pairs import run_pairs

    found = _run(lambda: run_pairs(data, encoder, name=data.stem, seeds=range(seeds), ks=_ks(k)), data)
    _show(data.stem, found["results"])
    _warn(found["problems"])
    write_json(found, out)


@app.command()
def ratings(
    data: Data,
    out: JsonFile = None,
    encoder: EncoderName = "static",
    seeds: Seeds = 5,
    k: Labels = None,
    known_items: Annotated[
        bool, typer.Option(help="Test on items that others have rated, instead of unseen ones.")
    ] = False,
) -> None:
    """Ratings and thumbs: prediction for unseen users and items, by number of their own labels."""
    from fitrouter_evaluators.bench.ratings import run_ratings

    found = _run(lambda: run_ratings(data, encoder=encoder, seeds=seeds, ks=_ks(k), known_items=known_items), data)
    for name, measured in found["dimensions"].items():
        _show(f"{data.stem}: {name}", measured["results"])
    for name, reason in found["skipped"].items():
        typer.echo(f"{name} was skipped: {reason}", err=True)
    _warn(len(found["problems"]))
    write_json(found, out)


@app.command()
def choices(data: Data, out: JsonFile = None, encoder: EncoderName = "static") -> None:
    """Stated preferences: how often the fitting answer is picked, and whether a negation flips the pick."""
    from fitrouter.context.encoders import get_encoder
    from fitrouter_evaluators.bench.choices import run_choices

    found = run_choices(data, get_encoder(encoder))
    table = Table(title=f"{found['set']}: {found['n']} rows, {found['phrases']} phrases", box=None)
    for column in ("picks", "accuracy", "95% interval"):
        table.add_column(column, justify="left" if column == "picks" else "right")
    for name, row in found["accuracy"].items():
        table.add_row(name, f"{row['mean']:.3f}", f"{row['low']:.3f} … {row['high']:.3f}")
    if found["twins"]["n"]:
        twins = found["twins"]
        table.add_row("negation flips the pick", f"{twins['mean']:.3f}", f"{twins['low']:.3f} … {twins['high']:.3f}")
    Console().print(table, markup=False)
    _warn(len(found["problems"]))
    write_json(found, out)


@app.command()
def matrix(
    data: Data,
    out: JsonFile = None,
    encoder: EncoderName = "static",
    seeds: Annotated[int, typer.Option(min=1, help="Number of orders of the prompts.")] = 5,
    default: Annotated[str | None, typer.Option(help="Model used without a router; the first by default.")] = None,
    ceiling: Annotated[
        list[float] | None,
        typer.Option(min=0, help="Ceiling in USD per request; may be repeated. Default: from the data."),
    ] = None,
    curve: Annotated[bool, typer.Option(help="Also run under cost ceilings.")] = True,
) -> None:
    """Answers of every model to the same prompts: the router against fixed models, also under cost ceilings."""
    from fitrouter_evaluators.bench.matrix import bench

    ceilings = tuple(ceiling or ()) or None if curve else ()
    found = _run(lambda: bench(data, encoder, name=data.stem, seeds=seeds, default=default, ceilings=ceilings), data)
    console = Console(width=max(Console().width, 110 + max(len(model["name"]) for model in found["models"])))
    console.print(_policies(found), markup=False)
    if found["curve"]:
        console.print(_curve(found), markup=False)
        console.print(_measures(found["measures"]), markup=False)
    _warn(len(found["problems"]))
    write_json(found, out)


def _policies(found: Mapping[str, Any]) -> Table:
    """Build the table of policies without a cost ceiling."""
    people = any("worst_decile" in row for row in found["table"])
    title = f"{found['set']}: {found['prompts']} prompts, {len(found['models'])} models, {found['seeds']} orders"
    table = Table(title=title, box=None)
    table.add_column("policy", no_wrap=True)
    for column in ("reward", "USD per 1,000", "best chosen", "regret, 1st quarter", "2nd", "3rd", "4th"):
        table.add_column(column, justify="right")
    for column in ("between users", "worst decile") if people else ():
        table.add_column(column, justify="right")
    for row in found["table"]:
        fixed = "model" in row and not row["policy"].startswith("fixed")
        table.add_row(
            f"{row['policy']}: {row['model']}" if fixed else row["policy"],
            f"{row['reward']:.4f}" + (f" ± {row['reward_se']:.4f}" if row["reward_se"] else ""),
            f"{1000 * row['cost_usd']:.3g}",
            f"{row['opt_selection']:.1%}",
            *(f"{part:.4f}" for part in row["regret"]),
            *([f"{row['satisfaction_variance']:.4f}", f"{row['worst_decile']:.3f}"] if "worst_decile" in row else ()),
        )
    return table


def _curve(found: Mapping[str, Any]) -> Table:
    """Build the table of the router at each cost ceiling, beside the best mixture of two fixed models."""
    table = Table(title="under a ceiling", box=None)
    for column in ("USD per 1,000", "reward", "best mixture of two", "spent / ceiling", "dearest window / ceiling"):
        table.add_column(column, justify="right")
    for row in found["curve"]:
        mixture, dearest = row["best_mixture"], row["dearest_window"]
        table.add_row(
            f"{1000 * row['ceiling_usd']:.3g}",
            f"{row['reward']:.4f} ± {row['reward_se']:.4f}",
            "none this cheap" if mixture is None else f"{mixture:.4f}",
            f"{row['cost_usd'] / row['ceiling_usd']:.3f}" if row["ceiling_usd"] else "",
            "" if dearest is None else f"{dearest:.3f}",
        )
    return table


def _measures(measures: Mapping[str, Any]) -> Table:
    """Build the table of standard routing metrics."""
    table = Table(title="measures", box=None, show_header=False)
    for name, value in measures.items():
        table.add_row(name.replace("_", " "), "never" if value is None else f"{value:.4g}")
    return table


@app.command()
def personas(
    data: Annotated[Path, typer.Option(help="Folder of PluriHarms, as published.")] = Path("../shared/data/pluriharms"),
    out: JsonFile = None,
    encoder: EncoderName = "static",
    seed: Annotated[int, typer.Option(min=0, help="Of the pairs, and of known and unknown prompts.")] = 0,
) -> None:
    """Fifty people of diverse values, 200 pairs each: heads of population, mixture and the person alone."""
    from fitrouter_evaluators.bench.personas import run_personas

    if not data.is_dir():
        typer.echo(f"skipped: there is no folder {str(data)!r}; give --data with PluriHarms", err=True)
        return
    found = _run(lambda: run_personas(data, encoder, seed=seed), data)
    table = Table(title=f"{found['personas']} personas, {found['pairs']} pairs each, on unknown prompts", box=None)
    domains = list(found["rows"][0]["domains"])
    for column in ("head", "labels", "generic", "personal", "gain", "worst tenth", "coverage", *domains):
        table.add_column(column, justify="left" if column == "head" else "right")
    for row in found["rows"]:
        shares = [f"{row[name]:.3f}" for name in ("generic", "personal", "worst_tenth", "coverage")]
        shares.insert(2, f"{row['gain']:+.3f} ± {row['gain_se']:.3f}")
        table.add_row(row["head"], str(row["k"]), *shares, *(f"{share:.3f}" for share in row["domains"].values()))
    Console(width=max(Console().width, 130)).print(table, markup=False)
    typer.echo(f"{found['predict_ms']:.2f} ms a prediction, {found['learn_ms']:.2f} ms a label")
    write_json(found, out)


@app.command()
def convert(
    name: Annotated[
        str, typer.Argument(help="mt_bench, pluriharms, …; matrices: paretobandit, routellm, routerbench.")
    ],
    folder: Annotated[Path, typer.Argument(help="Folder of the dataset, as published.")],
    out: Annotated[Path, typer.Argument(help="Output file: .jsonl or .parquet.")],
) -> None:
    """Convert a public dataset to the open formats."""
    from fitrouter_evaluators.datasets import write_jsonl, write_parquet

    rows = list(_converter(name)(folder))
    if out.suffix not in {".jsonl", ".parquet"}:
        raise ConfigError(f"{str(out)!r} has an unknown suffix; use .jsonl or .parquet")
    (write_parquet if out.suffix == ".parquet" else write_jsonl)(out, rows)
    noun = {"MatrixRow": "matrix row"}.get(type(rows[0]).__name__, type(rows[0]).__name__.lower())
    typer.echo(f"wrote {len(rows)} {noun}s to {out}")


def _converter(name: str) -> Callable[[Path], Iterable[Any]]:
    from fitrouter_evaluators import datasets

    known: dict[str, Callable[[Path], Iterable[Any]]] = {
        "mt_bench": datasets.mt_bench.convert,
        "pluriharms": datasets.pluriharms.convert,
        "llm_rubric": datasets.llm_rubric.convert,
        "halie": lambda folder: [*datasets.halie.convert_dialogue(folder), *datasets.halie.convert_metaphor(folder)],
        "realhumaneval": datasets.realhumaneval.convert,
        "ttcw": datasets.ttcw.convert,
        "personalized_rewardbench": datasets.personalized_rewardbench.load,
        "paretobandit": datasets.paretobandit.convert,
        "routellm": datasets.routellm.convert,
        "routellm_mmlu": datasets.routellm.convert_mmlu,
        "routellm_gsm8k": datasets.routellm.convert_gsm8k,
        "routellm_mt_bench": datasets.routellm.convert_mt_bench,
        "routerbench": datasets.routerbench.convert,
    }
    if name not in known:
        raise ConfigError(f"there is no converter for {name!r}; there are {', '.join(known)}")
    return known[name]


def _ks(given: Sequence[int] | None) -> tuple[int, ...]:
    """Sort the given numbers of labels, with 0 added as the baseline; the default ones if none are given."""
    return tuple(sorted({0, *given})) if given else _KS


def _run(run: Callable[[], dict[str, Any]], data: Path) -> dict[str, Any]:
    """Run a benchmark and return its result; data that it cannot use raises ConfigError."""
    try:
        found: dict[str, Any] = msgspec.to_builtins(run(), enc_hook=lambda number: number.item())
    except ValueError as error:
        raise ConfigError(f"--data: {str(data)!r} cannot be used: {error}") from error
    return found


def _show(title: str, results: Sequence[Mapping[str, Any]]) -> None:
    """Print a table with a row for each metric and method and a column for each number of labels."""
    ks = sorted({result["k"] for result in results})
    table = Table(title=f"{title}: by labels of the user, with 95% intervals over users", box=None)
    for column in ("metric", "row", *(f"k = {k}" for k in ks)):
        table.add_column(column, justify="left" if column in {"metric", "row"} else "right")
    cells: dict[tuple[str, str], dict[int, str]] = {}
    for result in results:
        key = result["metric"], result["row"]
        text = f"{result['mean']:.3f} ({result['low']:.3f} … {result['high']:.3f})"
        cells.setdefault(key, {})[result["k"]] = text
    for (metric, row), by_k in cells.items():
        table.add_row(metric, row, *(by_k.get(k, "") for k in ks))
    Console(width=max(100, 34 + 24 * len(ks))).print(table, markup=False)


def _warn(problems: int) -> None:
    if problems:
        typer.echo(f"{problems} invalid lines were skipped; --json lists them", err=True)
