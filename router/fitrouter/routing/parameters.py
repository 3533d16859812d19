"""Supported request parameters by API family, and detection of a model's API family and vendor.

A provider rejects a request that has an unsupported parameter, and a rejected request has no fallback. So support is
checked beforehand, against a table.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from fitrouter.posterior.arms import EFFORTS
from fitrouter.types import ModelCard

_TABLE = """
                        openai openai-o openai-5 anthropic google mistral cohere xai groq bedrock ollama
    temperature         +      .        .        +         +      +       +      +   +    +       +
    top_p               +      .        .        +         +      +       +      +   +    +       +
    top_k               .      .        .        +         +      .       .      .   .    +       +
    min_p               .      .        .        .         .      .       .      .   .    .       +
    repetition_penalty  .      .        .        .         .      .       .      .   .    .       .
    n                   +      +        +        .         +      .       +      +   .    .       .
    seed                +      +        +        .         +      +       +      +   +    .       +
    stop                +      .        .        +         +      +       +      .   +    +       +
    max_tokens          +      +        +        +         +      +       +      +   +    +       +
    max_completion_tokens +    +        +        +         +      +       +      +   +    +       +
    frequency_penalty   +      .        .        .         +      .       +      .   +    .       +
    presence_penalty    +      .        .        .         +      .       +      +   +    .       .
    logit_bias          +      .        .        .         .      .       .      +   .    .       .
    logprobs            +      .        .        .         +      .       .      +   .    .       .
    top_logprobs        +      .        .        .         .      .       .      +   .    .       .
    response_format     +      +        +        +         +      +       .      +   +    +       +
    tools               +      +        +        +         +      +       +      +   +    +       +
    tool_choice         +      +        +        +         +      +       +      +   +    +       +
    parallel_tool_calls +      .        +        +         +      +       .      +   +    +       .
    functions           +      +        +        .         +      .       .      .   +    .       +
    function_call       +      +        +        .         .      .       .      .   +    .       .
    reasoning_effort    .      +        +        +         +      .       .      .   .    +       +
    thinking            .      .        .        +         +      .       .      .   .    +       .
    reasoning           .      .        .        .         .      .       .      .   .    .       +
    include_reasoning   .      .        .        .         .      .       .      .   +    .       .
    reasoning_format    .      .        .        .         .      .       .      .   +    .       .
    enable_thinking     .      .        .        .         .      .       .      .   .    .       .
    thinking_budget     .      .        .        .         .      .       .      .   .    .       .
    chat_template_kwargs .     .        .        .         .      .       .      .   .    .       .
    verbosity           .      .        +        .         .      .       .      .   .    .       .
    modalities          +      +        .        .         +      .       .      .   .    .       .
    audio               +      +        .        .         .      .       .      .   .    .       .
    prediction          +      +        .        .         .      .       .      .   .    .       .
    web_search_options  +      +        .        +         +      .       .      +   .    .       .
    service_tier        +      +        +        .         +      .       .      .   +    +       .
    store               +      +        +        .         .      .       .      .   .    .       .
    prompt_cache_key    +      +        +        .         .      .       .      .   .    .       .
    prompt_cache_retention +   +        +        .         .      .       .      .   .    .       .
    safety_identifier   +      +        +        .         .      .       .      .   .    .       .
"""
"""Parameter × API family: + is supported, . is not.

