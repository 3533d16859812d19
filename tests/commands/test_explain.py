"""`fitrouter explain` beside a running router, after it, over HTTP, and with errors."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from tests.kits.gateway import chat, client, config, make_router, serving, wait_for
from typer.testing import CliRunner, Result

from fitrouter.config import load_config
from fitrouter.errors import ConfigError, InvalidRequest, NotAuthorized, UnknownDecision
from fitrouter.router import Router
from fitrouter.routing.explain import grounds_by
from fitrouter.routing.explanation import Account, Contrast, Explanation, Feature, Term
from fitrouter.state.follower import catch_up
from fitrouter.types import Decision, FeedbackKind, Identity, Request
from fitrouter_integrations import cli
from fitrouter_integrations._http import KEY_ENV, call
from fitrouter_integrations.commands import explain as _explain

CONFIG = """\
data: d
providers:
  s: {kind: simulated, options: {terse: {length: 2}, chatty: {length: 12}}}
models:
  - {name: terse, provider: s, prices: {output: 1}}
  - {name: chatty, provider: s, prices: {output: 10}}
encoder: hashing
scorer: {encoder: hashing, prior: none}
objective: {cost_weight: 0.5}
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, ["explain", *(str(argument) for argument in arguments)])


async def lived(file: Path, turns: int = 6, liked: str = "terse") -> list[str]:
    """A router that answered and heard what Ann likes; its decisions."""
    ids = []
    async with Router.from_config(load_config(file)) as router:
        ann = Identity(user="ann", role="nurse")
        for i in range(turns):
            text = f"Question {i}?"
            answer = await router.complete(Request(messages=({"role": "user", "content": text},), identity=ann))
            ids.append(answer.decision.id)
            await router.feedback(ids[-1], FeedbackKind.THUMB, float(answer.served_by == liked))
            if i == turns - 2:
                await asyncio.to_thread(wait_for, lambda: router._learner.fit.labels >= turns - 1)
        beside = await asyncio.to_thread(run, ids[-1], "--config", file)
        assert beside.exit_code == 0, beside.output
        assert "was drawn with probability" in beside.output
    return ids


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    file = tmp_path_factory.mktemp("explain") / "fitrouter.yaml"
    file.write_text(CONFIG)
    return file, asyncio.run(lived(file))


def read(path: Path) -> Explanation:
    return msgspec.json.decode(path.read_bytes(), type=Explanation)


def test_a_decision_is_explained_from_the_journal(log: tuple[Path, list[str]], tmp_path: Path) -> None:
    """Sentences, a column for each model, and the same as JSON with terms that add up."""
    file, ids = log
    out = tmp_path / "why.json"
    result = run(ids[-1], "--config", file, "--json", out)
    assert result.exit_code == 0, result.output
    for words in ("expected utility", "price", "terse", "chatty", "for exploration"):
        assert words in result.output
    found = read(out)
    assert found.split
    assert "price" in {term.name for term in found.models[0].terms}
    for account in found.models:
        assert sum(term.value for term in account.terms) == pytest.approx(account.utility, abs=1e-9)


def test_an_explanation_is_the_same_for_ever(log: tuple[Path, list[str]], tmp_path: Path) -> None:
    """Byte for byte after more votes, a restart, and a fold from nothing; with `--now` today's stand beside."""
    file, ids = log
    before, after, now = (tmp_path / name for name in ("before.json", "after.json", "now.json"))
    assert run(ids[-1], "--config", file, "--json", before).exit_code == 0
    asyncio.run(lived(file, turns=3, liked="chatty"))
    assert run(ids[-1], "--config", file, "--json", after).exit_code == 0
    assert after.read_bytes() == before.read_bytes()
    found = read(after)
    assert found.split
    assert found.today is None
    assert "exactly as at the time of the decision" in found.sentences[-1]
    said = run(ids[-1], "--config", file, "--now", "--json", now)
    assert said.exit_code == 0, said.output
    contrast = read(now)
    assert contrast.models == found.models
    assert contrast.today is not None
    assert [a.rating for a in contrast.today.models] != [a.rating for a in found.models]
    assert sum(a.votes for a in contrast.today.models) > sum(a.votes for a in found.models)
    assert any("Since then the predicted rating went" in sentence for sentence in contrast.sentences)
    assert "then and now" in run(ids[-1], "--config", file, "--now").output


