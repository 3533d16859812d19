"""Fields of answers that are not part of OpenAI's format, such as citations: passed on within bounds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from fitrouter.providers._addresses import names_address

OURS = frozenset(
    ("id", "object", "created", "model", "choices", "usage", "error", "fitrouter", "data", "kv_transfer_params")
)
"""What the gateway writes itself, and vLLM's field with addresses of its workers."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_MOST = 32
"""Fields of an answer, or of a chunk."""
_MOST_BYTES = 65_536
"""Of all of them, as JSON."""
LEFT_OUT = "fitrouter_dropped"
"""Field with the names of those beyond these limits."""


def further_fields(body: Mapping[str, Any], host: str = "", left_out: Iterable[str] = ()) -> dict[str, Any]:
    """Return the fields at the top of an answer that can be passed on: few, short, and not the gateway's own.

    Args:
        body: of the answer, or of a chunk.
        host: of the server; a field that names it, or another address within a network, is left out.
        left_out: names of what is left out of the answer already.

    Names of what is left out for its size are under `LEFT_OUT`.

    >>> further_fields({"id": "x", "choices": [], "citations": ["https://example.org"], "x-odd": 1, "none": None})
    {'citations': ['https://example.org']}
    """
    found, left_out, left = dict[str, Any](), [*left_out], _MOST_BYTES
    for name, value in body.items():
        if name in OURS or value is None or name.lower().startswith("fitrouter") or not _NAME.fullmatch(name):
            continue
        encoded = msgspec.json.encode(value, enc_hook=str)
        if len(encoded) > left or len(found) == _MOST:
            left_out.append(name)
        elif not names_address(value, host):
            found[name] = value
            left -= len(encoded)
    return found | ({LEFT_OUT: left_out[:_MOST]} if left_out else {})
