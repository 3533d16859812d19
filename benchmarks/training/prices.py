"""Make the table of known models that `fitrouter init`, `config import` and `config check` read, from litellm's.

    python -m benchmarks.training.prices          # writes it anew; the same version of litellm gives the same bytes

A row is the facts of one or more models, then their names. The file says what it is made from, and under which
license.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from fitrouter_integrations.commands.setup import _prices

SOURCE = "model_prices_and_context_window_backup.json"
NOTICE = f"Made from litellm's {SOURCE}: Copyright (c) 2023 Berri AI, MIT License."
LONG = re.compile(r"(?:input|output)_cost_per_token_above_(\d+)k_tokens")
CHATS = frozenset({"chat", "responses", "completion"})


def main() -> None:
    path = Path(_prices.__file__).with_name(_prices.FILE)
    path.write_text(table(), encoding="utf-8")
    print(json.dumps({"file": path.name, "bytes": path.stat().st_size, "models": len(_prices.table().models)}))


def table() -> str:
    """The file's text."""
    known = json.loads(resources.files("litellm").joinpath(SOURCE).read_text(encoding="utf-8"))
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for name, entry in known.items():
        if name != "sample_spec" and isinstance(entry, dict) and isinstance(entry.get("mode"), str):
            alike[json.dumps(facts(entry))].append(name)
    rows = sorted(([*json.loads(values), sorted(names)] for values, names in alike.items()), key=lambda row: row[-1])
    head = {"notice": NOTICE, "litellm": metadata.version("litellm"), "columns": _prices.COLUMNS}
    return json.dumps({**head, "rows": rows}, separators=(",", ":")) + "\n"


def facts(entry: dict[str, Any]) -> list[Any]:
    """Values of the columns; of a model that answers no chats its mode alone."""
    if entry["mode"] not in CHATS:
        return [entry["mode"]] + [None] * (len(_prices.COLUMNS) - 1)
    entry = {"max_input_tokens": entry.get("max_tokens")} | entry
    entry.setdefault("cache_read_input_token_cost", entry.get("input_cost_per_token_cache_hit"))
    if long := sorted({int(found[1]) for name in entry if (found := LONG.fullmatch(name))}):  # the first step counts
        steps = {side: entry.get(f"{side}_cost_per_token_above_{long[0]}k_tokens") for side in ("input", "output")}
        entry |= {"long_above": long[0] * 1000} | {f"{side}_cost_per_token_above": usd for side, usd in steps.items()}
    return [entry.get(name) for name in _prices.COLUMNS]


if __name__ == "__main__":
    main()
