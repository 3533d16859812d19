"""Hugging Face reward models with a sequence-classification head, scalar or with several objectives."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fitrouter_evaluators.scoring.models.checkpoint import checkpoint, identify
from fitrouter_evaluators.scoring.models.reward_model import Description, ModelError
from fitrouter_evaluators.scoring.models.transformer import Transformer

if TYPE_CHECKING:
    from fitrouter.config import RewardModelConfig


def describe(entry: RewardModelConfig) -> Description:
    """Describe the configured model by its dimensions and the identity of its weights, read from its folder.

    Raises:
        ModelError: it cannot be found or read.
    """
    folder = checkpoint(entry.model, weights=False)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return Description(entry.dimensions or _labels(config), identify(folder))
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError(f"{str(folder / 'config.json')!r} cannot be read: {error}; download the model again") from None


def _labels(config: dict[str, Any]) -> tuple[str, ...]:
    """Names of the outputs: `score` for one, else the labels if they have names, else numbers."""
    names = list((config.get("id2label") or {}).values()) or [""] * int(config.get("num_labels", 2))
    clean = [re.sub(r"[^a-z0-9_-]", "_", str(name).lower())[:40] for name in names]
    if len(clean) == 1:
        return ("score",)
    plain = len(set(clean)) < len(clean) or any(re.fullmatch(r"(label_\d+)?", name) for name in clean)
    return tuple(str(i) for i in range(len(clean))) if plain else tuple(clean)


def load(entry: RewardModelConfig, device: str, report: Callable[[Exception], None]) -> Transformer:
    """Load the model, which gives the outputs of its reward head for prompt and answer.

    Raises:
        ModelError: it cannot be loaded.
    """
    return Transformer(
        checkpoint(entry.model),
        outputs=len(describe(entry).dimensions),
        head=entry.head,
        max_tokens=entry.max_tokens,
        batch_tokens=entry.batch_tokens,
        device=device,
        compiled=device == "cuda" if entry.compile is None else entry.compile,
        report=report,
    )
