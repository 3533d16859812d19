"""Commands that list what there is: decisions, feedback, users and models."""
