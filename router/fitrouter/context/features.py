"""Features of a request: the text of the last user message, and a few flags.

Agent traffic is mostly long histories and tool calls, so a request is read in one pass over its messages that touches
only the text of the last user turn: the cost does not grow with the length of the other messages.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from fitrouter.context.encoders._base import Encoder
from fitrouter.types import Floats, Message, Request

FLAGS = ("tools", "turn", "history", "cjk", "other_script", "code")
"""Names of the flags, in the order of `flags`."""

TEXT_DIM = 48
"""Dimensions of the text block of the features."""

_IMAGE_TOKENS = 800
"""Tokens of an image in `estimate_tokens`."""

_EDGE = 512
"""Characters kept at either end of the text: about 128 tokens."""

_REMINDERS = ("system-reminder", "system_reminder", "environment_details", "environment_context", "additional_data")
"""Tags of text that agent frameworks insert into user messages."""

_TOOL_PARTS = ("tool_result", "tool_use", "function_call_output")
# Tuples, since a malformed type may be unhashable.
_IMAGE_PARTS = ("image_url", "image", "input_image")
_CJK = re.compile(
    "[\u1100-\u11ff\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]"
)
_LATIN = re.compile("[A-Za-z\u00aa\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff]")
_LETTER = re.compile(r"[^\W\d_]")
_CODE = re.compile(
    r"```|^\s{0,8}(?:def |class |import |from \w+ import |#include|function \w*\(|public |const \w+ ?=|SELECT .+ FROM )"
    r"|[;{]\s*$|</\w+>|=>|\w+\(\w*\)[:;.]|Traceback \(most recent",
    re.MULTILINE,
)
_FLAG_SCALE = 0.25
_TEXT_SCALE = math.sqrt(0.75)
_LOG_TURNS = math.log(64)
_LOG_HISTORY = math.log1p(131_072)


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a request that its features are computed from."""

    text: str
    """The last user turn without tool output and reminders: at most its first and last 512 characters."""
    tools: bool = False
    """The request offers tools."""
    turn: int = 0
    """Number of user turns so far; 1 for a fresh conversation."""
    history: int = 0
    """Estimated tokens of all messages together."""
    language: str = "latin"
    """Script of most letters: latin, cjk or other; latin if there are no letters."""
    code: bool = False
    """The text contains code."""


def read_prompt(request: Request, history: int | None = None) -> Reading:
    """Extract the properties of a request that features need; malformed messages count as empty, nothing is raised.

    Args:
        request: the request.
        history: estimated tokens of its messages, if known already.
    """
    turn = 0
    for message in request.messages:
        if message.get("role") == "user" and _has_words(message.get("content")):
            turn += 1
    last = last_user_message(request.messages)
    text = _cut("" if last is None else _user_text(last.get("content")))
    return Reading(
        text=text,
        tools=bool(request.params.get("tools") or request.params.get("functions")),
        turn=turn,
        history=estimate_tokens(request.messages, {}) if history is None else history,
        language=_language(text),
        code=_CODE.search(text) is not None,
    )


def last_user_message(messages: Sequence[Message]) -> Message | None:
    """The last user message with text of the user's own (not only tool output or reminders); None if there is none."""
    users = (message for message in reversed(messages) if message.get("role") == "user")
    return next((message for message in users if _user_text(message.get("content"))), None)


def flags(reading: Reading) -> Floats:
    """Return the flag features in the order of `FLAGS`, float64[6] in [0, 1].

    tools, cjk, other_script and code are 0 or 1; turn is log(turn) / log(64), history is
    log(1 + tokens) / log(1 + 131,072); both are at most 1.
    """
    return np.array(
        [
            float(reading.tools),
            min(1.0, math.log(max(reading.turn, 1)) / _LOG_TURNS),
            min(1.0, math.log1p(reading.history) / _LOG_HISTORY),
            float(reading.language == "cjk"),
            float(reading.language == "other"),
            float(reading.code),
        ]
    )


