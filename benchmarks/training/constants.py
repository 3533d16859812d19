"""Compute the constants of the response features from a folder of answers, and write them as a Python module.

    python -m benchmarks.training.constants FOLDER OUT

FOLDER holds MT-bench's `model_answer/*.jsonl`: one answer a line, its texts at `choices[*].turns[*]`. The shipped table
was made this way; running it again gives the same numbers.

Centre and scale are mean and standard deviation after the outermost 1 % on either side are drawn in: a page of digits
must not set the scale of all others. Scales have floors, because the answers are from 2023 and knew no bold type,
hardly any headings, and shorter lists: without them one bold word would be as much as the scale can show.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from fitrouter.context.encoders import Encoder, get_encoder
from fitrouter.types import Floats
from fitrouter_evaluators.scoring.features import latent_directions, readable
from fitrouter_evaluators.scoring.text.style import STYLE, measure
from fitrouter_evaluators.scoring.values import encode_statements, fit

_FLOOR = 0.05
_FLOORS = {"structure": 0.5, "emphasis": 0.5, "warmth": 0.35}
_LATENT = 16
_HEADER = '''"""Centre and scale of the response features: written by `benchmarks.training.constants`, not by hand.

From the 960 answers of MT-bench (see the data sheet in `style`).
"""

from __future__ import annotations
'''


def read_answers(folder: Path) -> list[str]:
    """Read all texts of all turns, files and lines in order."""
    texts: list[str] = []
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            texts += [turn for choice in json.loads(line)["choices"] for turn in choice["turns"]]
    if not texts:
        raise ValueError(f"{str(folder)!r} holds no *.jsonl with answers; it should be MT-bench's model_answer folder")
    return texts


def _centre_scale(values: Floats) -> tuple[Floats, Floats]:
    """Return mean and standard deviation of each column of float64[n, k], with the outermost 1 % clipped."""
    low, high = np.quantile(values, [0.01, 0.99], axis=0)
    drawn = np.clip(values, low, high)
    return drawn.mean(axis=0), drawn.std(axis=0)


def style_constants(texts: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Compute (centre, scale) of each style dimension, to four decimals."""
    centres, scales = _centre_scale(np.array([measure(text) for text in texts]))
    return {
        dimension.name: (round(float(centre), 4), round(max(float(scale), _FLOORS.get(dimension.name, _FLOOR)), 4))
        for dimension, centre, scale in zip(STYLE, centres, scales, strict=True)
    }


def latent_constants(texts: Sequence[str], encoder: Encoder) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Compute (centres, scales) of an encoder's leading directions, to four decimals."""
    vectors = encoder.encode([readable(text) for text in texts])
    directions = latent_directions(encoder, vectors, min(_LATENT, encoder.dim))
    centres, scales = _centre_scale(directions[~np.isnan(directions).any(axis=1)])
    return tuple(np.round(centres, 4).tolist()), tuple(np.round(scales, 4).tolist())


def value_constants(texts: Sequence[str], encoder: Encoder) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Compute (centres, scales) of the value scores that the statements alone give, to four decimals."""
    scores = fit(encode_statements(encoder))(encoder.encode([readable(text) for text in texts]))
    centres, scales = _centre_scale(scores[~np.isnan(scores).any(axis=1)])
    return tuple(np.round(centres, 4).tolist()), tuple(np.round(scales, 4).tolist())


def render(texts: Sequence[str], encoders: Sequence[Encoder]) -> str:
    """Return the source text of the module."""
    lines = [_HEADER, "STYLE_CONSTANTS: dict[str, tuple[float, float]] = {"]
    lines += [f'    "{name}": {pair},' for name, pair in style_constants(texts).items()]
    lines += ["}", '"""Dimension → (centre, scale)."""', ""]
    latent = [(encoder.id, latent_constants(texts, encoder)) for encoder in encoders]
    lines += _table("LATENT_CONSTANTS", latent, "Encoder id → (centres, scales) of its latent directions.")
    values = [(encoder.id, value_constants(texts, encoder)) for encoder in encoders]
    note = "Encoder id → (centres, scales) of the value scores, in the order of `values.VALUES`."
    return "\n".join([*lines, "", *_table("VALUE_CONSTANTS", values, note), ""])


def _table(name: str, rows: Iterable[tuple[str, tuple[tuple[float, ...], tuple[float, ...]]]], note: str) -> list[str]:
    """Return the source lines of a table by encoder."""
    lines = [f"{name}: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {{"]
    for key, (centres, scales) in rows:
        lines += [f'    "{key}": (', *_tuple(centres), *_tuple(scales), "    ),"]
    return [*lines, "}", f'"""{note}"""']


def _tuple(values: Sequence[float]) -> list[str]:
    """Return the source lines of a tuple, one number each."""
    return ["        (", *(f"            {value}," for value in values), "        ),"]


def main(folder: str, out: str) -> None:
    """Write the table for the encoders that ship with the package."""
    Path(out).write_text(render(read_answers(Path(folder)), [get_encoder("static")]), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
