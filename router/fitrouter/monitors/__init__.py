"""Monitors folded from the journal: personalisation, reward-model bias, propensities, drift."""
