"""Configuration errors name the place, the value, what is allowed, and the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.kits.tables import table_driven

from fitrouter.config import Config, load_config, load_yaml, parse_config
from fitrouter.errors import ConfigError

GOOD: dict[str, Any] = {
    "providers": {"p": {"kind": "simulated"}},
    "models": [
        {"name": "small", "provider": "p"},
        {"name": "big", "provider": "p", "prices": {"input": 3, "output": 15}},
    ],
    "default_model": "small",
}


def with_(**changes: Any) -> dict[str, Any]:
    return {**GOOD, **changes}


MISTAKES: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["providers", "models", "Field required"]),
    (with_(polcy={}), ["polcy", "unknown setting", "did you mean 'policy'?"]),
    (with_(policy={"gama": 2}), ["policy.gama", "did you mean 'gamma'?"]),
    (with_(policy={"gamma": -1}), ["policy.gamma", "greater than 0", "got -1"]),
    (with_(policy={"gamma": 9}), ["policy", "'linear_thompson' does not read 'gamma'", "algorithm to 'squarecb'"]),
    (with_(policy={"candidates": {"x": {"scale": 1, "algorithm": "uniform"}}}), ["policy: candidates.x", "'scale'"]),
    (with_(policy={"floor": 1.5}), ["policy.floor", "less than or equal to 1", "got 1.5"]),
    (with_(share=2), ["share", "got 2"]),
    (with_(share=0.5, default_model=None), ["share: 0.5 needs a 'default_model'", "50%"]),
    (with_(default_model="huge"), ["default_model: 'huge' is not a configured model", "small", "big"]),
    (with_(aliases={"gpt-4o": "huge"}), ["aliases: 'gpt-4o' points to 'huge'", "fitrouter/auto"]),
    (with_(models=[{"name": "a", "provider": "q"}]), ["'a' uses the unknown provider 'q'", "configured are ['p']"]),
    (with_(models=[{"name": "a", "provider": "p"}] * 2), ["'a' is listed 2 times"]),
    (with_(models=[{"name": "fitrouter/x", "provider": "p"}]), ["'fitrouter/x' is reserved"]),
    (with_(models=[{"name": "openai/*", "provider": "p"}]), ["models: 'openai/*' is no pattern but a name"]),
    (with_(models=[{"name": "*", "provider": "p"}]), ["models: '*' is no pattern but a name"]),
    (with_(models=[]), ["models", "at least 1"]),
    (with_(models=["small"], default_model=None), ["models.0: Input should be settings, each as `name: value`"]),
    (with_(providers={"p": {"kind": "openai"}}), ["providers.p.kind", "did you mean 'openai_compatible'?"]),
    (
        with_(models=[{"name": "a", "provider": "p", "capabilities": ["telepathy"]}]),
        ["models.0.capabilities.0", "'telepathy'"],
    ),
    (with_(providers={"p": {"kind": "magic"}}), ["providers.p.kind", "'litellm'", "got 'magic'"]),
    (with_(providers={"p": {"kind": "simulated", "api_key": "sk-1"}}), ["providers.p.api_key", "'api_key_env'"]),
    (with_(server={"port": 99999}), ["server.port", "65535", "got 99999"]),
    (with_(server={"keys": [{"name": "a"}]}), ["server.keys.0.key_env", "Field required"]),
    (with_(feedback={"ask": 0.5}), ["feedback.ask", "0.05", "got 0.5"]),
    (with_(seed=-1), ["seed", "got -1"]),
    (with_(aliases={"gpt-*": "small"}), ["aliases: 'gpt-*' is no pattern"]),
    (with_(aliases={"big": "small"}), ["aliases: 'big' is the name of a model already"]),
    (with_(aliases={"fitrouter/auto": "small"}), ["aliases: 'fitrouter/auto' is the name of a model already"]),
    *(
        (
            with_(providers={"p": {"kind": "openai_compatible", "base_url": f"http://host:{port}/v1"}}),
            ["providers.p", f"'http://host:{port}/v1' is no URL, or its port is none of 1 to 65535"],
        )
        for port in (65536, 99999, -1, "80a", "８0", "80:80")
    ),
    *(
        (
            with_(providers={"p": {"kind": "openai_compatible", "base_url": f"http://127.0.0.1:9/v1{end}"}}),
            ["providers.p", f"{end}' is the URL of one endpoint; give the URL up to and including /v1"],
        )
        for end in (
            *("/chat/completions", "/chat/completions/", "/completions", "/responses", "/embeddings?x=1", "/messages"),
            *("/models", "/chat", "/rerank", "/api/chat", "/api/generate", "/models/gemini:generateContent"),
            "/models/gemini:streamGenerateContent",
        )
    ),
    *(
        (with_(models=[{"name": "small", "provider": "sim", "prices": prices}]), ["models.0.prices", said])
        for prices, said in (
            ({"input": 3e-6, "output": 1.5e-5}, "input: got 3e-06, a price of one token; give USD per million tokens"),
            ({"input": 3, "output": 1.5e-5}, "output: got 1.5e-05, a price of one token"),
            ({"input": 3, "output": 15, "cache_read": 3e-7}, "cache_read: got 3e-07, a price of one token"),
            ({"input": 3, "output": 15, "long_input": 6}, "long_above: missing; 'long_input'"),
            ({"input": 3, "output": 15, "long_output": 30}, "long_above: missing; 'long_input'"),
        )
    ),
    *(
        (with_(providers={"p": {"kind": kind, **given}}), ["providers.p", said])
        for kind, given, said in (
            ("openai_compatible", {"base_url": "http://h/v1", "options": {"headers": {}}}, "does not read ['options']"),
            ("openai_compatible", {"base_url": "http://h/v1", "path": "x"}, "does not read ['path']"),
            ("litellm", {"proxy": "none"}, "does not read ['proxy']; it reads ['base_url', 'api_key_env', 'headers'"),
            ("recorded", {"path": "x", "base_url": "http://h/v1"}, "does not read ['base_url']"),
            ("recorded", {"path": "x", "headers": {"a": "b"}}, "does not read ['headers']"),
            ("simulated", {"api_key_env": "KEY"}, "does not read ['api_key_env']"),
            ("simulated", {"ca_file": "x"}, "does not read ['ca_file']"),
            ("openai_compatible", {"headers": {"Host": "x"}}, "'Host' cannot be set"),
            ("openai_compatible", {"headers": {"a b": "x"}}, "'a b' cannot be set"),
            ("openai_compatible", {"headers": {"A": "x\r\nB: y"}}, "the value of 'A' must be printable"),
            ("openai_compatible", {"headers": {"Authorization": "x"}, "api_key_env": "KEY"}, "leave one of both out"),
            ("openai_compatible", {"headers": {"X-A": "1", "x-a": "2"}}, "a name stands twice"),
            ("openai_compatible", {"proxy": "http://me:secret@proxy:1"}, "give the URL of a proxy"),
            ("openai_compatible", {"proxy": "socks5://proxy"}, "give the URL of a proxy"),
        )
    ),
]


@table_driven(("data", "words"), MISTAKES)
def test_an_error_names_its_place_and_remedy(data: dict[str, Any], words: list[str]) -> None:
    """The message has the place and the remedy, and nothing of the validation library."""
    with pytest.raises(ConfigError) as error:
        parse_config(data, "'fitrouter.yaml'")
    message = str(error.value)
    for word in words:
        assert word in message
    assert "pydantic" not in message


@pytest.mark.parametrize("url", ["https://x.services.ai.azure.com/models", "http://h/chat", "http://h/v1/", "http://h"])
def test_a_base_url_may_end_with_other_words(url: str) -> None:
    """Azure's end with /models, and a gateway may be mounted anywhere; litellm gives addresses a meaning of its own."""
    parse_config(with_(providers={"p": {"kind": "openai_compatible", "base_url": url}}))
    parse_config(with_(providers={"p": {"kind": "litellm", "base_url": "http://h/v1/embeddings"}}))


