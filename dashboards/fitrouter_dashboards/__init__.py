"""Prometheus metrics of a router."""

from __future__ import annotations

from fitrouter_dashboards.metrics import Metrics, leases, worker_ended

__all__ = ["Metrics", "leases", "worker_ended"]
