"""Serving a request: attempts, recording, external execution, feedback, policy steering, background services."""
