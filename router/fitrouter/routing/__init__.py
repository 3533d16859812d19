"""From a request to a decision: eligibility, the decision pipeline, and explanations."""
