"""Audit of a role: whether answers change with what a person does not want counted."""
