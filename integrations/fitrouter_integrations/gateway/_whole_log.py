"""Handlers that read the whole log: satisfaction, exposure, certificates, suites; and diagnoses, and audits of roles.

Each is made in a process of its own at low priority, one at a time for each tenant and two at a time in all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import msgspec
from starlette.responses import Response

from fitrouter.config import Config, parse_config
from fitrouter.context.encoders import get_encoder
from fitrouter.errors import InvalidRequest, StoreError
from fitrouter.router import Router
from fitrouter.state.heard import Heard
from fitrouter.stores.audits import KEY, audit_file
from fitrouter.stores.erasure import WAREHOUSE
from fitrouter.stores.signing import signing_key, verified
from fitrouter.stores.warehouse import Warehouse
from fitrouter.types import Identity
from fitrouter_evaluators.background import in_background, work
from fitrouter_evaluators.personal.audit.page import audit_page
from fitrouter_evaluators.personal.audit.swaps import Audit
from fitrouter_integrations.gateway._call import AuthenticatedCall
from fitrouter_integrations.gateway.asgi._wire import Problem, dump
from fitrouter_integrations.gateway.parsing._people import HistoryBody
from fitrouter_integrations.gateway.parsing._requests import identity
from fitrouter_integrations.gateway.parsing._typed import typed

AT_ONCE = 2
"""Processes at a time."""
_COMMANDS = {"diagnosis": "diagnose", "suite": "suite generate"}
"""What is made → its command, where that has another name."""


class WholeLog:
    """Handlers over the log of a gateway.

    Args:
        config: locates the log, the signing key and the audits.
        body: reads the JSON body of a call.
    """

    def __init__(self, config: Config, body: Callable[[Any], Awaitable[dict[str, Any]]]) -> None:
        self._config, self._body = config, body
        self._busy: dict[str, int] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def satisfaction(self, call: AuthenticatedCall) -> Response:
        """Satisfaction of the tenant's people: mean, variance, worst tenth, worst role; who is worse off."""
        return await self._made("satisfaction", call, Identity(tenant=call.tenant))

    async def exposure(self, call: AuthenticatedCall) -> Response:
        """Variety of the answers of a tenant's people, and the cost of friction, exploration and privacy."""
        return await self._made("exposure", call, Identity(tenant=call.tenant))

    async def certificate(self, call: AuthenticatedCall) -> Response:
        """A signed fit certificate of the user of the headers, with the rows that it is recomputed from."""
        who = identity(call.headers, call.tenant)
        if not who.user:
            raise InvalidRequest("user: missing; name the user in the header x-fitrouter-user")
        return await self._made("certificate", call, who)

    async def suite(self, call: AuthenticatedCall) -> Response:
        """A personal test suite of the user or role of the headers, as JSON lines; without prompts of their own."""
        who = identity(call.headers, call.tenant)
        if not who.user and not who.role:
            raise InvalidRequest(
                "user: missing; name the user or role in the headers x-fitrouter-user, x-fitrouter-role"
            )
        return await self._made("suite", call, who)

    async def diagnose(self, call: AuthenticatedCall) -> Response:
        """Diagnose where a chat system's personalisation fails, from recorded conversations. Nothing is stored."""
        call.require_people("read what the log says of people")
        with self.alone(call):
            history = typed(await self._body(call), HistoryBody).history
            return await self._made("diagnosis", call, Identity(tenant=call.tenant), history=history, entered=True)

    async def audit(self, call: AuthenticatedCall) -> Response:
        """The latest signed audit of the role of the headers; as an HTML page where `accept` prefers it."""
        call.require_admin("read audits")
        role = identity(call.headers, call.tenant).role
        if not role:
            raise InvalidRequest("role: missing; name the role in the header x-fitrouter-role")
        try:
            document = msgspec.json.decode(
                await asyncio.to_thread(audit_file(self._config.data, role).read_bytes), type=dict[str, Any]
            )
            signer = verified(document)
            found = msgspec.convert(document, Audit)
        except FileNotFoundError:
            text = f"there is no audit of the role {role!r}; make one with `fitrouter audits role --role`"
            raise Problem(404, "not_found", text) from None
        except (OSError, msgspec.MsgspecError, InvalidRequest) as error:
            raise StoreError(f"the audit of the role {role!r} cannot be read: {error}") from None
        if b"text/html" in call.headers.get("accept", b""):
            page = audit_page(found, signer)
            return Response(page, media_type="text/html", headers={"x-content-type-options": "nosniff"})
        return Response(dump(document), media_type="application/json")

    @contextmanager
    def alone(self, call: AuthenticatedCall, most: int = 1) -> Iterator[None]:
        """Refuse a request beside `most` others of its tenant that take as long."""
        running = self._busy.get(call.tenant, 0)
        if running >= most:
            text = "other requests of this tenant read the whole log or score texts; wait for their answers"
            raise Problem(429, "busy", text, headers={"retry-after": "5"})
        self._busy[call.tenant] = running + 1
        try:
            yield
        finally:
            self._busy[call.tenant] -= 1
            if not self._busy[call.tenant]:
                del self._busy[call.tenant]

    async def _made(
        self, what: str, call: AuthenticatedCall, who: Identity, *, entered: bool = False, **more: Any
    ) -> Response:
        """Compute an answer in a background process; at most one at a time for each tenant."""
        call.require_people("read what the log says of people")
        with nullcontext() if entered else self.alone(call):
            async with self._slots:
                asked = {"what": what, "config": self._config.as_json(), "who": msgspec.to_builtins(who)}
                command = f"fitrouter {_COMMANDS.get(what, what)}"
                if call.caller.operator:  # nobody else waits for this process
                    found = await asyncio.to_thread(_read, asked | more)
                else:
                    found = await in_background(__name__, asked | more, command=command)
        if "invalid" in found:
            raise InvalidRequest(found["invalid"])
        if "error" in found:
            raise StoreError(found["error"])
        return Response(dump({"object": f"fitrouter.{what}", **found}), media_type="application/json")


