"""Throughput of a transformer reward model with random weights, through the scorer's own code; see `scorer`.

On cuda it has the architecture of Llama 3.1 8B, on a CPU a tiny one of the same family, for a trial of the code.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from fitrouter.context.encoders import Static
from fitrouter.types import Identity
from fitrouter_evaluators.scoring import Answer, ResponseFeatures, global_scalar
from fitrouter_evaluators.scoring.models import Item, RewardModels
from fitrouter_evaluators.scoring.models.transformer import Transformer

TOKENS = 512
LARGE: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
TINY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
}
CHAT = "{{ bos_token }}{% for m in messages %}{{ m['role'] }} {{ m['content'] }}{{ eos_token }}{% endfor %}"


def tokenizer() -> Any:
    """Create a tokenizer of numbered words, one token each."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<s>", "</s>", "<unk>", "user", "assistant", *(f"w{i}" for i in range(900))]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    found = PreTrainedTokenizerFast(tokenizer_object=made, **names)
    found.chat_template = CHAT
    return found


class Random(Transformer):
    """The scorer's transformer over a model with random weights, made on the device."""

    def __init__(self, device: str, *, batch_tokens: int, compiled: bool = False) -> None:
        made_here = Path()
        super().__init__(
            made_here, outputs=1, device=device, batch_tokens=batch_tokens, compiled=compiled, report=print
        )

    def _loaded(self, folder: Path, outputs: int | None, head: str) -> tuple[Any, Any]:  # noqa: ARG002 - none is read
        from transformers import LlamaConfig, LlamaForSequenceClassification

        shape = LARGE if self._device == "cuda" else TINY
        dtype = torch.bfloat16 if self._device == "cuda" else torch.float32
        config = LlamaConfig(num_labels=outputs, pad_token_id=0, max_position_embeddings=8192, **shape)
        before = torch.get_default_dtype()
        try:
            torch.set_default_dtype(dtype)
            with torch.device(self._device):
                model = LlamaForSequenceClassification(config).eval()
        finally:
            torch.set_default_dtype(before)
        return tokenizer(), model


def flop_a_token(device: str) -> float:
    """Count a forward pass's FLOP a token: two for each multiplied weight, and attention to half of the sequence."""
    c = LARGE if device == "cuda" else TINY
    d, heads, groups = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
    layer = 2 * d * d + 2 * d * d * groups // heads + 3 * d * c["intermediate_size"]
    return float(c["num_hidden_layers"] * (2 * layer + 4 * d * TOKENS / 2))


def items(n: int, *, to_a_prompt: int = 1, seed: int = 0) -> list[Item]:
    """Make n answers of 512 tokens including the prompt (half of them), which `to_a_prompt` answers share."""
    draw, half = np.random.default_rng(seed), TOKENS // 2
    made = []
    for i in range(n):
        if i % to_a_prompt == 0:
            prompt = " ".join(f"w{k}" for k in draw.integers(900, size=half - 5))
        text = " ".join(f"w{k}" for k in draw.integers(900, size=half))
        made.append(Item(answer=Answer(text=text, prompt=prompt), identity=Identity(), decision_id=str(i)))
    return made


def _rate(model: Transformer, given: Sequence[Item], runs: int) -> float:
    """Measure answers a second, the best of some runs."""
    best = float("inf")
    model.score(given)
    for _ in range(runs):
        started = time.perf_counter()
        model.score(given)
        best = min(best, time.perf_counter() - started)
    return len(given) / best


def reward_model(device: str, matrix: dict[str, float], usd_per_hour: float, runs: int = 3) -> dict[str, Any]:
    """Measure forward passes by batch, with shared prompts, and whole answers, with the cost of a million."""
    cuda = device == "cuda"
    limit = matrix["bfloat16" if cuda else "float32"] * 1e12
    out: dict[str, Any] = {
        "architecture": "Llama 3.1 8B" if cuda else "tiny Llama",
        "tokens": TOKENS,
        "gflop_a_token": round(flop_a_token(device) / 1e9, 6),
    }
    n = 128 if cuda else 32
    best, rates = 0.0, {}
    for compiled in (False, True) if cuda else (False,):
        model = Random(device, batch_tokens=TOKENS, compiled=compiled)
        for answers in (8, 32, 64):
            model.batches.budget = answers * TOKENS
            rate = _rate(model, items(n), runs)
            share = rate * TOKENS * flop_a_token(device) / limit
            name = f"batch_{answers}{'_compiled' if compiled else ''}"
            rates[name] = {"tokens_s": round(rate * TOKENS), "share_of_matrix_rate": round(share, 3)}
            if rate > best:
                best, size, kept = rate, answers * TOKENS, compiled
        if cuda:
            del model
            torch.cuda.empty_cache()
    out["forward"] = rates
    model = Random(device, batch_tokens=size, compiled=kept)
    shared = items(n, to_a_prompt=8)
    plain = _rate(model, items(n), runs)
    out["eight_answers_to_a_prompt"] = {"shares": model.shares, "speedup": round(_rate(model, shared, runs) / plain, 2)}
    out["whole_answers"] = _whole(model, items(4 * n if cuda else n, seed=1), usd_per_hour)
    return out


def _whole(model: Transformer, given: Sequence[Item], usd_per_hour: float) -> dict[str, Any]:
    """Measure whole answers: built-in features, tokenising, the model and standardising, in the scorer's batches."""
    # Not the real configuration, which is described by the folder: there is none.
    entry: Any = SimpleNamespace(name="m", kind="sequence_classification", model="/none", dimensions=("score",))
    models = RewardModels([entry])
    models._entries[0].model = model
    features = ResponseFeatures(Static(), scalar=global_scalar(Static()), cache=16)
    started = time.perf_counter()
    for begin in range(0, len(given), 64):
        part = given[begin : begin + 64]
        found = np.hstack([features.encode([item.answer for item in part]), models.features(part)])
    rate = len(given) / (time.perf_counter() - started)
    return {
        "answers_s": round(rate, 1),
        "features": found.shape[1],
        "usd_per_hour": usd_per_hour,
        "usd_per_million_answers": round(usd_per_hour / 3600.0 / rate * 1e6, 2),
    }
