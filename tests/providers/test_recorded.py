"""Recorded answers to prompts that agents have wrapped into words of their own."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fitrouter.config import parse_config
from fitrouter.errors import ConfigError, ProviderRejected, ProviderUnavailable
from fitrouter.providers import Recorded, build_providers
from fitrouter.types import Call

WORDS = st.text(alphabet="ab \n", max_size=12)
"""So few letters that prompts stand inside of each other, and begin alike."""
PROMPTS = st.lists(st.one_of(WORDS, st.text(max_size=80)), min_size=1, max_size=8, unique=True)


def recorded(folder: Path, prompts: list[str], match: str = "inside") -> Recorded:
    """A provider whose answer to a prompt is that prompt, quoted."""
    file = folder / "answers.jsonl"
    rows = [{"prompt": prompt, "model": "m", "response": repr(prompt)} for prompt in prompts]
    file.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return Recorded(file, match)


def ask(provider: Recorded, text: str, target: str = "m") -> str:
    """What is answered to a user message."""
    call = Call(target=target, messages=({"role": "system", "content": "S"}, {"role": "user", "content": text}))
    answer: Any = asyncio.run(provider.complete(call))
    return str(answer.message["content"])


@given(prompts=PROMPTS, data=st.data())
def test_the_longest_prompt_that_was_wrapped_is_answered(
    tmp_path_factory: pytest.TempPathFactory, prompts: list[str], data: st.DataObject
) -> None:
    """Whatever stands around a prompt, the longest one in the message is answered, or the one that it is itself."""
    provider = recorded(tmp_path_factory.mktemp("wrapped"), prompts)
    prompt = data.draw(st.sampled_from(prompts))
    before, after = data.draw(st.one_of(WORDS, st.text(max_size=40))), data.draw(st.one_of(WORDS, st.text(max_size=40)))
    message = before + prompt + after
    there = [len(known.strip()) for known in prompts if known.strip() and known.strip() in message]
    if message in prompts:
        assert ask(provider, message) == repr(message)
    elif there:
        answered = next(known for known in prompts if repr(known) == ask(provider, message))
        assert answered.strip() in message
        assert len(answered.strip()) == max(there) >= len(prompt.strip())
    else:
        assert not prompt.strip()  # it stands everywhere, so it is no mark of anything
        with pytest.raises(ProviderRejected):
            ask(provider, message)


def test_prompts_are_found_without_their_outer_white_space(tmp_path: Path) -> None:
    """Agents strip what they are given; of two prompts that differ in nothing else, the first one answers."""
    provider = recorded(tmp_path, ["  Who is Ann?\n", "Who is Ann?", "Who"])
    assert ask(provider, "Current Task: Who is Ann? Begin!") == repr("  Who is Ann?\n")
    assert ask(provider, "Who is Ann?") == repr("Who is Ann?")
    assert ask(provider, "Who is Ben?") == repr("Who")


def test_what_was_not_recorded_is_explained(tmp_path: Path) -> None:
    """An unknown prompt is rejected with how many there are and what is wanted; an unknown model is unavailable."""
    provider = recorded(tmp_path, ["Who is Ann?", ""])
    for text in ("Who is Ben?", "Who", " "):
        with pytest.raises(ProviderRejected, match=r"must contain one of its 2 prompts"):
            ask(provider, text)
    with pytest.raises(ProviderUnavailable, match=r"of 'other' to 'Who is Ann\?'"):
        ask(provider, "Now: Who is Ann?", "other")


def test_prompts_are_matched_word_for_word_unless_it_is_asked_for(tmp_path: Path) -> None:
    """The default stays exact: a wrapped prompt is unknown."""
    with pytest.raises(ProviderRejected, match="must equal one of its"):
        ask(recorded(tmp_path, ["Who is Ann?"], "exact"), "Now: Who is Ann?")
    assert ask(Recorded(tmp_path / "answers.jsonl"), "Who is Ann?") == repr("Who is Ann?")


def test_only_blank_prompts_match_nothing(tmp_path: Path) -> None:
    """A file of blank prompts is served word for word, and found in nothing else."""
    provider = recorded(tmp_path, ["", "  "])
    assert ask(provider, "  ") == repr("  ")
    with pytest.raises(ProviderRejected):
        ask(provider, "   ")


def build(folder: Path, options: dict[str, Any]) -> Any:
    """The provider of a configuration."""
    recorded(folder, ["Who is Ann?"])
    provider = {"kind": "recorded", "path": str(folder / "answers.jsonl"), "options": options}
    config = {"providers": {"file": provider}, "models": [{"name": "m", "provider": "file"}]}
    return build_providers(parse_config(config))["file"]


def test_the_configuration_says_how_prompts_are_matched(tmp_path: Path) -> None:
    """`match` is heard; another option or value is a ConfigError that says what is allowed."""
    assert ask(build(tmp_path, {"match": "inside"}), "Now: Who is Ann?") == repr("Who is Ann?")
    with pytest.raises(ProviderRejected):
        ask(build(tmp_path, {}), "Now: Who is Ann?")
    with pytest.raises(ConfigError, match=r"\['mach'\]; the only option is 'match'"):
        build(tmp_path, {"mach": "inside"})
    with pytest.raises(ConfigError, match="'fuzzy'; allowed are exact, inside"):
        build(tmp_path, {"match": "fuzzy"})
