"""Gateways, scorers and services as deployments of Ray Serve; Ray is imported only where one is deployed."""

from __future__ import annotations

from fitrouter_integrations.deploy._cluster import check, deploy, stop

__all__ = ["check", "deploy", "stop"]
