"""Intervals for a single look, and confidence sequences."""