def test_all_errors_are_reported_at_once() -> None:
    """A file with several errors is corrected in one step."""
    with pytest.raises(ConfigError) as error:
        parse_config(with_(share=2, seed=-1, policy={"gama": 1}))
    assert all(word in str(error.value) for word in ("share", "seed", "policy.gama"))


def test_no_error_follows_from_another() -> None:
    """A list whose only entry is invalid is not called empty as well."""
    with pytest.raises(ConfigError) as error:
        parse_config(with_(models=["small"]))
    assert len(str(error.value).splitlines()) == 2


def test_defaults_are_safe() -> None:
    """Loopback, no keys, a floor, and feedback requested for a few answers."""
    config = parse_config(GOOD)
    assert (config.server.host, config.server.keys) == ("127.0.0.1", ())
    assert 0 < config.policy.floor <= 0.1
    assert 0 < config.feedback.ask <= 0.05
    assert config.share == 1.0


def test_relative_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    """A configuration works from any working directory."""
    file = tmp_path / "conf" / "fitrouter.yaml"
    file.parent.mkdir()
    recorded = {"p": {"kind": "recorded", "path": "../data/answers.jsonl"}}
    file.write_text(yaml.safe_dump(with_(providers=recorded)))
    config = load_config(file)
    assert config.data == file.parent / "fitrouter-data"
    path = config.providers["p"].path
    assert path is not None
    assert path.resolve() == tmp_path / "data" / "answers.jsonl"


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        ("models: [a]\nseed: 1\nmodels: [b]", "models", 3),
        ("server: {port: 1, port: 2}", "port", 1),
        ("server:\n  port: 1\n  host: x\n  port: 2", "port", 4),
        ("providers:\n  p: {kind: simulated}\n  p: {kind: litellm}", "p", 3),
        ("models:\n  - {name: a, provider: p, name: b}", "name", 2),
        ('aliases: {"x": a, x: b}', "x", 1),
    ],
)
def test_a_block_that_stands_twice_is_an_error(tmp_path: Path, text: str, key: str, line: int) -> None:
    """YAML would keep the last one without a word; the message has the key and its second line."""
    file = tmp_path / "fitrouter.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=rf"(?s)'{key}' stands here.*and again here.*line {line}, "):
        load_config(file)


