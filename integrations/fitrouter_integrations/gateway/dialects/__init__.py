"""APIs that the gateway speaks: translations of their requests into chat completions, and of the answers back."""
