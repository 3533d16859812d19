"""Commands about a running gateway: watch it, change its policy, and manage its keys."""