From litellm's `get_supported_openai_params` (1.105), checked by `test_eligibility.py`, and from the providers' own
references where those are stricter or the parameter is not OpenAI's. Where models of a family differ, the stricter
value stands; a card's `parameters` override the table. Other families (vLLM, gateways, any server of the OpenAI
protocol) count as supporting everything but `_OWN`, and a parameter that is not in the table as supported by all.
"""

FAMILIES: tuple[str, ...] = tuple(_TABLE.split("\n")[1].split())
PARAMETERS: dict[str, dict[str, bool]] = {
    row.split()[0]: {name: cell == "+" for name, cell in zip(FAMILIES, row.split()[1:], strict=True)}
    for row in _TABLE.strip("\n ").split("\n")[1:]
}
"""Parameter → family → whether it is supported."""

_FORMS: dict[tuple[str, str], tuple[str, ...]] = {
    ("bedrock", "tool_choice"): ("auto", "required", "function"),
    ("cohere", "tool_choice"): ("auto", "none", "required"),
    ("deepseek", "response_format"): ("text", "json_object"),
    ("perplexity", "response_format"): ("text", "json_schema", "regex"),
}
"""(family, parameter) → supported forms, of parameters that have several; all forms if not listed."""

_OWN = {
    "thinking": re.compile("anthropic|toggled"),
    **dict.fromkeys(
        ("prompt_cache_key", "prompt_cache_retention", "safety_identifier", "store", "verbosity"), re.compile("openai")
    ),
}
"""Parameters that agents send to any model → the lineages for which servers of unknown kind get them."""
_TOGGLED = re.compile(r"deepseek|kimi|moonshot|glm-|\bz-?ai\b|zhipu")
"""Makers whose models know `thinking` as enabled or disabled, by a model's or provider's name."""

_DOUBTFUL = {
    api: frozenset(
        [name for name, columns in PARAMETERS.items() if not columns.get(api, True)]
        + [name for other, name in _FORMS if other == api]
        + [name for name in _OWN if api not in FAMILIES]
    )
    for api in (*FAMILIES, "openai_compatible", *(api for api, _ in _FORMS))
}
"""Family → parameters that it does not support, or not in every form."""

_LOW_TOKENS, _MEDIUM_TOKENS = 2048, 16_384
"""Largest budgets of thinking that are a low and a medium effort."""
_THINKING = ("reasoning_effort", "thinking", "reasoning", "enable_thinking", "thinking_budget")
"""Parameters that say how much a model thinks."""
_REASONS = re.compile(
    r"(?:^|/)(?:gpt-5(?!.*chat)|o[134](?:-|$))|claude-(?:opus|sonnet|haiku)-[4-9]|claude-3-7|gemini-(?:2\.5|[3-9])|gpt-oss"
)
"""Names of models that take a level of effort."""
_WEAKEST, _STRONGEST = {"openai-o": "low", "openai-5": "minimal"}, {"anthropic": "max", "openai_compatible": "max"}
"""Family → least and greatest effort that all its models take; `none` and `high` where it is not named."""
_TO_XHIGH = re.compile(r"gpt-5\.(?:[2-9]|1-codex-max)")

NEUTRAL: dict[str, tuple[object, ...]] = {
    "temperature": (1,),
    "top_p": (1,),
    "n": (1,),
    "stop": ([], ""),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("auto",),
    "parallel_tool_calls": (True,),
    "functions": ([],),
    "function_call": ("auto",),
    "reasoning_effort": ("none",),
    "thinking": ({"type": "disabled"},),
    "modalities": (["text"],),
    "service_tier": ("auto", "default"),
    "store": (False,),
}
"""Default values of parameters: frameworks send them unasked, and leaving them out changes nothing."""

_WITHOUT_CACHE_HINTS = frozenset(
    {"cohere", "deepseek", "groq", "mistral", "openai", "openai-5", "openai-o", "perplexity", "xai"}
)

SAID = frozenset({"audio", "content", "function_call", "reasoning", "reasoning_content", "reasoning_details"}) | {
    *("refusal", "thinking_blocks", "tool_calls")
}
"""Fields of a model's message in a history: one that has none of them says nothing, and many servers refuse it."""
_FOREIGN = frozenset({"annotations", "citations", "images", "provider_specific_fields", "reasoning"}) | {
    *("reasoning_content", "reasoning_details", "reasoning_items", "thinking_blocks")
}
"""Fields that other servers add to messages; those of `_STRICT` refuse a history with a field that they do not know."""
_STRICT = frozenset({"cohere", "groq", "mistral", "openai", "openai-5", "openai-o"})

_BY_CAPABILITY = frozenset(
    {"functions", "max_completion_tokens", "max_tokens", "metadata", "response_format", "stream", "stream_options"}
    | {"tools", "user"}
)
"""Parameters that a card need not list in `parameters`: its capabilities and limits cover them, or the router does."""

_ROUTES = {
    "anthropic": "anthropic",
    "azure": "openai",
    "bedrock": "bedrock",
    "codestral": "mistral",
    "cohere": "cohere",
    "cohere_chat": "cohere",
    "deepseek": "deepseek",
    "gemini": "google",
    "google": "google",
    "groq": "groq",
    "mistral": "mistral",
    "ollama": "ollama",
    "ollama_chat": "ollama",
    "openai": "openai",
    "perplexity": "perplexity",
    "xai": "xai",
}
"""First word of a target as litellm writes it, or name of a provider in the configuration → family."""

_MODELS = (
    (re.compile(r"claude-"), "anthropic"),
    (re.compile(r"gemini-\d"), "google"),
    (re.compile(r"(gpt-[345]|chatgpt-|o\d(-|$))"), "openai"),
    (re.compile(r"(mistral|magistral|codestral|ministral|pixtral)-(large|medium|small|tiny|saba|latest)"), "mistral"),
    (re.compile(r"command-(r|a|light|nightly)"), "cohere"),
    (re.compile(r"grok-\d"), "xai"),
    (re.compile(r"deepseek-(chat|reasoner)$"), "deepseek"),
)
"""Model names at the vendors' own endpoints → family."""

