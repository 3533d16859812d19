"""Analysis of one metric: units, outcomes, outcome models, labels and diagnostics."""
