"""Routes of the console: its page under `/console`, and the JSON that it reads under `/console/api`.

A caller is known by the session's cookie or, as elsewhere, by a key in the header `Authorization`. A key sees its own
tenant; an administrator's sees all. What is changed here goes the way of `/v1/feedback` and `/v1/policy`.
"""

from __future__ import annotations

import asyncio
import math
import time
from functools import partial
from importlib import metadata
from typing import Any

import msgspec
from starlette.responses import Response

from fitrouter.config import Config
from fitrouter.errors import InvalidRequest, StoreError
from fitrouter.identity import canonical_role, decision_id_of
from fitrouter.posterior.arms import base_arm
from fitrouter.router import Router
from fitrouter.serving.policy_control import Outlook, Standing
from fitrouter.serving.recorder import read_in_time
from fitrouter.state.settings import names_of
from fitrouter.stores.audit_log import Act, AuditLog
from fitrouter.types import UNPRICED, Decision, FeedbackKind, Identity
from fitrouter_dashboards import console
from fitrouter_dashboards.console import Reads, alarms, decisions, overview
from fitrouter_dashboards.console.alarms import EVIDENCE, Unhappy
from fitrouter_dashboards.console.decisions import role_names
from fitrouter_dashboards.console.models import calibration, label_rates, model_figures, replays
from fitrouter_dashboards.console.money import GROUPS, caps, spent
from fitrouter_dashboards.console.overview import WINDOWS, gains, looked, single, unhappy
from fitrouter_dashboards.console.runs import runs
from fitrouter_dashboards.metrics import Metrics
from fitrouter_integrations.gateway._call import AuthenticatedCall
from fitrouter_integrations.gateway._explain import content_json, decision_json
from fitrouter_integrations.gateway._keys import Keys
from fitrouter_integrations.gateway._lists import LISTING
from fitrouter_integrations.gateway._models import ModelAdministration
from fitrouter_integrations.gateway.asgi._limits import headers_of
from fitrouter_integrations.gateway.asgi._wire import Problem, as_problem, readable
from fitrouter_integrations.gateway.console._calls import (
    Handler,
    body_of,
    file_response,
    is_secure,
    json_response,
    tenant_of,
    unread_part,
)
from fitrouter_integrations.gateway.console._decisions import Decisions
from fitrouter_integrations.gateway.console._estimates import Estimates
from fitrouter_integrations.gateway.console._people import People
from fitrouter_integrations.gateway.console._sessions import Sessions, check_origin
from fitrouter_integrations.gateway.console._tries import Tries

_SHOWN = 2**63
_SINGLE_S = 600.0
"""How long the best single model, of the whole log, is the same."""
_BUDGETS = 50
"""Tenants whose budget is shown, those with a changed one first."""


