"""Addresses within a network, in what servers say: of no use to callers, and a map for whoever attacks it."""

from __future__ import annotations

import contextlib
import ipaddress
import re
from typing import Any

HIDDEN = "[address]"
_INSIDE = frozenset({"arpa", "cluster", "consul", "corp", "docker", "home", "internal", "intranet", "lan", "local"}) | {
    *("localdomain", "localhost", "private", "svc")
}
"""Labels of names that a network gives itself."""
_V6 = re.compile(r"(?<![\w.:])\[?[0-9A-Fa-f]{0,4}:[0-9A-Fa-f:.]{1,42}(?:%\w{1,15})?\]?(?::\d{2,5})?")
_NAMED = re.compile(
    r"(?<![\w.@/-])(?P<scheme>[A-Za-z]{2,12}:\\?/\\?/(?:[^\s/\\\"'<>@]{1,99}@)?)?"
    r"(?P<host>[A-Za-z0-9_][A-Za-z0-9_.-]{0,252})(?::(?P<port>\d{2,5})(?![\w.-]))?(?!@)"
)
_DOTTED = re.compile(r".*-(?=\d+\.\d+\.\d+\.\d+$)")
_LONGEST, _MOST = 512, 32_768
"""Characters of a text without blanks, and of all of them, in which an address is looked for."""


def without_addresses(text: str) -> str:
    """Replace the addresses within a network in a text: private ones, names of its own domains, names with a port.

    >>> without_addresses("http://vllm:8000/v1 at 10.1.2.3:8000 failed; see https://example.org/docs of 8.8.8.8")
    '[address]/v1 at [address] failed; see https://example.org/docs of 8.8.8.8'
    """
    return _NAMED.sub(_named, _V6.sub(lambda found: HIDDEN if _private(found[0]) else found[0], text))


def names_address(value: Any, host: str = "") -> bool:
    """Whether a text, however deep in a value of JSON, names a host, or is an address within a network."""
    left, read = [value], 0
    while left:
        one = left.pop()
        if isinstance(one, dict):
            left.extend((*one, *one.values()))
        elif isinstance(one, list):
            left.extend(one)
        elif isinstance(one, str) and host and host in one.lower():
            return True
        elif isinstance(one, str) and len(one) <= _LONGEST and ("." in one or ":" in one) and len(one.split()) == 1:
            read += len(one)
            if read > _MOST or without_addresses(one) != one:
                return True
    return False


def _named(found: re.Match[str]) -> str:
    host, port = found["host"].rstrip(".-"), found["port"] or ""
    labels = host.lower().split(".")
    if len(labels) == 1:
        inside = bool(found["scheme"]) or labels[0] == "localhost" or (len(port) > 3 and "-" in host)
    elif labels[-1].isdigit():
        inside = _private(_DOTTED.sub("", host))
    else:
        inside = bool(port) or not _INSIDE.isdisjoint(labels[1:])
    return HIDDEN + found["host"][len(host) :] if inside else found[0]


def _private(text: str) -> bool:
    text = text.lstrip("[").partition("]")[0].partition("%")[0].rstrip(".")
    try:
        return not is_public(text)
    except ValueError:
        return False


def in_networks(host: str, entries: str) -> bool:
    """Whether a host is an address in one of the networks among the entries of NO_PROXY, or such an address itself.

    >>> [in_networks(each, "example.org, 10.0.0.0/8,fd00::/8") for each in ("10.1.2.3", "fd00::1", "11.0.0.1", "ten")]
    [True, True, False, False]
    """
    for entry in entries.split(","):
        with contextlib.suppress(ValueError):
            if ipaddress.ip_address(host) in ipaddress.ip_network(entry.strip().strip("[]"), strict=False):
                return True
    return False


def is_public(address: str) -> bool:
    """Whether an address belongs to the public internet.

    >>> [is_public(each) for each in ("1.1.1.1", "10.0.0.1", "127.0.0.1", "::1", "::ffff:10.0.0.1", "169.254.169.254")]
    [True, False, False, False, False, False]
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    inner = getattr(found, "ipv4_mapped", None) or getattr(found, "sixtofour", None) or found
    if any(inner in each for each in _EMBEDDING):
        inner = ipaddress.IPv4Address(int(inner) & 0xFFFF_FFFF)
    return bool(inner.is_global and not inner.is_multicast and not any(inner in each for each in _NOT_PUBLIC))


_EMBEDDING = tuple(map(ipaddress.ip_network, ("64:ff9b::/96", "::ffff:0:0:0/96", "::/96")))
"""Networks whose addresses end with that of an IPv4 host."""
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(each)
    for each in (
        *("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32"),
        *("fec0::/10", "64:ff9b:1::/48", "5f00::/16", "3fff::/20", "100:0:0:1::/64"),
    )
)
"""What Python calls global, though it is of one site, a translator's, a cloud's (Azure's host) or a network's own."""
