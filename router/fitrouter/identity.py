"""Canonical names of roles and tasks, ids of decisions, and keys of runs."""

from __future__ import annotations

import functools
import hashlib
import re
from contextvars import ContextVar

from fitrouter.types import Floats, Identity

_BITS = 4
_CLUSTERS = tuple(f"cluster {i}" for i in range(1 << _BITS))
_TEMPLATE = re.compile(r"\{\{.*?\}\}|\{.*?\}|<[^<>]*>")
_ANSWER = re.compile(r"^(chatcmpl-|msg_|resp_)")
_SPACE = re.compile(r"[\s_\-]+")


@functools.lru_cache(maxsize=4096)
def canonical_role(role: str | None) -> str | None:
    """The id of a role: template fields stripped, casefolded, one space between words; None if nothing is left.

    >>> canonical_role("  Senior_Tax-Analyst {company}")
    'senior tax analyst'
    """
    if role is None:
        return None
    return _SPACE.sub(" ", _TEMPLATE.sub(" ", role)).strip().casefold()[:200] or None


def role_key(identity: Identity) -> str:
    """Return the key of a role, which includes its tenant; empty without a role."""
    return _role_key(identity.tenant, identity.role) if identity.role else ""


@functools.lru_cache(maxsize=4096)
def _role_key(tenant: str, role: str) -> str:
    name = canonical_role(role)
    return f"{tenant}\x1f{name}" if name else ""


def task_of(identity: Identity, x: Floats) -> str:
    """The task of a request: the client's label, or else one of 16 prompt clusters.

    The clusters are the orthants of the four leading text directions of x, which are ordered by variance: they need no
    training data and never change.
    """
    if identity.task:
        return f"task {canonical_role(identity.task)}"
    return _CLUSTERS[sum(1 << i for i, value in enumerate(x[1 : 1 + _BITS].tolist()) if value > 0.0)]


RUN: ContextVar[str] = ContextVar("fitrouter_run", default="")
"""Id of the run of an agent that calls are steps of, where their requests name none."""


def owned_run(run: str, key: str) -> str:
    """Return a run's id with the untrusted key that begins or reports it: such keys share no runs with others."""
    return f"{key}\x1f{run}" if key else run


def run_key(tenant: str, subject: str | None, run: str) -> str:
    """Hash a run's id with whose it is, so that an id that others guess is the id of another run.

    >>> run_key("default", None, "nightly")
    'run-b02bdcfcce185108251763c2c4be2269'
    """
    return "run-" + hashlib.sha256(f"{tenant}\x1f{subject or ''}\x1f{run}".encode()).hexdigest()[:32]


def decision_id_of(text: str) -> str:
    """Extract the decision id from the id of an answer (a completion, a message, or a response), or from itself.

    >>> decision_id_of("chatcmpl-0198"), decision_id_of(" 0198")
    ('0198', '0198')
    """
    return _ANSWER.sub("", text.strip())
