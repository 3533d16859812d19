"""Preferences stated in words, parsed into prior tastes."""
