"""Candidates: policies that can be evaluated on a log."""
