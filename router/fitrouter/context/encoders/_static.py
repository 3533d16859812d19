"""Static token embeddings distilled from a sentence encoder, at about a fiftieth of its cost."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

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

_KNOWN, _LONGEST = 1 << 16, 64
"""Most entries of each cache of tokens, and characters of the longest."""
_PLAIN = re.compile(r"[a-z0-9]+|[^a-z0-9\s]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class _Known(dict[str, bytes]):
    """Cache of the tokens of pieces of text, as the bytes of an array."""

    def __init__(self, read: Callable[[str], bytes]) -> None:
        self._read = read

    def __missing__(self, piece: str) -> bytes:
        """Tokenise a piece; short ones are cached."""
        found = self._read(piece)
        if len(piece) <= _LONGEST:
            if len(self) >= _KNOWN:
                self.clear()
            self[piece] = found
        return found


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
        self._words, self._stretches = _Known(self._read), _Known(self._stretch)

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
            if len(ids := self._ids(text)):
                # einsum converts the table's numbers block by block, which stay in the CPU's cache.
                pooled = np.einsum("i,ij->j", self._weights[ids], self._table.take(ids, axis=0)) * self._scale
                norm = np.sqrt(np.einsum("j,j->", pooled, pooled))
                if norm > 0.0:
                    row[:] = pooled / norm
        return out

    def _ids(self, text: str) -> NDArray[np.intp]:
        """Tokenize a text as the tokenizer does; tokens of words and of what stands between blanks are cached."""
        stretches = text.replace("\n", " ").replace("\t", " ").replace("\r", " ").split(" ")
        return np.frombuffer(b"".join(map(self._stretches.__getitem__, stretches)), dtype=np.intp)

    def _stretch(self, text: str) -> bytes:
        """Tokens between two blanks, which do not depend on the rest of the text."""
        if not text.isascii() or _CONTROL.search(text):  # control characters are removed, which joins words
            return self._read(text)
        return b"".join(map(self._words.__getitem__, _PLAIN.findall(text.lower())))

    def _read(self, text: str) -> bytes:
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.intp).tobytes()


@functools.cache
def shipped() -> Static:
    """Load the bundled table; the features of requests and those of answers share it, and its 15 MB."""
    return Static()