# --- in the process ---


def _read(asked: dict[str, Any]) -> dict[str, Any]:
    """Compute the answer to a request of `WholeLog`, in its background process."""
    config, who = parse_config(asked["config"]), msgspec.convert(asked["who"], Identity)
    try:
        if asked["what"] == "diagnosis":
            return _diagnosis(config, asked["history"])
        with Router.offline(config) as router:
            return _READINGS[asked["what"]](config, router, who)
    except InvalidRequest as error:
        return {"invalid": str(error)}


def _diagnosis(config: Config, history: list[Any]) -> dict[str, Any]:
    from fitrouter_evaluators.personal.diagnose import AttributeJudge, Diagnostician, parsed

    lines = b"\n".join(msgspec.json.encode(each) for each in history)
    return _builtins(Diagnostician(get_encoder("static"), AttributeJudge.of(config)).diagnose(parsed(lines)))


def _satisfaction(config: Config, router: Router, who: Identity) -> dict[str, Any]:
    from fitrouter_dashboards.quality import saved_in
    from fitrouter_evaluators.personal.satisfaction import measure_satisfaction

    found = measure_satisfaction(config.data, router, tenant=who.tenant, now=time.time(), limits=config.feedback)
    hear = Heard(config.feedback.people_per_key, config.feedback.votes_per_day)
    warehouse = Warehouse(config.data / WAREHOUSE, hear=hear) if found.people else None
    return _builtins(found) | {"saved": saved_in(warehouse, router.policy.default, who.tenant)}


def _exposure(config: Config, router: Router, who: Identity) -> dict[str, Any]:
    from fitrouter_evaluators.personal.exposure import exposed
    from fitrouter_evaluators.scoring import STYLE

    names = {each.name for each in STYLE}
    style = [i for i, name in enumerate(router.people.features) if name in names]
    return _builtins(
        exposed(config.data, tenant=who.tenant, schema=router.people.schema, style=style, limits=config.feedback)
    )


def _certificate(config: Config, router: Router, who: Identity) -> dict[str, Any]:
    from fitrouter_evaluators.personal.certificate import certified, issued

    found = asyncio.run(certified(router, config, who))
    document, rows = issued(found, who, signing_key(config.data / KEY), ts=time.time())
    return {"certificate": document.decode(), "rows": rows.decode()}


def _suite(_config: Config, router: Router, who: Identity) -> dict[str, Any]:
    from fitrouter_evaluators.personal.suite import Generator

    return {"suite": asyncio.run(Generator(router).suite(who)).encoded().decode()}


def _builtins(found: msgspec.Struct) -> dict[str, Any]:
    return dict(msgspec.to_builtins(found))


_READINGS = {"satisfaction": _satisfaction, "exposure": _exposure, "certificate": _certificate, "suite": _suite}

if __name__ == "__main__":
    work(_read)
