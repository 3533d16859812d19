"""RouterBench's wide table (Hu et al. 2024, arXiv:2403.12031): one row per prompt, three columns per model.

Columns are `sample_id`, `prompt`, `eval_name`, and for each model its score under its name, `<model>|total_cost` in USD
and `<model>|model_response`. The authors publish pickles, which execute code when read; convert them to Parquet or CSV.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from fitrouter.errors import ConfigError
from fitrouter_evaluators.datasets._formats import Cell, MatrixRow
from fitrouter_evaluators.datasets._reading import read_values
from fitrouter_evaluators.datasets._sources import read_table

_COST, _RESPONSE = "|total_cost", "|model_response"


def convert(path: str | os.PathLike[str]) -> list[MatrixRow]:
    """Convert the rows of the table, or of all tables (`*.parquet`, `*.csv`) in a folder, in their order.

    `source` is the eval_name, `extra` has the sample_id. A cell without a score is left out, a line without any too.

    Raises:
        ConfigError: there is no such table, or none of its columns is a model's cost.
    """
    found = Path(path)
    files = sorted([*found.glob("*.parquet"), *found.glob("*.csv")]) if found.is_dir() else [found]
    if not files or not all(file.is_file() and file.suffix in {".parquet", ".csv"} for file in files):
        raise ConfigError(
            f"{str(path)!r} holds no table; give RouterBench's as .parquet or .csv (a pickle is not read)"
        )
    rows = []
    for file in files:
        read = [_row(line) for line in _lines(file)]
        if not any(read):
            raise ConfigError(f"{str(file)!r} has no column '<model>{_COST}' with a score under '<model>'")
        rows += [row for row in read if row is not None]
    return rows


def _lines(file: Path) -> Iterator[Mapping[str, Any]]:
    if file.suffix == ".csv":
        yield from read_table(file)
        return
    for _, value in read_values(file):
        if isinstance(value, ValueError):
            raise ConfigError(f"{str(file)!r}: {value}")
        yield value


def _row(line: Mapping[str, Any]) -> MatrixRow | None:
    """Convert one line of the table; None if it has no score or no prompt."""
    models = [column.removesuffix(_COST) for column in line if column.endswith(_COST)]
    cells = {}
    for model in models:
        score, cost = _number(line.get(model)), _number(line.get(model + _COST))
        if score is not None:
            cells[model] = Cell(reward=score, cost_usd=cost, response=line.get(model + _RESPONSE) or None)
    prompt = _prompt(str(line.get("prompt") or ""))
    if not cells or not prompt.strip():
        return None
    extra = {"sample_id": line["sample_id"]} if "sample_id" in line else {}
    return MatrixRow(prompt=prompt, models=cells, source=line.get("eval_name") or None, extra=extra)


def _number(cell: object) -> float | None:
    """Convert a cell to a number; None if missing."""
    try:
        value = float(str(cell))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _prompt(text: str) -> str:
    """Unwrap the prompt, which the published table writes as a one-element list."""
    if text.startswith(("['", '["')) and text.endswith(("']", '"]')):
        try:
            return "\n\n".join(msgspec.json.decode(text, type=list[str]))
        except msgspec.DecodeError:
            return text[2:-2].replace("\\n", "\n").replace("\\'", "'")
    return text