_LINEAGES = (
    (re.compile(r"claude|anthropic"), "anthropic"),
    (re.compile(r"gemini"), "google"),
    (re.compile(r"grok|\bxai\b"), "xai"),
    (re.compile(r"\bgpt-[345]|chatgpt|(^|/)o\d(-|$)|\bopenai/(?!gpt-oss)|\bazure/"), "openai"),
    (re.compile(r"qwen|llama|deepseek-[rv]\d|kimi|glm-|minimax|gpt-oss|gemma|\bphi-\d"), "open weights"),
)
UNKNOWN = ("bedrock", "openai_compatible")
"""What `lineage` says of a model whose name does not tell who made it."""


def takes(card: ModelCard, name: str, value: object) -> str:
    """The reason why a model does not support a parameter with this value; empty if it does.

    >>> takes(ModelCard(name="claude-x", provider="p"), "seed", 7)
    'parameter: needs seed, which anthropic models do not take'
    """
    if card.parameters is not None:
        if name in card.parameters or name in _BY_CAPABILITY:
            return ""
        return f"parameter: needs {name}, its card lists {', '.join(sorted(card.parameters)) or 'none'}"
    api = family(card)
    if not PARAMETERS.get(name, {}).get(api, True):
        return f"parameter: needs {name}, which {api} models do not take"
    if api not in FAMILIES and name in _OWN and not _OWN[name].fullmatch("toggled" if toggled(card) else lineage(card)):
        return f"parameter: needs {name}, which only its vendor's models are known to take"
    forms = _FORMS.get((api, name))
    if forms is not None and (form := _form(value)) not in forms:
        return f"parameter: needs {name} {form!r}, {api} models take {', '.join(forms)}"
    return ""


def toggled(card: ModelCard) -> bool:
    """Whether a model's `thinking` is enabled or disabled, and nothing else."""
    return family(card) not in FAMILIES and bool(_TOGGLED.search(f"{card.provider}/{card.target or card.name}".lower()))


def draws_choices(card: ModelCard) -> bool:
    """Whether a model is known to draw several choices in one call (`n`); many servers ignore or refuse it."""
    return "n" in card.parameters if card.parameters is not None else PARAMETERS["n"].get(family(card), False)


def takes_cache_hints(card: ModelCard) -> bool:
    """Whether a model may get `cache_control` in parts and tools: vendors without it refuse the field."""
    return family(card) not in _WITHOUT_CACHE_HINTS


def limit_name(card: ModelCard) -> str:
    """Name of the parameter that limits an answer: OpenAI's reasoning models refuse `max_tokens`."""
    return "max_completion_tokens" if family(card) in ("openai-5", "openai-o") else "max_tokens"


def takes_developer(card: ModelCard) -> bool:
    """Whether a model knows the role `developer`: OpenAI's own do; most servers refuse it and know `system`."""
    return lineage(card) == "openai"


def foreign_to(card: ModelCard) -> frozenset[str]:
    """Fields of a model's messages in a history that another model's server does not take; thinking is Anthropic's."""
    if family(card) in _STRICT:
        return _FOREIGN
    return frozenset() if lineage(card) in ("anthropic", *UNKNOWN) else frozenset({"thinking_blocks"})


def effort_of(card: ModelCard, params: Mapping[str, object]) -> str | None:
    """Return the `reasoning_effort` for Anthropic's `thinking`, OpenRouter's `reasoning`, or a level it lacks.

    None where there is nothing to translate. A budget has no exact counterpart: the limits are ours, and no
    measurement stands behind them.

    >>> effort_of(ModelCard(name="gpt-5-mini", provider="openai"), {"thinking": {"budget_tokens": 8000}})
    'medium'
    """
    asked = params.get("reasoning_effort")
    name = next((each for each in ("thinking", "reasoning") if isinstance(params.get(each), dict)), "")
    wanted: Any = params.get(name)
    if not name or asked is not None:
        return _nearest(card, asked)
    if not takes(card, name, wanted) or takes(card, "reasoning_effort", "medium"):
        return None
    if wanted.get("type") == "disabled" or wanted.get("enabled") is False:
        return None
    if wanted.get("effort") is not None:
        return _nearest(card, wanted["effort"]) or wanted["effort"]
    budget = wanted.get("budget_tokens", wanted.get("max_tokens"))
    if not isinstance(budget, int):
        return "medium"
    return "low" if budget <= _LOW_TOKENS else "medium" if budget <= _MEDIUM_TOKENS else "high"


