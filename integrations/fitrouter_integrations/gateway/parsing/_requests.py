"""Parsing of request bodies and headers into requests, feedback, profiles and policy changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fitrouter.errors import InvalidRequest
from fitrouter.identity import decision_id_of
from fitrouter.state.budgets import check_limit
from fitrouter.types import AUTO, FeedbackKind, Identity, Request
from fitrouter_evaluators.personal import ACTIONS, CHOICES, Mark, Profile, PromptAnswers, parsed_profile
from fitrouter_integrations._identity import FIELDS, first_said
from fitrouter_integrations.client import Comment, Vote
from fitrouter_integrations.gateway.parsing._messages import messages_of
from fitrouter_integrations.gateway.parsing._transport import forbid_transport
from fitrouter_integrations.gateway.parsing._values import check_fields, number, optional, shown, string

MAX_STATEMENT = 1000
MAX_QUESTIONS = 50
MAX_CHOICES = 128
MAX_INPUTS = 2048
_VOTE = (
    *("decision_id", "kind", "value", "scale", "dimension", "other", "user", "comment", "understood"),
    *("default_scale", "token", "other_token"),
)
_HEADER = "x-fitrouter-"
"""Prefix of identity headers."""
_OURS = frozenset({"model", "messages", "stream", "stream_options", "user", "metadata", "n"})
"""Fields that are not sent to providers, which get no identities."""


def chat_request(body: dict[str, Any], headers: Mapping[str, bytes], tenant: str, most_choices: int = 1) -> Request:
    """Parse a body of POST /v1/chat/completions into a request.

    Args:
        body: parsed JSON.
        headers: lower-case name → value.
        tenant: of the caller's key.
        most_choices: highest `n`.

    Raises:
        ForbiddenField: the body sets transport.
        InvalidRequest: names the field and the reason.
    """
    forbid_transport(body)
    model = string(body.get("model", AUTO), "model")
    stream = optional(body, "stream", bool, "true or false") or False
    options = optional(body, "stream_options", dict, "an object") or {}
    if options and not stream:
        raise InvalidRequest("stream_options: only allowed with 'stream': true")
    n = optional(body, "n", int, "a whole number")
    n = 1 if n is None else n
    if not 1 <= n <= most_choices:
        raise InvalidRequest(f"n: got {n}; allowed is {'1' if most_choices == 1 else f'1 to {most_choices}'}")
    _check_params(body)
    optional(body, "metadata", dict, "an object")
    return Request(
        messages=messages_of(body.get("messages")),
        model=model,
        params={name: value for name, value in body.items() if name not in _OURS and value is not None},
        identity=_identity(body, headers, tenant),
        stream=stream,
        n=n,
        implicit=str((body.get("metadata") or {}).get("implicit", True)).lower() != "false",
    )


def embeddings_request(body: dict[str, Any], headers: Mapping[str, bytes], tenant: str) -> Request:
    """Parse a body of POST /v1/embeddings into a request.

    Raises:
        ForbiddenField: the body sets transport.
        InvalidRequest: names the field and the reason.
    """
    forbid_transport(body)
    given = body.get("input")
    if not _is_input(given):
        raise InvalidRequest(
            f"input: got {shown(given)}; give a text, an array of tokens, or an array of 1 to {MAX_INPUTS} of either"
        )
    optional(body, "dimensions", int, "a whole number")
    optional(body, "encoding_format", str, "'float' or 'base64'")
    return Request(
        messages=(),
        model=string(body.get("model"), "model"),
        params={name: value for name, value in body.items() if name not in _OURS and value is not None},
        identity=_identity(body, headers, tenant),
    )


def _is_input(given: object) -> bool:
    """Whether a value is a text, tokens, or a list of texts or tokens."""
    if isinstance(given, str):
        return bool(given)
    if not isinstance(given, list) or not given:
        return False
    if _are_tokens(given):
        return True
    return len(given) <= MAX_INPUTS and (
        all(isinstance(one, str) and one for one in given)
        or all(isinstance(one, list) and bool(one) and _are_tokens(one) for one in given)
    )


def _are_tokens(given: list[Any]) -> bool:
    return all(type(one) is int and 0 <= one < 2**31 for one in given)


def wants_usage(body: dict[str, Any]) -> bool:
    """Whether a stream should end with a usage chunk."""
    return bool((body.get("stream_options") or {}).get("include_usage"))


def feedback(body: dict[str, Any], headers: Mapping[str, bytes], tenant: str) -> tuple[Vote | None, Comment | None]:
    """Parse the vote and the comment in a body of POST /v1/feedback: at least one of them.

    Raises:
        InvalidRequest: names the field and the reason.
    """
    check_fields(body, _VOTE)
    said = _comment(body, headers, tenant)
    rated = any(name in body for name in ("kind", "value", "scale", "default_scale", "other", "dimension"))
    return _vote(body, headers, tenant) if rated or said is None else None, said


def _comment(body: dict[str, Any], headers: Mapping[str, bytes], tenant: str) -> Comment | None:
    """Parse a comment, or a correction of one; None if the body has neither."""
    text, understood = body.get("comment"), optional(body, "understood", dict, "an object of dimension → −1 … 1")
    if text is None and understood is None:
        return None
    if text is not None and understood is not None:
        raise InvalidRequest("understood: give either a comment or what is to be understood of it, not both")
    return Comment(
        decision_id=decision_id_of(string(body.get("decision_id"), "decision_id")),
        text=None if text is None else _statement(text, "comment"),
        understood=understood
        and {name: number(value, f"understood.{name[:100]}") for name, value in understood.items()},
        user=_identity({"user": body.get("user")}, headers, tenant).user,
        tenant=tenant,
        token=optional(body, "token", str, "a string"),
    )


def _vote(body: dict[str, Any], headers: Mapping[str, bytes], tenant: str) -> Vote:
    """Parse the vote in a body."""
    decision_id = decision_id_of(string(body.get("decision_id"), "decision_id"))
    kind, value = body.get("kind"), body.get("value")
    if value in ("up", "down") and kind in (None, "rating"):
        kind = "thumb"
    elif not isinstance(kind, str) or kind not in list(FeedbackKind):
        given = "missing" if kind is None else f"got {shown(kind)}"
        raise InvalidRequest(f'kind: {given}; allowed are {", ".join(FeedbackKind)}, or "value": "up" without a kind')
    elif kind != "rating" and ("scale" in body or "default_scale" in body):
        raise InvalidRequest(f"scale: only a rating has a scale, not a {kind}; leave it out")
    value = _thumb(value) if kind == "thumb" else number(value, "value")
    who = _identity({"user": body.get("user")}, headers, tenant)
    return Vote(
        decision_id=decision_id,
        kind=FeedbackKind(kind),
        value=value,
        scale=_scale(body, "scale") if kind == "rating" else None,
        default_scale=_scale(body, "default_scale") if kind == "rating" else None,
        dimension=string(body.get("dimension", "overall"), "dimension"),
        other=None if body.get("other") is None else decision_id_of(string(body.get("other"), "other")),
        user=who.user,
        tenant=tenant,
        token=optional(body, "token", str, "a string"),
        other_token=optional(body, "other_token", str, "a string"),
    )


class DeclaredProfile(NamedTuple):
    """What a user declares of themselves; None keeps the present values."""

    identity: Identity
    values: dict[str, float] | None
    words: list[str] | None
    goals: list[str] | None
    priorities: dict[str, float] | None
    examples: list[Mark]


def profile(body: dict[str, Any], headers: Mapping[str, bytes], tenant: str) -> DeclaredProfile:
    """Parse the declared profile in a body of PUT /v1/profile; its fields replace the earlier ones.

    Raises:
        InvalidRequest: names the field and the reason.
    """
    aims = ("goals", "priorities", "examples")
    check_fields(body, ("values", "statements", *aims, "user", "role"))
    values, priorities = (optional(body, name, dict, "an object of dimension → number") for name in ("values", aims[1]))
    statements, goals = (optional(body, name, list, "an array of strings") for name in ("statements", aims[0]))
    examples = optional(body, "examples", list, "an array of objects with good, and decision_id or text") or []
    if not any(name in body for name in aims):
        values, statements = values or {}, statements or []
    who = {"user": body.get("user"), "metadata": {"role": body.get("role")}}
    return DeclaredProfile(
        identity=_identity(who, headers, tenant),
        values=_numbers(values, "values"),
        words=_statements(statements, "statements"),
        goals=_statements(goals, "goals"),
        priorities=_numbers(priorities, "priorities"),
        examples=[_mark(each, f"examples[{i}]") for i, each in enumerate(examples)],
    )


def _numbers(values: dict[str, Any] | None, field: str) -> dict[str, float] | None:
    if values is None:
        return None
    return {string(name, field): number(value, f"{field}.{name}") for name, value in values.items()}


def _statements(texts: list[Any] | None, field: str) -> list[str] | None:
    return None if texts is None else [_statement(text, f"{field}[{i}]") for i, text in enumerate(texts)]


def _mark(item: object, where: str) -> Mark:
    if not isinstance(item, dict):
        raise InvalidRequest(f"{where}: got {shown(item)}; give an object with good, and decision_id or text")
    check_fields(item, ("good", "decision_id", "prompt", "text"))
    good, texts = item.get("good"), {name: item.get(name, "") for name in ("decision_id", "prompt", "text")}
    if "good" not in item or not (good is None or isinstance(good, bool)):
        raise InvalidRequest(f"{where}.good: got {shown(good)}; give true, false, or null to take the mark back")
    for name, text in texts.items():
        if not isinstance(text, str):
            raise InvalidRequest(f"{where}.{name}: got {shown(text)}; give a string")
    return Mark(good=good, **texts)


def imported_profile(body: dict[str, Any], headers: Mapping[str, bytes], tenant: str) -> tuple[Identity, Profile]:
    """Parse a body of PUT /v1/profile with an exported profile; returns the identity and the profile.

    Raises:
        InvalidRequest: names the field and the reason.
    """
    check_fields(body, ("profile", "user", "role"))
    who = {"user": body.get("user"), "metadata": {"role": body.get("role")}}
    return _identity(who, headers, tenant), parsed_profile(body["profile"])


def quiz_start(body: dict[str, Any], headers: Mapping[str, bytes], tenant: str) -> tuple[Identity, int | None, bool]:
    """Parse a body of POST /v1/quiz: identity, maximum number of questions, and whether to start anew.

    Raises:
        InvalidRequest: names the field and the reason.
    """
    check_fields(body, ("user", "role", "questions", "again"))
    questions = optional(body, "questions", int, "a whole number")
    if questions is not None and not 1 <= questions <= MAX_QUESTIONS:
        raise InvalidRequest(f"questions: got {shown(questions)}; allowed are 1 to {MAX_QUESTIONS}")
    again = optional(body, "again", bool, "true or false") or False
    who = {"user": body.get("user"), "metadata": {"role": body.get("role")}}
    return _identity(who, headers, tenant), questions, again


def quiz_owner(headers: Mapping[str, bytes], tenant: str) -> Identity:
    """Return the identity in the headers of GET /v1/quiz/ID."""
    return _identity({}, headers, tenant)


def histories(body: dict[str, Any]) -> list[Any]:
    """Return the conversations in a body of POST /v1/diagnose.

    Raises:
        InvalidRequest: names the field and the reason.
    """
    check_fields(body, ("history",))
    found = optional(body, "history", list, "an array of conversations, objects with OpenAI messages")
    if not found:
        raise InvalidRequest("history: missing; give an array of conversations, objects with OpenAI messages")
    return list(found)


def score_items(
    body: dict[str, Any], headers: Mapping[str, bytes], tenant: str
) -> tuple[list[PromptAnswers], Identity]:
    """Parse a body of POST /v1/score: prompts with answers, and whose taste scores them.

    Raises:
        InvalidRequest: names the field and the reason.
    """
    check_fields(body, ("user", "role", "items"))
    items = optional(body, "items", list, "an array of objects with a prompt and answers") or []
    who = {"user": body.get("user"), "metadata": {"role": body.get("role")}}
    return [_asked(item, f"items[{i}]") for i, item in enumerate(items)], _identity(who, headers, tenant)


def _asked(item: object, where: str) -> PromptAnswers:
    if not isinstance(item, dict):
        raise InvalidRequest(f"{where}: got {shown(item)}; give an object with a prompt and answers")
    check_fields(item, ("prompt", "answers"))
    prompt, answers = item.get("prompt", ""), item.get("answers")
    if not isinstance(prompt, str):
        raise InvalidRequest(f"{where}.prompt: got {shown(prompt)}; give a string")
    if not isinstance(answers, list) or not all(isinstance(text, str) for text in answers):
        raise InvalidRequest(f"{where}.answers: got {shown(answers)}; give an array of strings")
    return PromptAnswers(prompt, tuple(answers))


def quiz_answer(body: dict[str, Any], headers: Mapping[str, bytes], tenant: str) -> tuple[Identity, int, str]:
    """Parse a body of POST /v1/quiz/ID: identity, number of the question, and choice.

    Raises:
        InvalidRequest: names the field and the reason.
    """
    check_fields(body, ("user", "question", "choice"))
    number = optional(body, "question", int, "the number of the question that was answered")
    if number is None:
        raise InvalidRequest("question: missing; give the number of the question that was answered")
    choice = body.get("choice")
    if not isinstance(choice, str) or choice not in (*CHOICES, *ACTIONS):
        allowed = ", ".join((*CHOICES, *ACTIONS))
        raise InvalidRequest(f"choice: got {shown(choice)}; allowed are {allowed}")
    return _identity({"user": body.get("user")}, headers, tenant), number, choice


def policy_change(body: dict[str, Any]) -> tuple[str, dict[str, Any], str]:
    """Parse a body of POST /v1/policy: action, settings, and candidate or tenant.

    Raises:
        InvalidRequest: names the field and the reason.
    """
    takes = {"set": {"settings"}, "promote": {"name"}, "restore": set[str](), "budget": {"tenant", "usd_per_period"}}
    action = body.get("action")
    if not isinstance(action, str) or action not in takes:
        raise InvalidRequest(f"action: got {shown(action)}; allowed are {', '.join(takes)}")
    unknown = sorted(set(body) - {"action"} - takes[action])
    if unknown:
        raise InvalidRequest(f"{unknown[0]}: unknown field for the action {action!r}")
    if action == "budget":
        if missing := sorted(takes[action] - set(body)):
            raise InvalidRequest(f"{missing[0]}: missing; give a tenant and its usd_per_period, null to take it back")
        tenant, usd = check_limit(body["tenant"], body["usd_per_period"])
        return action, {"usd_per_period": usd}, tenant
    settings = optional(body, "settings", dict, "an object of setting → value") or {}
    name = optional(body, "name", str, "the name of a candidate") or ""
    return action, settings, name


# --- parameters ---------------------------------------------------------------------------------------------------


def _check_params(body: dict[str, Any]) -> None:
    """Check the parameters that the router reads, and the types of common ones."""
    for name in ("max_tokens", "max_completion_tokens"):
        limit = optional(body, name, int, "a whole number")
        if limit is not None and not 1 <= limit <= 2**31:
            raise InvalidRequest(f"{name}: got {limit}; allowed are 1 to {2**31}")
    for name in ("temperature", "top_p", "frequency_penalty", "presence_penalty"):
        if body.get(name) is not None:
            number(body[name], name)
    for name in ("tools", "functions"):
        items = optional(body, name, list, "an array of objects") or []
        if any(not isinstance(item, dict) for item in items):
            raise InvalidRequest(f"{name}: give an array of objects")
    optional(body, "response_format", dict, "an object")


# --- identity ------------------------------------------------------------------------------------------------------


def _identity(body: dict[str, Any], headers: Mapping[str, bytes], tenant: str) -> Identity:
    """Parse the identity: each field from its header, else from `metadata`, else (the user) from `user`.

    The tenant is always that of the key.
    """
    channels: list[tuple[str, object]] = [
        ("", {"tenant": tenant}),
        (_HEADER, {name: _header(headers, _HEADER + name) for name in FIELDS}),
        ("metadata.", optional(body, "metadata", dict, "an object")),
        ("", {"user": body.get("user")}),
    ]
    return Identity(**first_said(channels) | {"tenant": tenant})


def _header(headers: Mapping[str, bytes], name: str) -> str | None:
    raw = headers.get(name)
    if raw is None:
        return None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidRequest(f"{name}: the header is not UTF-8") from None


# --- values --------------------------------------------------------------------------------------------------------


def _statement(value: object, where: str) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_STATEMENT:
        raise InvalidRequest(f"{where}: got {shown(value)}; give a string of 1 to {MAX_STATEMENT} characters")
    return value


def _thumb(value: object) -> float:
    if value in ("up", 1):  # True is 1
        return 1.0
    if value in ("down", 0):
        return 0.0
    raise InvalidRequest(f"value: got {shown(value)}; a thumb is 'up' or 'down'")


def _scale(body: dict[str, Any], name: str) -> tuple[float, float] | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2:
        raise InvalidRequest(f"{name}: got {shown(value)}; give [lowest, highest], such as [1, 5]")
    return number(value[0], f"{name}[0]"), number(value[1], f"{name}[1]")
