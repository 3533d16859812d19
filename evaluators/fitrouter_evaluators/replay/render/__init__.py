"""Renders reports as text and as HTML."""
