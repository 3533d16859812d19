"""Persistent stores: event journal, warehouse, identities and answer texts."""
