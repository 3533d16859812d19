"""Commands that run experiments and training offline: bench, simulate and train."""
