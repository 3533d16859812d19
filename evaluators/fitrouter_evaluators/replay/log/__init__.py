"""Logs: sources, validation and audit."""