class Console:
    """The handlers of the console's routes.

    Args:
        router: whose log is shown.
        config: settings.
        metrics: which knows the router's status.
        chat: handler of a chat completion.
        steer: handler of a change of the policy.
        administration: adds and removes models.
        keys: of the gateway, which log in.
        sessions: that they begin.
        audit: gets a line when somebody reads kept texts.
        closing: set when the gateway ends.
    """

    def __init__(
        self,
        router: Router,
        config: Config,
        metrics: Metrics,
        chat: Handler,
        steer: Handler,
        administration: ModelAdministration,
        keys: Keys,
        sessions: Sessions,
        audit: AuditLog,
        closing: asyncio.Event,
    ) -> None:
        self._router, self._metrics, self._steer, self._keys = router, metrics, steer, keys
        self._config, self._administration, self._audit = config, administration, audit
        self._sessions = sessions
        self._reads = Reads(router.warehouse)
        self.people = People(router, config, self._reads)
        self.tries = Tries(router, self._reads, audit, sessions, chat)
        self.log = Decisions(router, self._reads, audit, closing)
        self._estimates = Estimates(router, config, self._reads)

    def close(self) -> None:
        """Stop the threads of the queries."""
        self._reads.close()
        self.people.close()

    # --- the page ---

    async def root(self, call: AuthenticatedCall) -> Response:
        """Lead browsers to the console, and tell other clients where things are; relative, for prefixes of proxies."""
        if b"text/html" in headers_of(call.http.scope).get("accept", b""):
            return Response(status_code=307, headers={"location": "console"})
        return json_response({"object": "fitrouter", "base_url": "v1", "console": "console", "schema": "openapi.json"})

    async def page(self, _call: AuthenticatedCall) -> Response:
        """Serve the console's page."""
        return file_response(console, "index.html", {})

    async def asset(self, call: AuthenticatedCall) -> Response:
        """Serve a file of the page."""
        return file_response(console, call.http.path_params["name"], headers_of(call.http.scope))

    # --- sessions ---

    async def session(self, call: AuthenticatedCall) -> Response:
        """Return the state of the session: whether a login is needed, and the CSRF token."""
        needed = bool(self._keys)
        body = {
            "login": needed and not call.known,
            "keys": needed,
            "version": metadata.version("fitrouter"),
            "csrf": self._sessions.token(headers_of(call.http.scope)),
        }
        if call.known or not needed:
            added = {each.name for each in self._router.registry.additions()}
            models = {name: card.arm for name, card in self._router.models.items() if card.name not in added}
            body |= {"tenant": tenant_of(call), "admin": call.admin, "people": call.sees_people, "models": models}
        return json_response(body)

    async def enter(self, call: AuthenticatedCall) -> Response:
        """Begin a session with a key."""
        headers = headers_of(call.http.scope)
        check_origin(headers)
        key = (await body_of(call)).get("key")
        if not isinstance(key, str) or not key.strip():
            raise Problem(400, "invalid_request", "give a key of this gateway")
        caller = self._keys.caller(b"Bearer " + key.strip().encode())
        if caller is None:
            raise Problem(
                401, "invalid_api_key", "this key is unknown here, or has ended; keys are made by who runs this gateway"
            )
        if "read" not in caller.scopes:
            raise Problem(403, "missing_scope", "the console needs a key with the scope 'read'")
        return json_response({}, {"set-cookie": self._sessions.cookie(key.strip(), is_secure(call))})

    async def leave(self, call: AuthenticatedCall) -> Response:
        """End the session."""
        check_origin(headers_of(call.http.scope))
        return json_response({}, {"set-cookie": self._sessions.cookie("", secure=False)})

    # --- views ---

    async def now(self, call: AuthenticatedCall) -> Response:
        """Return the data of the view *Now*; where the figures cannot be read, the error with the other alarms."""
        window = call.http.query_params.get("window", "auto")
        if window not in {*WINDOWS, "auto", "all"}:
            raise Problem(400, "invalid_request", f"window: got {window[:40]!r}; give auto, all, {', '.join(WINDOWS)}")
        tenant = tenant_of(call)
        now, policy = self._router.clock(), self._router.policy
        found, low, problem = dict[str, Any](), Unhappy(0, []), None
        try:
            found, low = await asyncio.gather(
                self._reads.get(("now", tenant, window), partial(overview, self._reads, tenant, window, now)),
                self._reads.get(("unhappy", tenant), partial(unhappy, self._reads, tenant, now - WINDOWS["30d"])),
            )
            if low.shown and call.sees_people:
                names = await read_in_time(self._router.lists.names, [token for _, token, *_ in low.shown])
                low = low._replace(name=" ".join(names.values())[:80])
        except StoreError as error:
            problem = as_problem(error)
        outlook, unread = (policy.outlook(call.tenant), {}) if problem else await self._outlook(call)
        standing = policy.standing(tenant)
        said = alarms(
            self._metrics.status,
            self._router.faults(),
            self._router.health.outages(tenant),
            outlook.flattered,
            tenant,
            low if call.sees_people else low._replace(shown=[]),
            standing.unpriced,
            standing.share,
            time.time(),
            [self._router.registry.models.names[name].arm for name in self._paused(standing)],
        )
        shown = {"unread": unread, "alarms": readable(msgspec.to_builtins(said), call.http.scope)}
        if problem:
            problem.more = shown
            raise problem
        return json_response({**found, "personalisation": msgspec.to_builtins(outlook.personalisation), **shown})

    def _paused(self, standing: Standing) -> list[str]:
        names = self._router.registry.models.names
        return [name for name in names_of(standing.settings.get("paused", "")) if name in names]

    async def _outlook(self, call: AuthenticatedCall) -> tuple[Outlook, dict[str, str]]:
        """Reports of the monitors of the caller's tenant, roles as requests name them, and what is unread."""
        found, given, unread = self._router.policy.outlook(call.tenant), dict[str | None, str](), dict[str, str]()
        try:
            read = partial(role_names, self._reads, call.tenant)
            names = await self._reads.get(("roles of one", call.tenant), read)
            given = {canonical_role(name): name for name in reversed(names)}
        except StoreError as error:  # they have the names under which they are learnt
            unread["roles"] = unread_part(self._router, call, "roles", error)
        named = {given.get(role, role): report for role, report in found.personalisation.items()}
        return msgspec.structs.replace(found, personalisation=named), unread

    async def gains(self, call: AuthenticatedCall) -> Response:
        """Return what routing gains over a single model, and what happened since somebody looked."""
        tenant, now, query = tenant_of(call), self._router.clock(), call.http.query_params
        begin, since = (_time(query.get(name), now) for name in ("from", "since"))
        default = self._router.policy.default
        best = "" if tenant is not None else self._metrics.best_single
        best = best or await self._reads.get(("single", tenant), partial(single, self._reads, tenant), _SINGLE_S)
        # Without a time the day ends now: its key must not change with the minute.
        kept_begin, kept_since = (at if name in query else None for name, at in (("from", begin), ("since", since)))
        key = ("gains", tenant, kept_begin, default, best)
        against, then = await asyncio.gather(
            self._reads.get(key, partial(gains, self._reads, tenant, begin, default, best)),
            self._reads.get(("looked", tenant, kept_since), partial(looked, self._reads, tenant, since, now)),
        )
        return json_response({"against": against, "looked": then})

    async def runs(self, call: AuthenticatedCall) -> Response:
        """Return the latest runs of agents, or one of them, with the names of their people."""
        call.require_people(LISTING)
        tenant, run = tenant_of(call), call.http.query_params.get("run")
        found = await self._reads.get(("runs", tenant, run), partial(runs, self._reads, tenant, run))
        names, unread = dict[str, str](), dict[str, str]()
        try:
            names = await read_in_time(self._router.lists.names, sorted({one["user"] for one in found if one["user"]}))
        except StoreError as error:  # the rest is from the warehouse
            unread["identities"] = unread_part(self._router, call, "identities", error)
        return json_response({"runs": [{**one, "name": names.get(one["user"])} for one in found], "unread": unread})

    async def money(self, call: AuthenticatedCall) -> Response:
        """Return what was spent, by model, role or day; to callers who may see people, by person."""
        query, tenant = call.http.query_params, tenant_of(call)
        window, by = query.get("window", "7d"), query.get("by", "model")
        if window not in {*WINDOWS, "all"} or by not in GROUPS:
            text = f"window: give all, {', '.join(WINDOWS)}; by: give {', '.join(GROUPS)}"
            raise Problem(400, "invalid_request", text)
        if by == "person":
            call.require_people("see what people cost")
        since = 0.0 if window == "all" else self._router.clock() - WINDOWS[window]
        read = partial(spent, self._reads, tenant, since, by)
        found: dict[str, Any] = await self._reads.get(("money", tenant, window, by), read)
        if by == "person":
            names = await read_in_time(self._router.lists.names, [row["key"] for row in found["rows"] if row["key"]])
            found = {**found, "rows": [{**row, "user": names.get(row["key"])} for row in found["rows"]]}
        policy, objective = self._router.policy.standing(tenant), self._config.objective
        live = {"cost_weight": objective.cost_weight, "floor": self._config.policy.floor, **policy.settings}
        efforts = caps(self._router.models, policy.settings.get("paused", ""))
        shown = {"window": window, "people": call.sees_people, "unpriced": policy.unpriced, "rule": UNPRICED}
        return json_response(
            {
                **found,
                **shown,
                "admin": call.admin,
                "efforts": efforts,
                "live": {name: live[name] for name in ("cost_weight", "floor")},
            }
        )

    async def decision(self, call: AuthenticatedCall) -> Response:
        """Explain a decision; to callers who may see people, with the session's other ones and the kept texts."""
        decision_id, tenant = decision_id_of(call.http.path_params["decision_id"]), tenant_of(call)
        events = await self._router.events(decision_id, tenant)
        found = decision_json(events, await self._router.explain(decision_id, tenant))
        decision = events[0]
        assert isinstance(decision, Decision)
        session, others, content, unread = decision.identity.session, [], None, dict[str, str]()
        default = self._router.policy.default  # as on the page of decisions
        if not call.sees_people:
            unread["content"] = "this key may not see what people asked; one with 'trusted: true' may"
            return json_response({**found, "user": None, "session": [], "content": None, "unread": unread})
        if session:
            filters = {"session": session}
            key = ("session", decision.identity.tenant, session)
            try:
                read = partial(decisions, self._reads, decision.identity.tenant, filters, None, default=default)
                others = (await self._reads.get(key, read))["decisions"]
            except StoreError as error:  # the rest is from the journal
                unread["session"] = unread_part(self._router, call, "warehouse", error)
        try:
            content = await self._router.content(decision_id, tenant)
            if content is not None:
                seen = {"decision": decision_id, "tenant": decision.identity.tenant}
                act = Act(ts=self._router.clock(), act="content read", by=call.caller.shown, about=seen)
                await asyncio.to_thread(self._audit.note, act)
        except (StoreError, ValueError) as error:  # a text that cannot be read, or not be noted, hides nothing else
            content = None
            unread["content"] = unread_part(self._router, call, "content", error)
        person, named = decision.identity.user, dict[str, str]()
        try:
            named = await read_in_time(self._router.lists.names, [person] if person else [])
        except StoreError as error:
            unread["identities"] = unread_part(self._router, call, "identities", error)
        return json_response(
            {
                **found,
                "tenant": decision.identity.tenant,
                "user": person,
                "name": named.get(person or ""),
                "default": default,
                "session": [{**each, "name": named.get(each["user"])} for each in others],
                "content": None if content is None else content_json(content),
                "unread": unread,
            }
        )

    async def feedback(self, call: AuthenticatedCall) -> Response:
        """Give a thumb for the person who got an answer."""
        self._sessions.check(headers_of(call.http.scope))
        body = await body_of(call)
        value = body.get("value")
        if value not in ("up", "down"):
            raise Problem(400, "invalid_request", "value: give up or down")
        decision_id = decision_id_of(str(body.get("decision_id")))
        decision = (await self._router.events(decision_id, tenant_of(call)))[0]
        assert isinstance(decision, Decision)
        given = await self._router.feedback(
            decision_id,
            FeedbackKind.THUMB,
            1.0 if value == "up" else 0.0,
            identity=Identity(tenant=decision.identity.tenant),
            trusted=call.sees_people,
            vouched=call.vouches,
        )
        self._reads.forget()
        return json_response({"id": given})

    async def policy(self, call: AuthenticatedCall) -> Response:
        """Return the policy in force, its candidates, the monitors and, for an administrator, changes and replays."""
        policy = self._router.policy
        (outlook, unread), standing = await self._outlook(call), policy.standing(tenant_of(call))
        shown = {**msgspec.to_builtins(standing), "outlook": msgspec.to_builtins(outlook), "unread": unread}
        objective, status = self._config.objective, self._metrics.status
        shown["unpriced_rule"] = UNPRICED
        shown["configured"] = {
            "share": self._config.share,
            "cost_weight": objective.cost_weight,
            "latency_weight": objective.latency_weight,
            "floor": self._config.policy.floor,
        }
        spent = set() if status is None else set(status.budget_spent)
        names = sorted({*standing.budgets, *spent} if call.admin else {call.tenant})
        states = ((name, policy.budget(name)) for name in names)
        limited = [(name, state) for name, state in states if state.usd_per_period is not None]
        shown["budgets"] = {
            name: {**msgspec.to_builtins(state), "changed": name in standing.budgets}
            for name, state in sorted(limited, key=lambda pair: pair[0] not in standing.budgets)[:_BUDGETS]
        }
        if call.admin:
            shown |= await self._reads.get("replays", partial(replays, self._reads))
        return json_response({**shown, "admin": call.admin})

    async def models(self, call: AuthenticatedCall) -> Response:
        """Return each model's card, whether it can be called, and its figures of a week."""
        tenant, since = tenant_of(call), self._router.clock() - WINDOWS["7d"]
        figures = await self._reads.get(("models", tenant), partial(model_figures, self._reads, tenant, since))
        status, registry = self._metrics.status, self._router.registry
        registry.current()
        out = dict(status.breakers) if status else {}
        added = {each.name: each for each in registry.additions()}
        models = [
            {
                "name": name,
                "arm": card.arm,
                "revision": card.revision,
                "variant": card.variant.name if card.variant else "",
                "provider": card.provider,
                "target": card.target,
                "input_usd_per_million": card.prices.input if card.prices.known else None,
                "output_usd_per_million": card.prices.output if card.prices.known else None,
                "context_window": card.context_window,
                "capabilities": list(card.capabilities),
                "availability": status.availability.get(base_arm(card.arm)) if status else None,
                "unanswered": msgspec.to_builtins(status.unanswered.get(card.arm)) if status else None,
                "drift": status.drift.get(base_arm(card.arm)) if status else None,
                "out": readable(out.get(card.arm) or out.get(f"provider {card.provider}"), call.http.scope),
                "added": added[card.name].ts if card.name in added and not card.variant else None,
                "figures": figures.get(card.arm, {}),
            }
            for name, card in registry.models.names.items()
        ]
        standing = self._router.policy.standing()
        paused, force = self._paused(standing), standing.settings.get("force", "")
        providers = list(self._config.providers) if call.admin else []
        unused = [msgspec.to_builtins(each) for each in added.values() if each.fault] if call.admin else []
        shown = {"models": models, "unused": unused, "force": force, "paused": paused, "unpriced_rule": UNPRICED}
        limits = self._config.server.additions
        able = {"private_addresses": limits.private_addresses, "key_envs": list(limits.key_envs)} if call.admin else {}
        return json_response({**shown, "providers": providers, "additions": able, "admin": call.admin})

    async def learning(self, call: AuthenticatedCall) -> Response:
        """Return the progress of learning, and the state of its monitors."""
        tenant, since = tenant_of(call), self._router.clock() - WINDOWS["7d"]
        month = self._router.clock() - WINDOWS["30d"]
        labels, curve = await asyncio.gather(
            self._reads.get(("labels", tenant), partial(label_rates, self._reads, tenant, since)),
            self._reads.get(("calibration", tenant), partial(calibration, self._reads, tenant, month)),
        )
        (outlook, unread), status = await self._outlook(call), self._metrics.status
        shown = {
            "unread": unread,
            "labels": labels,
            "calibration": curve,
            "evidence": outlook.evidence_against_propensities,
            "alarm": EVIDENCE,
            "flattered": outlook.flattered,
            "personalisation": msgspec.to_builtins(outlook.personalisation),
            "faults": self._router.faults(),
            "status": None,
        }
        if status is not None:
            names = ("seq", "labels", "quarantined", "skipped", "lag", "leases", "drift", "availability", "mixture")
            shown["status"] = {name: msgspec.to_builtins(getattr(status, name)) for name in names}
            fields = ("answers", "missing", "error")
            shown["reward_models"] = {
                name: {field: getattr(health, field) for field in fields}
                for name, health in status.reward_models.items()
            }
        return json_response(readable(shown, call.http.scope))

    async def estimate(self, call: AuthenticatedCall) -> Response:
        """Estimate from the log what a change of the policy would do."""
        self._sessions.check(headers_of(call.http.scope))
        call.require_admin("change the policy")
        return json_response(await self._estimates.of(await body_of(call)))

    async def add(self, call: AuthenticatedCall) -> Response:
        """Add a model, or answer with a sentence on what is wrong with it."""
        self._sessions.check(headers_of(call.http.scope))
        try:
            found = await self._administration.add_model(call)
        except InvalidRequest as error:
            return json_response({"error": str(error)})
        self._reads.forget()
        return found

    async def remove(self, call: AuthenticatedCall) -> Response:
        """Remove a model that was added."""
        self._sessions.check(headers_of(call.http.scope))
        found = await self._administration.remove_model(call)
        self._reads.forget()
        return found

    async def change(self, call: AuthenticatedCall) -> Response:
        """Change the policy."""
        self._sessions.check(headers_of(call.http.scope))
        found = await self._steer(call)
        self._reads.forget()
        return found


def _time(text: str | None, now: float) -> float:
    """Read a time in seconds since the epoch, a whole minute at least one before now; a day ago if there is none."""
    try:
        ts = now - WINDOWS["24h"] if text is None else float(text)
    except ValueError:
        ts = math.nan
    if not 0.0 <= ts < _SHOWN:
        raise Problem(400, "invalid_request", "from and since: give seconds since the epoch")
    return min(ts, now - 60.0) // 60.0 * 60.0
