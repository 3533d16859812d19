"""Compute the principal components of MiniLM's prompt vectors, of which policies read the first.

    python -m benchmarks.training.basis FOLDER OUT

FOLDER is MT-bench's: the turns of `question.jsonl` and the beginnings of the answers in `model_answer/*.jsonl` are
encoded, and the leading principal components kept. Data sheet of the shipped `minilm_basis.npy`: 160 questions and 960
answers of MT-bench (questions and answers Apache-2.0, votes not used), float16[1 + 64, 384], row 0 the mean. On another
processor one number in a hundred differs in its last bit.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
from benchmarks.training.constants import read_answers

from fitrouter.context.encoders import Encoder, get_encoder
from fitrouter.types import Floats

_ANSWER_CHARACTERS = 400


def principal_directions(encoder: Encoder, texts: list[str], keep: int = 64) -> Floats:
    """Compute the mean, then the leading principal components by variance; float64[1 + keep, dim]."""
    vectors = np.asarray(encoder.encode(texts))
    mean = vectors.mean(axis=0)
    _, _, components = np.linalg.svd(vectors - mean, full_matrices=False)
    # The sign of a component is arbitrary; the largest entry is made positive so that runs agree.
    signs = np.sign(components[np.arange(len(components)), np.abs(components).argmax(axis=1)])
    return np.concatenate([mean[None], components[:keep] * signs[:keep, None]])


def main(folder: str, out: str) -> None:
    """Write the basis and print its sha256."""
    lines = (Path(folder) / "question.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [turn for line in lines for turn in json.loads(line)["turns"]]
    texts += [text[:_ANSWER_CHARACTERS] for text in read_answers(Path(folder) / "model_answer")]
    basis = principal_directions(get_encoder("minilm"), texts).astype(np.float16)
    np.save(out, basis, allow_pickle=False)
    digest = hashlib.sha256(Path(out).read_bytes()).hexdigest()
    sys.stdout.write(json.dumps({"shape": basis.shape, "texts": len(texts), "sha256": digest}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:3])
