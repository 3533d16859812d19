"""Backend that calls a gateway over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from fitrouter.context.features import last_user_message
from fitrouter.errors import (
    AllModelsFailed,
    ConfigError,
    ContextOverflow,
    FitrouterError,
    InvalidRequest,
    NoEligibleModel,
    NotAuthorized,
    ProviderError,
    ProviderRejected,
    Unavailable,
    Unreachable,
    in_words,
)
from fitrouter.identity import RUN
from fitrouter.providers import further_fields
from fitrouter.providers.usage import read_usage
from fitrouter.serving.external import Outcome
from fitrouter.serving.feedback import Understood
from fitrouter.serving.runs import Reported
from fitrouter.types import Chunk, Completion, FeedbackKind, Identity, Request, Usage
from fitrouter_integrations._errors import CODES
from fitrouter_integrations._http import KEY_ENV
from fitrouter_integrations.client._base import (
    About,
    Comment,
    Model,
    ObservedCall,
    Plan,
    Reply,
    RunVote,
    Streaming,
    Vote,
)

if TYPE_CHECKING:
    import aiohttp


CONNECT_S = 5.0
QUICK_S = 60.0
"""Time limit of requests that call no model."""
BUSY_S = 60.0
"""How long requests wait in all for a gateway that is too busy."""
LIMIT = 256
"""Connections to one gateway."""
TOKENS = 10_000
"""Answers whose tokens a client remembers."""
LINE_BYTES = 8 << 20
"""Maximum size of a stream event."""

BUSY = frozenset({"overloaded", "too_many_requests"})
"""Codes of refusals before anything was begun."""
_ERRORS: dict[str, type[FitrouterError]] = {
    **{code: kind for kind, _, code in CODES},
    "model_not_found": InvalidRequest,
    **dict.fromkeys(("invalid_api_key", "missing_scope", "not_admin", "token_required"), NotAuthorized),
    "rate_limited": Unavailable,
    "no_eligible_model": NoEligibleModel,
    "provider_rejected": ProviderRejected,
    "all_models_failed": AllModelsFailed,
}
"""The gateway's error code → the exception that `Router` raises in process."""


