"""The demo: simulated users send requests to a real gateway over simulated models."""
