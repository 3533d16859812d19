"""Imports logs of other systems."""
