"""Measurements of an answer's text."""
