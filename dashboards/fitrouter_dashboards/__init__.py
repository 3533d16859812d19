"""Prometheus metrics of a router."""

from __future__ import annotations

from fitrouter_dashboards.metrics import Metrics
from fitrouter_dashboards.samples import worker_ended

__all__ = ["Metrics", "worker_ended"]
