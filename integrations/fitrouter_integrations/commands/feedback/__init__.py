"""Commands that give feedback on an answer of a running gateway."""
