"""Centre and scale of the response features: written by `benchmarks.training.constants`, not by hand.

From the 960 answers of MT-bench (see the data sheet in `style`).
"""

from __future__ import annotations

STYLE_CONSTANTS: dict[str, tuple[float, float]] = {
    "length": (6.0825, 1.3665),
    "structure": (0.1273, 0.5),
    "emphasis": (0.0, 0.5),
    "hedging": (0.0486, 0.1116),
    "warmth": (0.0991, 0.35),
    "formality": (-0.0394, 0.1287),
    "word_length": (4.5098, 1.0625),
    "code": (0.1049, 0.3049),
    "digits": (1.3076, 2.8639),
    "examples": (0.0147, 0.05),
    "sentence_length": (2.5138, 0.7219),
    "vocabulary": (0.733, 0.1086),
    "questions": (0.0618, 0.2699),
    "refusal": (0.0173, 0.1082),
    "assertiveness": (0.0196, 0.05),
    "flattery": (0.0011, 0.05),
    "evidence": (0.0286, 0.0921),
    "concreteness": (0.4186, 0.736),
    "personal": (0.0832, 0.1986),
}
"""Dimension → (centre, scale)."""

LATENT_CONSTANTS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "static-3e88f1182f64": (
        (
            0.5164,
            1.3278,
            0.4293,
            0.382,
            -0.5009,
            0.1455,
            0.0268,
            0.6189,
            -0.1125,
            0.8503,
            0.3883,
            -0.2564,
            -0.2882,
            -0.2645,
            -0.3062,
            -0.2307,
        ),
        (
            1.1246,
            1.2281,
            1.6046,
            1.041,
            1.5256,
            1.2739,
            1.0256,
            1.1752,
            1.0392,
            0.9962,
            0.981,
            0.9533,
            0.9151,
            1.1581,
            1.1484,
            0.9479,
        ),
    ),
}
"""Encoder id → (centres, scales) of its latent directions."""

VALUE_CONSTANTS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "static-3e88f1182f64": (
        (
            0.0247,
            0.4989,
            0.2331,
            -0.0609,
            -0.6894,
            1.0273,
        ),
        (
            0.7295,
            0.9606,
            1.1008,
            0.9633,
            1.1209,
            1.4287,
        ),
    ),
}
"""Encoder id → (centres, scales) of the value scores, in the order of `values.VALUES`."""
