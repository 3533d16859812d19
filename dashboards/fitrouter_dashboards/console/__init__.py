"""The console: its page, and what its views read from the warehouse and the router. The gateway serves it."""

from fitrouter_dashboards.console.alarms import Alarm, alarms
from fitrouter_dashboards.console.assets import Asset, assets
from fitrouter_dashboards.console.decisions import decisions
from fitrouter_dashboards.console.overview import overview
from fitrouter_dashboards.console.reads import Reads

__all__ = ["Alarm", "Asset", "Reads", "alarms", "assets", "decisions", "overview"]