def test_the_logged_terms_are_those_of_a_fold_to_the_decision(log: tuple[Path, list[str]]) -> None:
    """A fold of the journal up to the decision gives the terms that it logged."""
    file, ids = log
    with Router.offline(load_config(file)) as router:
        decision = asyncio.run(router.events(ids[-1], None))[0]
        assert isinstance(decision, Decision)
        learner = router._learner.blank()
        catch_up(learner, router._journal, decision.policy.seq)
    found = grounds_by(learner.fit, decision, learner.projections.arm_counts)
    assert found is not None
    assert found == decision.grounds


def test_full_names_and_words_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """No name of a model is cut, no line is longer than the terminal, and features are words."""
    monkeypatch.setenv("COLUMNS", "80")
    arms = ["anthropic/claude-bullets-large-20261001", "openai/warm-mini-2026-09-15", *(f"model-{i}" for i in range(9))]
    features = tuple(Feature(name=name, difference=1.0, population=0.1, role=0.0, user=0.2) for name in ("g", ""))
    found = Explanation(
        decision_id="d",
        draw_id="d",
        mode="online",
        chosen=arms[0],
        propensity=0.5,
        models=tuple(
            Account(arm=arm, probability=0.1, utility=0.5, sd=0.1, cost_usd=0.001, terms=(Term(name="fit", value=0.5),))
            for arm in arms
        ),
        contrast=Contrast(arm=arms[0], rival=arms[1], gap=-0.1, terms=(), features=features),
    )
    console = Console(file=io.StringIO(), width=80)
    _explain.show(found, console)
    text = console.file.getvalue()
    assert all(arm in text for arm in arms)
    assert max(map(len, text.splitlines())) <= 80
    assert "has higher general quality" in text
    assert "all other properties of the text" in text


def test_errors_are_one_message(log: tuple[Path, list[str]], tmp_path: Path) -> None:
    """A wrong id, no journal, no configuration, no gateway, an invalid URL: one message each."""
    file, ids = log
    for arguments, kind, words in (
        (("nobody", "--config", file), UnknownDecision, "'nobody'"),
        ((ids[0], "--url", "file:///etc/passwd"), ConfigError, "--url"),
        ((ids[0], "--config", file, "--json", tmp_path / "no" / "x.json"), ConfigError, "--json"),
    ):
        error = run(*arguments).exception
        assert isinstance(error, kind)
        assert words in str(error)


def test_a_running_gateway_is_asked(tmp_path: Path) -> None:
    """A gateway explains over HTTP, and unknown decisions are an error."""
    with serving(make_router(tmp_path)) as url:
        with client(url) as http:
            made = http.post("/v1/chat/completions", json=chat("Hello")).headers["x-fitrouter-decision"]
        for base in (url, f"{url}/v1", f"{url}/"):
            result = run(made, "--url", base)
            assert result.exit_code == 0, result.output
            assert "was drawn" in result.output
        assert isinstance(run("nobody", "--url", url).exception, UnknownDecision)
        with pytest.raises(InvalidRequest):
            call("POST", url, "/v1/feedback", {"decision_id": 5})


def test_the_api_key_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway with keys gets the one in the environment; the error names the variable."""
    monkeypatch.setenv("TEST_KEY", "k" * 20)
    keyed = config(keys=[{"name": "a", "key_env": "TEST_KEY"}])
    with serving(make_router(tmp_path), keyed) as url:
        with pytest.raises(NotAuthorized, match=KEY_ENV):
            call("GET", url, "/v1/models")
        monkeypatch.setenv(KEY_ENV, "k" * 20)
        assert call("GET", url, "/v1/models")["object"] == "list"
