"""Hugging Face reward models with a sequence-classification head, scalar or with several objectives."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from fitrouter.config import RewardModelConfig
from fitrouter.types import Floats
from fitrouter_evaluators.scoring.models.checkpoint import checkpoint, fingerprint, read_configuration
from fitrouter_evaluators.scoring.models.reward_model import Description, Item
from fitrouter_evaluators.scoring.models.transformer import Transformer


def describe(entry: RewardModelConfig) -> Description:
    """Dimensions and fingerprint of the configured model, from its folder.

    Raises:
        ModelError: it cannot be found.
    """
    folder = checkpoint(entry.model, weights=False)
    return Description(entry.dimensions or _labels(read_configuration(folder)), fingerprint(folder))


def _labels(config: dict[str, object]) -> tuple[str, ...]:
    """Names of the outputs: `score` for one, else the labels if they have names, else numbers."""
    labels = config.get("id2label")
    number = config.get("num_labels")
    names = list(labels.values()) if isinstance(labels, dict) else [""] * (number if isinstance(number, int) else 2)
    if len(names) == 1:
        return ("score",)
    clean = [re.sub(r"[^A-Za-z0-9_-]", "_", str(name))[:40].lower() for name in names]
    plain = len(set(clean)) < len(clean) or any(re.fullmatch(r"(label_\d+)?", name) for name in clean)
    return tuple(str(i) for i in range(len(clean))) if plain else tuple(clean)


class SequenceClassification:
    """Outputs of the model's reward head for prompt and answer; see `Transformer`.

    Raises:
        ModelError: the model cannot be loaded.
    """

    def __init__(self, entry: RewardModelConfig, device: str, report: Callable[[Exception], None]) -> None:
        self.transformer = Transformer(
            checkpoint(entry.model),
            classify=True,
            dimensions=len(entry.dimensions) or None,
            head=entry.head,
            max_tokens=entry.max_tokens,
            batch_tokens=entry.batch_tokens,
            device=device,
            compiled=device.startswith("cuda") if entry.compile is None else entry.compile,
            report=report,
        )

    def score(self, items: Sequence[Item]) -> Floats:
        """float64[n, outputs]."""
        return self.transformer.run(items)