def effort_params(card: ModelCard, level: str) -> dict[str, Any]:
    """The parameters by which a model's family takes a level of effort, or the nearest that it has.

    >>> effort_params(ModelCard(name="gpt-5-mini", provider="openai"), "none")
    {'reasoning_effort': 'minimal'}
    """
    if toggled(card):
        return {"thinking": {"type": "disabled" if level in ("none", "minimal") else "enabled"}}
    return {"reasoning_effort": _nearest(card, level) or level}


def reasons(card: ModelCard) -> bool:
    """Whether a model is known to take levels of effort, by its name.

    >>> [reasons(ModelCard(name=name, provider="p")) for name in ("gpt-5-mini", "gpt-4o", "gemini-2.5-flash")]
    [True, False, True]
    """
    return bool(_REASONS.search((card.target or card.name).lower()))


def effort_wish(card: ModelCard, params: Mapping[str, object]) -> str:
    """The effort that a request asks for itself; empty if it leaves it open."""
    if all(params.get(name) is None for name in _THINKING):
        return ""
    asked = params.get("reasoning_effort") or effort_of(card, params)
    return asked if isinstance(asked, str) else "another one"


def _nearest(card: ModelCard, asked: object) -> str | None:
    """Return the nearest effort that a model takes; None if it takes the one that was asked for, or knows no such."""
    if not isinstance(asked, str) or asked not in EFFORTS or card.parameters is not None:
        return None
    api, target = family(card), card.target or card.name
    high = "xhigh" if api == "openai-5" and _TO_XHIGH.search(target) else _STRONGEST.get(api, "high")
    low = "none" if high == "xhigh" else _WEAKEST.get(api, "none")
    level = min(max(EFFORTS.index(asked), EFFORTS.index(low)), EFFORTS.index(high))
    found = "low" if high == "xhigh" and asked == "minimal" else EFFORTS[level]
    return found if found != asked else None


def doubtful(card: ModelCard, params: Mapping[str, object]) -> list[str]:
    """Return the parameters that must be checked with `takes`, sorted; others are supported with any value."""
    if card.parameters is not None:
        return sorted(params.keys() - _BY_CAPABILITY - set(card.parameters))
    return sorted(params.keys() & _DOUBTFUL.get(family(card), frozenset()))


def family(card: ModelCard) -> str:
    """The API family of a model: a column of the table, deepseek or perplexity; openai_compatible for any other.

    Detected from the provider's name in the configuration, else from the target in litellm's form
    (`anthropic/claude-…`), else from the model's name.

    >>> family(ModelCard(name="smart", provider="litellm", target="azure/gpt-5-mini"))
    'openai-5'
    >>> family(ModelCard(name="local", provider="vllm", target="meta-llama/Llama-3.3-70B-Instruct"))
    'openai_compatible'
    """
    return _family(card.target or card.name, card.provider)


def lineage(card: ModelCard) -> str:
    """The vendor of a model, wherever it is hosted: only its models can read content that it signed or encrypted.

    >>> lineage(ModelCard(name="smart", provider="aws", target="bedrock/us.anthropic.claude-sonnet-4"))
    'anthropic'
    """
    return _lineage(card.target or card.name, card.provider)


@functools.lru_cache(maxsize=1024)
def _family(target: str, provider: str) -> str:
    route, _, rest = target.lower().partition("/")
    routed = bool(rest) and (route in _ROUTES or route == "vertex_ai")
    model = rest if routed else target.lower()
    # The provider's name comes first: its models may be called `openai/…` without being OpenAI's.
    api = _ROUTES.get(provider.lower()) or (_ROUTES.get(route) if routed else None)
    if api is None and "/" not in model:
        api = next((name for pattern, name in _MODELS if pattern.match(model)), None)
    if api == "openai":
        if re.match(r"o\d(-|$)", model):
            return "openai-o"
        if re.match(r"gpt-5(?!.*chat)", model):
            return "openai-5"
    return api or "openai_compatible"


@functools.lru_cache(maxsize=1024)
def _lineage(target: str, provider: str) -> str:
    for text in (target.lower(), provider.lower()):
        for pattern, name in _LINEAGES:
            if pattern.search(text):
                return name
    api = _family(target, provider)
    return "openai" if api.startswith("openai-") else api


def _form(value: object) -> str:
    """Name the form of a parameter's value: the string itself, or an object's `type`."""
    word = value.get("type") if isinstance(value, dict) else value
    return word if isinstance(word, str) else type(value).__name__
