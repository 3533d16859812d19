"""Ways in: the gateway, the command line, and the adapters for agent frameworks. Import what you need of it."""
