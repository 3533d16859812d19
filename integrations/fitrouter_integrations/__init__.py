"""Entry points to the router: the HTTP gateway, the command line, and adapters for agent frameworks."""
