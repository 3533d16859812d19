"""Commands that write and check configurations."""
