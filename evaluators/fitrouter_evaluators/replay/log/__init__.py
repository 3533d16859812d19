"""The log that a replay reads: sources, validation and audits."""
