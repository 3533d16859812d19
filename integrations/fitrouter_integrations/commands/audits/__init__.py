"""Commands that look at whom an installation serves, and how safely."""