def test_keys_that_yaml_merges_may_be_overridden() -> None:
    """A merge key is no second key, and equal names in different sections are none."""
    assert load_yaml("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}") == {"a": {"x": 1, "y": 2}, "b": {"x": 3, "y": 2}}


@pytest.mark.parametrize(
    ("content", "word"),
    [(b"a: [", "not valid YAML"), (b"\xff\xfe", "not valid YAML"), (b"- 1", "is invalid"), (b"", "is invalid")],
)
def test_an_unreadable_file_is_an_error(tmp_path: Path, content: bytes, word: str) -> None:
    """Broken YAML, bytes, lists and empty files each have a message."""
    file = tmp_path / "fitrouter.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=word):
        load_config(file)


def test_a_missing_file_points_to_init(tmp_path: Path) -> None:
    """The error names the command that writes a configuration."""
    with pytest.raises(ConfigError, match="fitrouter init"):
        load_config(tmp_path / "fitrouter.yaml")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="fitrouter init"):
        load_config(tmp_path / "file" / "fitrouter.yaml")
    with pytest.raises(ConfigError, match="cannot be read: File name too long"):
        load_config(tmp_path / ("x" * 300))


def test_the_hash_covers_what_decisions_depend_on() -> None:
    """Gateways with the same policy have the same hash, whatever their address."""
    base = parse_config(GOOD)
    assert parse_config(with_(server={"port": 1})).hash() == base.hash()
    others = [
        with_(share=0.5),
        with_(policy={"scale": 3}),
        with_(objective={"cost_weight": 1}),
        with_(encoder="hashing"),
    ]
    hashes = {parse_config(data).hash() for data in others}
    assert len(hashes) == len(others)
    assert base.hash() not in hashes


def test_examples_are_valid() -> None:
    """The configurations in the repository load."""
    for file in (Path(__file__).parents[2] / "examples").glob("*.yaml"):
        assert isinstance(load_config(file), Config)
