"""Research that no command reaches; benchmarks and tests use it."""
