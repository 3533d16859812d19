"""Export of MiniLM as an int8 ONNX file, the encoder `minilm-int8`."""

from __future__ import annotations

import hashlib
import importlib
import json
import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from fitrouter.context.encoders import INT8_FILES, int8_folder, minilm_path
from fitrouter.errors import ConfigError

_TOKENS = 256
"""Maximum tokens of a text, as by MiniLM's authors."""

_OPSET = 17


def train_int8(out: Path | None = None) -> dict[str, Any]:
    """Write encoder.onnx, tokenizer.json and int8.json into `out` (None: `int8_folder()`); returns a summary.

    The transformer, the mean over tokens and the length are traced into one graph; weights become int8 with a scale for
    each column, and activations are quantised dynamically (Jacob et al. 2018). Takes about ten seconds.

    Raises:
        ConfigError: torch, transformers, onnx, onnxruntime or the weights are missing.
        ArtifactError: the weights do not match their sha256.
    """
    started = time.perf_counter()
    folder = int8_folder() if out is None else out
    source = minilm_path()
    for name in ("torch", "transformers", "onnx", "onnxruntime"):
        try:
            importlib.import_module(name)
        except ImportError:
            raise ConfigError(
                f"making 'minilm-int8' needs {name!r}; `pip install 'fitrouter[int8,reward]' onnx`"
            ) from None
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        dim = _export(source, work / "float.onnx")
        _quantise(work)
        shutil.copyfile(source / "tokenizer.json", work / "tokenizer.json")
        sha256 = {name: hashlib.sha256((work / name).read_bytes()).hexdigest() for name in INT8_FILES}
        manifest = {
            "id": f"minilm-int8-{sha256['encoder.onnx'][:12]}",
            "dim": dim,
            "tokens": _TOKENS,
            "sha256": sha256,
        }
        folder.mkdir(parents=True, exist_ok=True)
        for name in INT8_FILES:
            shutil.copyfile(work / name, folder / name)
        # Last, so that a folder with a manifest is whole.
        (folder / "int8.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    size = sum((folder / name).stat().st_size for name in INT8_FILES)
    return {**manifest, "folder": str(folder), "bytes": size, "seconds": round(time.perf_counter() - started, 1)}


def _export(source: Path, path: Path) -> int:
    """Write the graph (int64[n, t] ids and mask → float32[n, dim]) in float32; returns dim."""
    import torch
    from transformers import AutoModel

    model: Any = AutoModel.from_pretrained(str(source), attn_implementation="eager").eval()

    class Sentence(torch.nn.Module):
        """Normalised mean of the tokens' vectors."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            kinds = torch.zeros_like(input_ids)
            tokens = self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=kinds)[0]
            mask = attention_mask[:, :, None].to(tokens.dtype)
            return torch.nn.functional.normalize((tokens * mask).sum(1) / mask.sum(1).clamp(min=1e-9), dim=1)

    ids = torch.arange(14).reshape(2, 7) % model.config.vocab_size
    lengths = {0: "n", 1: "t"}
    with warnings.catch_warnings(), torch.no_grad():
        # The tracer's exporter is deprecated; its successor needs one package more and gives the same graph.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Sentence(),
            (ids, torch.ones_like(ids)),
            str(path),
            input_names=["input_ids", "attention_mask"],
            output_names=["vector"],
            dynamic_axes={"input_ids": lengths, "attention_mask": lengths, "vector": {0: "n"}},
            opset_version=_OPSET,
            dynamo=False,
        )
    return int(model.config.hidden_size)


def _quantise(work: Path) -> None:
    """Quantise float.onnx to int8 and write encoder.onnx."""
    quantization: Any = importlib.import_module("onnxruntime.quantization")
    inference: Any = importlib.import_module("onnxruntime.quantization.shape_inference")
    inference.quant_pre_process(str(work / "float.onnx"), str(work / "clean.onnx"), skip_symbolic_shape=True)
    # One scale for a whole matrix would cost far more: cosines to float32 of .945 instead of .995. Weights have seven
    # bits: products of eight saturate on processors without VNNI, whose vectors would differ from other machines'.
    quantization.quantize_dynamic(
        str(work / "clean.onnx"),
        str(work / "encoder.onnx"),
        weight_type=quantization.QuantType.QInt8,
        per_channel=True,
        reduce_range=True,
    )


if __name__ == "__main__":
    made = train_int8(*map(Path, sys.argv[1:2]))
    sys.stdout.write(json.dumps(made, indent=1) + "\n")
