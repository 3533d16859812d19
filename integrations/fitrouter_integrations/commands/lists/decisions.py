"""`fitrouter decisions`: the last answers, with their model, probability, cost, score and votes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

from fitrouter.errors import ConfigError
from fitrouter.routing.explanation_text import odds
from fitrouter.stores.audit_log import AuditLog, command_act
from fitrouter.stores.content import Content
from fitrouter.stores.figures import usd
from fitrouter.stores.listing import ListedAnswer
from fitrouter_integrations.commands._gateway import Tenant, Url, connect
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile
from fitrouter_integrations.commands.lists import _source
from fitrouter_integrations.commands.lists._source import AsJson, Last, Model, Role, User


class DecisionView(ListedAnswer, frozen=True, kw_only=True):
    """A listed answer with its texts, if content is kept."""

    content: Content | None = None


def command(
    user: User = None,
    role: Role = None,
    model: Model = None,
    last: Last = 20,
    config: ConfigFile = DEFAULT,
    url: Url = None,
    tenant: Tenant = None,
    content: Annotated[
        bool, typer.Option(help="With question and answer, where `content` keeps them; noted in the audit log.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the last answers: when, whose, model, probability, cost, score and votes."""
    found: Sequence[ListedAnswer]
    if content and url is not None:
        raise ConfigError("--content: contents are read from the data folder only; leave out --url")
    with connect(config, url, tenant=tenant) as gateway:
        found = gateway.entries("/v1/decisions", ListedAnswer, user=user, role=role, model=model, last=last)
    if content:
        with _source.opened(config) as (folder, journal, identities):
            AuditLog(folder).note(command_act("content read", answers=str(len(found))))
            from fitrouter.stores.contents import ContentStore

            kept = ContentStore(folder, journal, identities).of([one.decision_id for one in found])
        texts = {one.decision_id: one.content for one in kept}
        found = [DecisionView(**msgspec.structs.asdict(one), content=texts.get(one.decision_id)) for one in found]
    empty = "no decisions" + (" of these" if user or role or model or tenant else " yet")
    _source.show(found, lambda: [line for one in found for line in _lines(one)], as_json, empty)


def _lines(one: ListedAnswer) -> list[str]:
    return _source.record(
        f"{_source.when(one.ts)}  {one.decision_id}",
        f"{_source.who(one.user, one.subject, one.role, one.tenant)}: {one.model}",
        ", ".join(_facts(one)),
        *_texts(one),
    )


def _texts(one: ListedAnswer) -> list[str]:
    if not isinstance(one, DecisionView):
        return []
    if one.content is None:
        return ["content: not kept"]
    answer = one.content.message.get("content")
    return [f"asked: {one.content.prompt}", f"answered: {answer if isinstance(answer, str) else one.content.message}"]


def _facts(one: ListedAnswer) -> list[str]:
    found = [f"{one.mode} with probability {odds(one.probability)}", one.status or "not complete"]
    if one.cost_usd is not None or one.unpriced:
        found.append("price not known" if one.cost_usd is None else usd(one.cost_usd))
    if one.latency_ms is not None:
        found.append(f"{one.latency_ms / 1000.0:.2f} s")
    if one.score is not None:
        found.append(f"score {one.score:.2f}")
    return found + [voted(kind, y) for kind, y in one.votes.items()]


def voted(kind: str, y: float) -> str:
    """Describe a vote in words.

    >>> voted("thumb", 1.0), voted("rating", 0.75)
    ('thumb up', 'rating 0.75')
    """
    return f"{kind} {'up' if y else 'down'}" if kind.startswith("thumb") else f"{kind} {y:g}"
