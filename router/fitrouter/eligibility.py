"""Which models a request can go to at all, and why the others cannot."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fitrouter.types import ModelCard

__all__ = ["partition"]


def partition(
    cards: Sequence[ModelCard], *, needs: Collection[str], tokens: int
) -> tuple[list[ModelCard], tuple[tuple[str, str], ...]]:
    """The eligible cards in canonical order, and (arm, reason) for each of the others.

    Args:
        cards: all models.
        needs: capabilities that the request uses, see `ModelCard.capabilities`.
        tokens: estimated tokens of the prompt plus the answer's limit.

    >>> cards = [ModelCard(name="small", provider="p", context_window=1000), ModelCard(name="big", provider="p")]
    >>> eligible, excluded = partition(cards, needs={"tools"}, tokens=2000)
    >>> [card.name for card in eligible], excluded
    (['big'], (('small', 'context: needs about 2000 tokens, has 1000'),))
    """
    eligible: list[ModelCard] = []
    excluded: list[tuple[str, str]] = []
    for card in sorted(cards, key=lambda card: card.arm):
        missing = sorted(set(needs) - set(card.capabilities))
        if missing:
            excluded.append((card.arm, f"capability: lacks {', '.join(missing)}"))
        elif tokens > card.context_window:
            excluded.append((card.arm, f"context: needs about {tokens} tokens, has {card.context_window}"))
        else:
            eligible.append(card)
    return eligible, tuple(excluded)