def context_names(dim: int = TEXT_DIM) -> tuple[str, ...]:
    """Names of the entries of `context_features`.

    >>> context_names(1)
    ('one', 'text_0', 'tools', 'turn', 'history', 'cjk', 'other_script', 'code')
    """
    return ("one", *(f"text_{i}" for i in range(dim)), *FLAGS)


def context_features(reading: Reading, encoder: Encoder, dim: int = TEXT_DIM) -> Floats:
    """The features x of a request, [1, text, flags], float64[1 + dim + 6].

    The text block has length √¾ (0 for a text without tokens) and a flag is at most ¼, so that without the leading 1
    the vector has a length of about 1, which the priors are scaled for. The text block is the projection of the
    encoder's vector on the leading directions of `encoder.basis` if it has one, or its first `dim` dimensions if they
    are ordered by variance (`encoder.ordered`), or else a Gaussian random projection that is determined by the
    encoder's id and `dim` (Johnson and Lindenstrauss 1984).
    """
    vector = encoder.encode([reading.text])[0]
    basis: Floats | None = getattr(encoder, "basis", None)
    if not vector.any():
        text = np.zeros(dim)
    elif basis is not None and dim < len(basis):
        text = np.einsum("ji,i->j", basis[1 : dim + 1], vector - basis[0])
    elif getattr(encoder, "ordered", False) and dim <= encoder.dim:
        text = vector[:dim]
    else:
        text = np.einsum("i,ij->j", vector, _projection(encoder.id, encoder.dim, dim))
    norm = math.sqrt(float(np.einsum("i,i->", text, text)))
    return np.concatenate([[1.0], text * (_TEXT_SCALE / norm if norm > 1e-12 else 0.0), flags(reading) * _FLAG_SCALE])


def estimate_tokens(messages: Sequence[Message], params: dict[str, Any]) -> int:
    """Estimate the tokens of messages and tools, independently of any model's tokeniser.

    A token is four bytes of UTF-8 (four Latin or one and a third Chinese characters), an image is 800 tokens, and each
    message adds 4. Binary payloads of images are not counted, those of other parts are.
    """
    size, _, images = _measured(list(messages))
    for key in ("tools", "functions", "response_format"):
        if (given := params.get(key)) is not None:
            own, leaves, _ = _measured([given])
            size += own + 4 * leaves
    return math.ceil(size / 4) + _IMAGE_TOKENS * images + 4 * len(messages)


def needs(request: Request) -> frozenset[str]:
    """Capabilities that a request needs from a model: any of streaming, tools, json, images."""
    params = request.params
    found = set()
    if request.stream:
        found.add("streaming")
    if params.get("tools") or params.get("functions") or any(_uses_tools(message) for message in request.messages):
        found.add("tools")
    response_format = params.get("response_format")
    if isinstance(response_format, dict) and response_format.get("type") in ("json_object", "json_schema"):
        found.add("json")
    contents = [content for message in request.messages if isinstance(content := message.get("content"), list)]
    if any(part.get("type") in _IMAGE_PARTS for content in contents for part in _parts(content)):
        found.add("images")
    return frozenset(found)


def session_key(request: Request, salt: bytes = b"") -> tuple[str, bool]:
    """Return the key (32 hex digits) of a request's conversation, and whether it is implicit.

    With a session id the key is a hash of (tenant, user, session). Without one it is implicit: a hash of tenant, user,
    system prompt and first user turn, which all requests of a conversation share. `salt` is the installation's secret
    (`Identities.salt`): without it the log would confirm guesses of who asked what.
    """
    identity = request.identity
    if identity.session is not None:
        return _digest(salt, "explicit", identity.tenant, identity.user, identity.session), False
    system = next((m.get("content") for m in request.messages if m.get("role") in ("system", "developer")), None)
    first = next((m.get("content") for m in request.messages if m.get("role") == "user"), None)
    return _digest(salt, "implicit", identity.tenant, identity.user, system, _user_text(first) or first), True


