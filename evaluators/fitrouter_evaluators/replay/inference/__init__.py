"""Confidence intervals and confidence sequences."""
