"""Static token embeddings distilled from a sentence encoder, at about a fiftieth of its cost."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fitrouter.context.encoders._artifacts import check_sha256, read_manifest
from fitrouter.errors import ArtifactError
from fitrouter.types import Floats

_SHIPPED = Path(__file__).parent / "data"
_SHIPPED_SHA256 = "d08051ab6316f84de6fe5db7ab456201298aba5ff1022359068ddde088b75806"
"""Of the bundled manifest, which has the sha256 of the other files."""
_FILES = ("static.bin", "vocab.txt")
_REMEDY = "reinstall fitrouter, or make it again with `fitrouter train encoder`"

_MAX_CHARS = 8192
"""Most characters read of a text; of a longer one, half from either end."""

_WORDS = 1 << 16
"""Most words whose tokens are cached."""
_PLAIN = re.compile(r"[a-z0-9]+|[^a-z0-9\s]")
_BLANK = re.compile(r"[ \t\n\r]+")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class Static:
    """Encoder by a weighted mean of token vectors of length 1 (Tulkens and van Dongen 2024, model2vec).

    The table is made by `fitrouter train encoder`: every token of MiniLM's vocabulary is encoded alone, centred, and
    projected to its leading principal components, whitened; frequent tokens weigh less (Arora et al. 2017). Its
    dimensions are ordered by variance, so that the first few are a projection by themselves.

    A folder has `static.json` (the manifest), `static.bin` (int8[V, dim], followed by float16[V], the weights) and
    `vocab.txt` (WordPiece, one token in each line). `folder=None` is the bundled table.

    Raises:
        ArtifactError: a file is missing or does not match its sha256.
    """

    ordered = True

    def __init__(self, folder: Path | None = None) -> None:
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

        root = _SHIPPED if folder is None else folder
        if folder is None:
            check_sha256(root / "static.json", _SHIPPED_SHA256, _REMEDY)
        manifest = read_manifest(root / "static.json", "static", _FILES, ("id", "dim", "tokens", "scale"))
        for name in _FILES:
            check_sha256(root / name, manifest["sha256"][name], _REMEDY)
        self.id: str = manifest["id"]
        self.dim: int = manifest["dim"]
        tokens: int = manifest["tokens"]
        payload = (root / "static.bin").read_bytes()
        vocabulary = (root / "vocab.txt").read_bytes().decode("utf-8").split("\n")[:tokens]
        if len(payload) != tokens * (self.dim + 2) or len(manifest["scale"]) != self.dim or len(vocabulary) != tokens:
            raise ArtifactError(f"{str(root)!r}: the sizes of static.bin, vocab.txt and static.json do not match")
        self._table = np.frombuffer(payload, dtype=np.int8, count=tokens * self.dim).reshape(tokens, self.dim)
        self._weights = np.frombuffer(payload, dtype="<f2", offset=tokens * self.dim).astype(np.float64)
        self._scale = np.array(manifest["scale"], dtype=np.float64)
        model = models.WordPiece({token: i for i, token in enumerate(vocabulary)}, unk_token="[UNK]")  # noqa: S106
        self._tokenizer = Tokenizer(model)
        self._tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        self._words: dict[str, list[int]] = {}

    def encode(self, texts: Sequence[str]) -> Floats:
        """Encode texts as rows of length 1 (0 without any token), float64[n, dim].

        A row depends on its own text only.
        """
        out = np.zeros((len(texts), self.dim))
        for row, text in zip(out, texts, strict=True):
            if len(text) > _MAX_CHARS:
                text = f"{text[: _MAX_CHARS // 2]} {text[-_MAX_CHARS // 2 :]}"
            if not text.isascii():
                text = text.encode("utf-8", "replace").decode()
            if ids := self._ids(text):
                pooled = np.einsum("i,ij->j", self._weights[ids], self._table[ids].astype(np.float64)) * self._scale
                norm = np.sqrt(np.einsum("j,j->", pooled, pooled))
                if norm > 0.0:
                    row[:] = pooled / norm
        return out

    def _ids(self, text: str) -> list[int]:
        """Tokenize a text as the tokenizer does; tokens of ASCII words are cached."""
        if text.isascii():
            return self._plain(text)
        # The tokens between two blanks do not depend on the rest of the text.
        stretches = _BLANK.split(text)
        return [i for part in stretches for i in (self._plain(part) if part.isascii() else self._read(part))]

    def _plain(self, text: str) -> list[int]:
        if _CONTROL.search(text):  # the tokenizer removes control characters and joins the text around them
            return self._read(text)
        known, ids = self._words, list[int]()
        for word in _PLAIN.findall(text.lower()):
            found = known.get(word)
            if found is None:
                found = self._read(word)
                if len(known) >= _WORDS:
                    known.clear()
                known[word] = found
            ids += found
        return ids

    def _read(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


@functools.cache
def shipped() -> Static:
    """Load the bundled table; the features of requests and those of answers share it, and its 15 MB."""
    return Static()