def is_followup(request: Request) -> bool:
    """Whether a model has already answered in this conversation."""
    return any(message.get("role") == "assistant" for message in request.messages)


def _digest(salt: bytes, *values: object) -> str:
    return hmac.digest(salt, json.dumps(values, sort_keys=True, default=repr).encode(), "sha256").hex()[:32]


def _parts(content: object) -> Iterator[dict[str, Any]]:
    """Yield the parts of a message's content; a string counts as one part."""
    if isinstance(content, str):
        yield {"type": "text", "text": content}
    elif isinstance(content, list):
        for part in content:
            if isinstance(part, dict):
                yield part
            elif isinstance(part, str):
                yield {"type": "text", "text": part}


def _texts(content: object) -> Iterator[str]:
    """The texts of a message's content, without tool output."""
    for part in _parts(content):
        if part.get("type") not in _TOOL_PARTS and isinstance(text := part.get("text"), str):
            yield text


def _has_words(content: object) -> bool:
    """Whether a user message has any text besides tool output; reminders count as text, to keep this cheap."""
    if isinstance(content, str):
        return bool(content) and not content.isspace()
    return any(text and not text.isspace() for text in _texts(content))


def _user_text(content: object) -> str:
    """The user's own text in a message, without tool output and reminders."""
    if isinstance(content, str):
        return _without_reminders(content).strip()
    return "\n".join(kept for text in _texts(content) if (kept := _without_reminders(text).strip()))


def _without_reminders(text: str) -> str:
    """Remove reminder blocks from a text, in linear time; a tag that is never closed stays."""
    if "</" not in text:
        return text
    for tag in _REMINDERS:
        opening, closing = f"<{tag}>", f"</{tag}>"
        kept = []
        position = 0
        while (start := text.find(opening, position)) >= 0 and (end := text.find(closing, start)) >= 0:
            kept.append(text[position:start])
            position = end + len(closing)
        if position:
            text = "".join([*kept, text[position:]])
    return text


def _cut(text: str) -> str:
    """Shorten a text to its first and last 512 characters, as valid Unicode."""
    if len(text) > 2 * _EDGE:
        text = f"{text[:_EDGE]}\n{text[-_EDGE:]}"
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _language(text: str) -> str:
    if text.isascii():
        return "latin"
    letters = len(_LETTER.findall(text))
    cjk, latin = len(_CJK.findall(text)), len(_LATIN.findall(text))
    counts = {"latin": latin, "cjk": cjk, "other": letters - cjk - latin}
    return max(counts, key=counts.__getitem__)


def _measured(stack: list[Any]) -> tuple[int, int, int]:
    """Count (bytes, strings, images) in nested values, in one loop: an agent's history has thousands of values."""
    size = strings = images = 0
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            strings += 1
            size += len(item) if item.isascii() else len(item.encode("utf-8", "replace"))
        elif isinstance(item, dict):
            if item.get("type") in _IMAGE_PARTS:
                images += 1
                stack.extend(item[name] for name in ("content", "text") if name in item)  # which is no payload
            else:
                stack.extend(item.values())
        elif isinstance(item, (list, tuple)):
            stack.extend(item)
    return size, strings, images


def _uses_tools(message: Message) -> bool:
    return message.get("role") in ("tool", "function") or bool(message.get("tool_calls"))


@functools.lru_cache(maxsize=32)
def _projection(encoder_id: str, source: int, target: int) -> Floats:
    """Return a Gaussian random matrix that preserves lengths in expectation, float64[source, target]."""
    key = int.from_bytes(hashlib.sha256(f"{encoder_id}|{source}|{target}".encode()).digest()[:16], "little")
    matrix: Floats = np.random.Generator(np.random.Philox(key=key)).standard_normal((source, target)) / math.sqrt(
        target
    )
    return matrix
