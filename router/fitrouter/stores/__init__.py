"""Persistent stores: journal, warehouse, identities and content."""
