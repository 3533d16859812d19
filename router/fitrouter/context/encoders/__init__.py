"""Text encoders (texts to unit vectors), from feature hashing to sentence transformers."""

from __future__ import annotations

import difflib
from pathlib import Path

from fitrouter.context.encoders._base import Encoder
from fitrouter.context.encoders._cached import Cached
from fitrouter.context.encoders._hashing import Hashing
from fitrouter.context.encoders._int8 import INT8_FILES, Int8Encoder, int8_folder
from fitrouter.context.encoders._minilm import MINILM_SHA256, SentenceTransformerEncoder, minilm_path
from fitrouter.context.encoders._static import Static, shipped
from fitrouter.errors import ConfigError

__all__ = [
    "ENCODERS",
    "INT8_FILES",
    "MINILM_SHA256",
    "Cached",
    "Encoder",
    "Hashing",
    "Int8Encoder",
    "SentenceTransformerEncoder",
    "Static",
    "get_encoder",
    "int8_folder",
    "minilm_path",
    "shipped",
]

ENCODERS = ("hashing", "minilm", "minilm-int8", "static")
"""Names of the encoders that need no model hub."""


def get_encoder(name: str, device: str = "auto") -> Encoder:
    """Load an encoder: one of `ENCODERS`, a hub name such as 'intfloat/e5-small-v2', or a model's folder.

    Raises:
        ConfigError: there is no such encoder, or its dependencies are not installed.
        ArtifactError: its files do not match their sha256.
    """
    if name == "hashing":
        return Hashing()
    if name == "static":
        return shipped()
    if Path(name).joinpath("static.json").is_file():
        return Static(Path(name))
    if name == "minilm-int8":
        return Int8Encoder()
    if Path(name).joinpath("int8.json").is_file():
        return Int8Encoder(Path(name))
    if name == "minilm" or "/" in name:
        return SentenceTransformerEncoder(name, device)
    near = difflib.get_close_matches(name, ENCODERS, n=1)
    raise ConfigError(
        f"there is no encoder {name!r}"
        + (f"; did you mean {near[0]!r}?" if near else ";")
        + f" Allowed are {ENCODERS}, "
        f"a sentence-transformers model as 'owner/model', or a folder made by `fitrouter train encoder`"
    )
