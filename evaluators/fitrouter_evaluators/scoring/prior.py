"""File format of the population prior, learned from public human judgements.

A safetensors file holds two arrays (no code, no pickle) and a data sheet. Coordinates are matched by the names of the
response features, so that a prior serves every encoder: features that the file lacks, such as another encoder's latent
directions, start as without a file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from fitrouter.errors import ConfigError
from fitrouter.posterior.tastes import TasteParams, TastePrior, Tastes
from fitrouter.types import Floats
from fitrouter_evaluators.scoring.features import DECLARED_FIT

SHIPPED = "prior.safetensors"
_FORMAT = "fitrouter-prior-1"
_KEY = "fitrouter"
_ARRAYS = ("mean", "cov")
_EARLIER = ("role_variance", "user_variance")
"""Arrays of files that earlier versions wrote; they are not read."""


def write_prior(
    path: Path, names: Sequence[str], encoder: str, arrays: Mapping[str, Floats], sheet: Mapping[str, Any]
) -> None:
    """Write a prior over named features.

    Args:
        path: of the file.
        names: of the D features.
        encoder: id of the encoder that the latent directions belong to.
        arrays: mean float64[D] and cov float64[D, D].
        sheet: the data sheet: sources, licences, counts, metrics.
    """
    from safetensors.numpy import save

    about = {"format": _FORMAT, "encoder": encoder, "names": list(names), "sheet": sheet}
    # One key: the order of several is not the same every time, and the same prior should be the same bytes.
    metadata = {_KEY: json.dumps(about, sort_keys=True, ensure_ascii=False)}
    path.write_bytes(save({name: np.ascontiguousarray(arrays[name]) for name in _ARRAYS}, metadata))


def load_prior(path: Path, names: Sequence[str], encoder: str, params: TasteParams | None = None) -> TastePrior:
    """Load the prior of a file for the named features of an encoder.

    Raises:
        ConfigError: the file is missing or is no prior.
    """
    payload, about, arrays = _read(path)
    params = params or TasteParams()
    plain = Tastes(len(names), params, names)
    mean, cov = plain.population.mean.copy(), plain.population.cov.copy()
    known = {name: i for i, name in enumerate(about["names"])}
    foreign = about["encoder"] != encoder
    pairs = [(j, known[name]) for j, name in enumerate(names) if name in known and not (foreign and _latent(name))]
    here, there = np.array([j for j, _ in pairs], dtype=int), np.array([i for _, i in pairs], dtype=int)
    mean[here] = arrays["mean"][there]
    cov[np.ix_(here, here)] = arrays["cov"][np.ix_(there, there)]
    if DECLARED_FIT in names and DECLARED_FIT not in known:
        # Respecting what people said about topics counts as much as a unit of a style that they declared.
        j = list(names).index(DECLARED_FIT)
        mean[j] = params.declared
    digest = hashlib.sha256(payload + repr((list(names), encoder, params)).encode()).hexdigest()
    return TastePrior(digest, mean, cov)


def shipped_prior(names: Sequence[str], encoder: str, params: TasteParams | None = None) -> TastePrior:
    """Load the prior that ships with the package; `read_sheet()` gives its data sheet."""
    return load_prior(_shipped(), names, encoder, params)


def read_sheet(path: Path | None = None) -> dict[str, Any]:
    """Read the data sheet of a file, of the shipped one by default.

    Raises:
        ConfigError: the file is missing or is no prior.
    """
    sheet: dict[str, Any] = _read(path or _shipped())[1]["sheet"]
    return sheet


def _shipped() -> Path:
    return Path(str(resources.files("fitrouter_evaluators.scoring") / "data" / SHIPPED))


def _latent(name: str) -> bool:
    return name.startswith("latent_")


def _read(path: Path) -> tuple[bytes, dict[str, Any], dict[str, Floats]]:
    """Read and check a file: its bytes, metadata and arrays."""
    from safetensors import SafetensorError, safe_open

    try:
        payload = path.read_bytes()
        with safe_open(str(path), framework="numpy") as file:
            about = json.loads((file.metadata() or {})[_KEY])
            read = [name for name in file.keys() if name not in _EARLIER]  # noqa: SIM118
            arrays = {name: file.get_tensor(name).astype(np.float64) for name in read}
        D = len(about["names"])
    except FileNotFoundError:
        raise ConfigError(f"there is no prior {str(path)!r}; `fitrouter train prior` writes one") from None
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{str(path)!r} is no prior: {error}") from None
    shapes = {"mean": (D,), "cov": (D, D)}
    found = {name: array.shape for name, array in arrays.items()}
    if about.get("format") != _FORMAT or found != shapes:
        raise ConfigError(f"{str(path)!r} is no prior: it has {found} in format {about.get('format')!r}")
    if not all(np.isfinite(array).all() for array in arrays.values()) or not _definite(arrays):
        raise ConfigError(f"{str(path)!r} is no prior: it has numbers that are no variances")
    return payload, about, arrays


def _definite(arrays: Mapping[str, Floats]) -> bool:
    cov = arrays["cov"]
    return bool(np.allclose(cov, cov.T) and np.linalg.eigvalsh(cov).min() > -1e-12)