class RemoteBackend:
    """Backend that calls a gateway over HTTP.

    Args:
        url: such as `http://127.0.0.1:8484`, with or without `/v1`.
        key: sent as a bearer token; by default from the environment variable FITROUTER_API_KEY.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._key = key if key is not None else os.environ.get(KEY_ENV, "").strip()
        self._session: aiohttp.ClientSession | None = None
        self._tokens: OrderedDict[str, str] = OrderedDict()
        """Decision → token of its answer, for feedback that does not bring it."""

    def __repr__(self) -> str:
        return f"RemoteBackend({self.url!r})"

    async def start(self) -> None:
        import aiohttp

        headers = {"authorization": f"Bearer {self._key}"} if self._key else {}
        self._session = aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(limit=LIMIT),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            read_bufsize=LINE_BYTES,
        )

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def models(self) -> tuple[Model, ...]:
        listed = await self._quickly("GET", "/v1/models")
        found = (entry["fitrouter"] | {"name": entry["id"]} for entry in listed["data"] if "fitrouter" in entry)
        return tuple(msgspec.convert(about, Model) for about in found)

    async def complete(self, request: Request) -> Reply:
        async with _in_time(request.deadline_s):
            body = await self._read(await self._ask(request, stream=False))
        choice, *others = body["choices"]
        return Reply(
            message=choice["message"],
            finish_reason=choice["finish_reason"],
            usage=read_usage(body["usage"]) or Usage(),
            about=self._parse_about(body["fitrouter"]),
            logprobs=choice.get("logprobs"),
            others=tuple(msgspec.convert(other, Completion) for other in others),
            further=further_fields(body),
        )

    async def stream(self, request: Request) -> Streaming:
        async with _in_time(request.deadline_s):
            response = await self._ask(request, stream=True)
            stream = _RemoteStream(response, self._parse_about)
            try:
                await stream.begin()
            except BaseException:
                response.close()
                raise
        return stream

    async def decide(self, request: Request) -> Plan:
        found = await self._quickly("POST", "/v1/plans", _body(request, stream=request.stream))
        plan = msgspec.convert(found, Plan)
        self._parse_about(found["about"])
        return msgspec.structs.replace(plan, deadline_s=request.deadline_s or plan.deadline_s)

    async def look(self, request: Request) -> Plan:
        return msgspec.convert(
            await self._quickly("POST", "/v1/plans", _body(request, stream=False) | {"kind": "look"}), Plan
        )

    async def report(self, decision_id: str, request: Request, ended: Outcome) -> float | None:
        # Of a long history, send only what the scorer reads.
        messages = (last_user_message(request.messages) or request.messages[-1],)
        asked = {"messages": messages, "tools": request.params.get("tools")}
        how = {"tried": msgspec.to_builtins(ended.tried), "status": ended.status, "ttft_ms": ended.ttft_ms}
        body = {**asked, **how, **_answer(ended.completion, ended.cost_usd)}
        found = await self._quickly("POST", f"/v1/plans/{quote(decision_id, safe='')}/outcome", _given(body))
        cost_usd: float | None = found["cost_usd"]
        return cost_usd

    async def observe(self, seen: ObservedCall) -> About:
        asked = _body(msgspec.structs.replace(seen.request, model=seen.model), stream=False)
        how = {"latency_ms": seen.latency_ms, "error": seen.error}
        body = {**asked, **_given({**how, **_answer(seen.completion, seen.cost_usd)})}
        return self._parse_about((await self._quickly("POST", "/v1/observations", body))["about"])

    async def feedback(self, vote: Vote) -> str:
        body = {name: value for name, value in msgspec.to_builtins(vote).items() if value is not None}
        del body["tenant"]
        for name, of in (("token", vote.decision_id), ("other_token", vote.other or "")):
            if name not in body and of in self._tokens:
                body[name] = self._tokens[of]
        if vote.kind is not FeedbackKind.RATING:
            body = {name: value for name, value in body.items() if name not in ("scale", "default_scale")}
        found: str = (await self._quickly("POST", "/v1/feedback", body))["id"]
        return found

    async def outcome(self, vote: RunVote) -> Reported:
        body = {name: value for name, value in msgspec.to_builtins(vote).items() if value not in (None, "")}
        del body["tenant"]
        path = f"/v1/runs/{quote(body.pop('run'), safe='')}/outcome"
        return msgspec.convert(await self._quickly("POST", path, body), Reported)

    async def comment(self, comment: Comment) -> Understood:
        token = comment.token or self._tokens.get(comment.decision_id)
        given = {"comment": comment.text, "understood": comment.understood, "user": comment.user, "token": token}
        found = await self._quickly("POST", "/v1/feedback", {"decision_id": comment.decision_id, **_given(given)})
        return Understood(found["understood"], tuple(found["not_understood"]), found["remark_id"], found["reasons"])

    def _parse_about(self, found: Mapping[str, Any]) -> About:
        """Parse the decision of an answer, and remember its token for feedback."""
        about = msgspec.convert(found, About)
        if about.token:
            self._tokens[about.decision_id] = about.token
            if len(self._tokens) > TOKENS:
                self._tokens.popitem(last=False)
        return about

    async def _quickly(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a request that calls no model, within a short time limit, and return its JSON answer.

        Raises:
            Unreachable: no answer, or not in time.
            FitrouterError: the gateway refuses the request.
        """
        try:
            async with asyncio.timeout(QUICK_S):
                return await self._read(await self._open(method, path, body))
        except TimeoutError:
            raise Unreachable(f"the gateway at {self.url} did not answer within {QUICK_S:g} s") from None

    async def _read(self, response: aiohttp.ClientResponse) -> Any:
        async with response:
            return msgspec.json.decode(await response.read())

    async def _ask(self, request: Request, *, stream: bool) -> aiohttp.ClientResponse:
        run = {"x-fitrouter-plan": request.plan} if request.plan else {}
        run |= {"x-fitrouter-chosen-by": "person"} if request.person else {}
        return await self._open("POST", "/v1/chat/completions", _body(request, stream=stream), run)

    async def _open(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> aiohttp.ClientResponse:
        """Send a request, again while the gateway is too busy to admit it; return the response with status 200.

        Raises:
            Unreachable: no answer.
            FitrouterError: the gateway refuses the request, or was too busy for `BUSY_S`.
        """
        import aiohttp

        assert self._session is not None, "start() comes first"
        data, patience_s = None if body is None else _json(body), BUSY_S
        while True:
            try:
                response = await self._session.request(
                    method, self.url + path, data=data, headers={"content-type": "application/json", **(headers or {})}
                )
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise Unreachable(
                    f"no gateway answers at {self.url} ({in_words(error)}); start one with "
                    "`fitrouter serve`, or give another URL"
                ) from None
            if response.status == HTTPStatus.OK:
                return response
            async with response:
                refused = await response.read()
            wait_s = _busy_s(response.status, refused, response.headers.get("retry-after", ""))
            if wait_s is None or wait_s > patience_s:
                raise _refused(refused, response.status, self.url)
            patience_s -= wait_s
            await asyncio.sleep(wait_s)


class _RemoteStream:
    """Server-sent events as chunks; `begin` reads the first one."""

    def __init__(self, response: aiohttp.ClientResponse, parse_about: Callable[[Mapping[str, Any]], About]) -> None:
        self._response, self._parse_about = response, parse_about
        self._about: About | None = None
        self._first: Chunk | None = None
        self._ended = False

    @property
    def about(self) -> About:
        assert self._about is not None, "begin() comes first"
        return self._about

    async def begin(self) -> None:
        self._first = await self._next()

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        try:
            chunk = self._first
            while chunk is not None:
                yield chunk
                chunk = await self._next()
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        if not self._ended:
            self._response.close()  # a stream that is left early must not be read to its end
        self._response.release()

    async def _next(self) -> Chunk | None:
        """Read the next chunk; None at `[DONE]`.

        Raises:
            ProviderError: the stream broke off, or carries an error event.
        """
        import aiohttp

        try:
            async for line in self._response.content:
                data = line.removeprefix(b"data:").strip()
                if not line.startswith(b"data:") or not data:
                    continue
                if data == b"[DONE]":
                    self._ended = True
                    return None
                found = msgspec.json.decode(data)
                if "error" in found:
                    raise _error({"code": "", "message": "the stream failed", **found["error"]})
                return self._chunk(found)
        except (aiohttp.ClientError, OSError) as error:
            raise ProviderError(f"the stream from the gateway broke off ({in_words(error)})") from error
        raise ProviderError("the stream from the gateway ended without [DONE]: the answer is incomplete")

    def _chunk(self, found: dict[str, Any]) -> Chunk:
        if "fitrouter" in found:
            self._about = self._parse_about(found["fitrouter"])
        choice = found["choices"][0] if found["choices"] else {}
        return Chunk(
            delta=choice.get("delta", {}),
            finish_reason=choice.get("finish_reason"),
            usage=read_usage(found.get("usage")),
            logprobs=choice.get("logprobs"),
            index=choice.get("index", 0),
            further=further_fields(found),
        )


@asynccontextmanager
async def _in_time(deadline_s: float | None) -> AsyncIterator[None]:
    """Enforce a caller's own deadline, which cancels the work in the gateway too.

    Raises:
        AllModelsFailed: no answer began in time.
    """
    try:
        async with asyncio.timeout(deadline_s):
            yield
    except TimeoutError:
        raise AllModelsFailed(f"no answer in {deadline_s} s", timed_out=True) from None


def _json(body: Mapping[str, Any]) -> bytes:
    """Encode a body as JSON in UTF-8; lone surrogates, which UTF-8 cannot encode, are replaced."""
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def _body(request: Request, *, stream: bool) -> dict[str, Any]:
    """Return the chat completions body of a `Request`.

    Raises:
        NotAuthorized: it names a tenant.
    """
    who = request.identity
    if who.tenant != Identity().tenant:
        raise NotAuthorized(
            f"tenant: got {who.tenant!r}; a gateway takes it from the key: omit it, and use that tenant's key"
        )
    named: dict[str, Any] = {"user": who.user, "role": who.role, "task": who.task, "session": who.session}
    named |= {"run_id": who.run or RUN.get() or None, "tier": request.tier or None}
    named["implicit"] = None if request.implicit else False
    body: dict[str, Any] = {**request.params, "model": request.model, "messages": request.messages}
    if metadata := {name: value for name, value in named.items() if value is not None}:
        body["metadata"] = metadata
    if request.n > 1:
        body["n"] = request.n
    return body | ({"stream": True, "stream_options": {"include_usage": True}} if stream else {})


def _answer(completion: Completion | None, cost_usd: float | None) -> dict[str, Any]:
    """Return the body fields for a completion and its cost."""
    answer = (
        {} if completion is None else msgspec.to_builtins(msgspec.structs.replace(completion, logprobs=None, others=()))
    )
    return {**answer, "cost_usd": cost_usd}


def _given(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if value is not None}


def _busy_s(status: int, body: bytes, retry_after: str) -> float | None:
    """Seconds until a request that was not admitted may be sent again; None if it was refused for another reason."""
    if status not in {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}:
        return None
    with suppress(msgspec.DecodeError, KeyError, TypeError):
        if msgspec.json.decode(body)["error"]["code"] in BUSY:
            asked = min(float(retry_after), BUSY_S) if retry_after.isdigit() else 1.0
            return asked * random.uniform(0.5, 1.5)  # noqa: S311 - so that not all come back at once
    return None


def _refused(payload: bytes, status: int, url: str) -> FitrouterError:
    try:
        problem = msgspec.json.decode(payload)["error"]
        if problem["code"] == "not_found":
            return ConfigError(
                f"the gateway at {url} has no such route: it is too old for this, or the URL is wrong; update "
                "fitrouter there, or give another URL"
            )
        error = _error(problem)
    except (msgspec.DecodeError, KeyError, TypeError):
        # A proxy in front of a gateway that is down answers in its own format.
        kind = Unreachable if status >= HTTPStatus.INTERNAL_SERVER_ERROR else ConfigError
        return kind(f"the server at {url} (status {status}) is not a fitrouter gateway")
    if isinstance(error, AllModelsFailed):
        error.timed_out = status == HTTPStatus.GATEWAY_TIMEOUT
    return error


def _error(problem: Mapping[str, Any]) -> FitrouterError:
    code, message = problem["code"], problem["message"]
    if code == "context_length_exceeded":  # raised by a provider, or by the router
        by_provider = problem.get("param") is not None
        return ContextOverflow(message, 400) if by_provider else NoEligibleModel(message, too_long=True)
    return _ERRORS.get(code, ProviderError if code in {"cancelled", "internal_error"} else FitrouterError)(message)
