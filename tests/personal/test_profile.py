"""Profiles: the published schema, merging, and an import that makes the first decisions better than a stranger's."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.kits.gateway import client, config, serving, wait_for
from tests.kits.quiz import install
from tests.personal.test_quizzes import ANN, finish, played
from tests.tree.test_docs import ROOT
from typer.testing import CliRunner

from fitrouter.config import Config, load_config
from fitrouter.errors import InvalidRequest
from fitrouter.router import Router
from fitrouter.types import FeedbackKind, Identity, Request
from fitrouter_evaluators.personal import (
    Profile,
    Profiles,
    Quizzes,
    approve_profile,
    merged_profiles,
    parsed_profile,
)
from fitrouter_evaluators.personal.profile import Given, Learnt, differences, values_of
from fitrouter_integrations import cli

LIKES_SHORT = {"learnt": {"length": {"mean": -0.2, "sd": 0.05}}, "object": "fitrouter.profile", "version": 1}


def test_the_schema_is_published() -> None:
    """docs/profile.schema.json is that of the code, and hostile documents are refused with the field."""
    published = json.loads((ROOT / "docs" / "profile.schema.json").read_text(encoding="utf-8"))
    assert published == json.loads(msgspec.json.encode(msgspec.json.schema(Profile)))
    assert parsed_profile(LIKES_SHORT).learnt["length"] == Learnt(-0.2, 0.05)
    for bad in (
        {"version": 3},
        {"object": "x"},
        {"declared": {"length": 7}},
        {"declared": {"length": float("nan")}},
        {"learnt": {"length": {"mean": 0, "sd": 0}}},
        {"learnt": {"length": {"mean": float("inf"), "sd": 1}}},
        {"topics": ["x" * 1001]},
        {"approved": {"ts": 0.0, "digest": "x"}},
        [],
    ):
        with pytest.raises(InvalidRequest, match="profile"):
            parsed_profile(bad)


def test_the_page_says_what_a_profile_has_of_a_single_vote(tmp_path: Path) -> None:
    """Number and mean, which is the vote itself: no page says that a profile has no single votes."""
    config = load_config(install(tmp_path))

    async def voted() -> Profile:
        async with Router.from_config(config) as router:
            ann = Identity(user="ann")
            asked = Request(messages=({"role": "user", "content": "What about 1?"},), identity=ann)
            decision = (await router.complete(asked)).decision.id
            await router.feedback(decision, FeedbackKind.RATING, 2.0, scale=(1.0, 5.0), identity=ann)
            await asyncio.to_thread(wait_for, lambda: not router.status().lag.warehouse_events)
            return await Profiles(router).show(ann)

    (said,) = asyncio.run(voted()).said.values()
    assert (said.number, said.mean) == (1, pytest.approx(0.25))
    page = " ".join((ROOT / "docs" / "personal.md").read_text(encoding="utf-8").split())
    assert "of votes it has number and mean, which for a single vote is the vote" in page
    assert "no single votes" not in page


def test_an_approval_ends_with_any_change() -> None:
    """An approved document is read back as it was, and refused after a change of any field; a merge is not approved."""
    profile = Profile(role="x", declared={"warmth": 0.1}, learnt={"length": Learnt(-0.004, 0.1)}, topics=("tea",))
    signed = approve_profile(profile, 3.0)
    document = json.loads(msgspec.json.encode(signed))
    assert parsed_profile(document) == signed
    assert merged_profiles([signed, signed]).approved is None
    changes = {"role": "y", "declared": {}, "learnt": {}, "topics": [], "goals": ["speed"], "version": 1}
    for name, value in changes.items():
        with pytest.raises(InvalidRequest, match="changed after its person approved it"):
            parsed_profile({**document, name: value})


def test_words_win_over_what_was_learnt() -> None:
    """What was learnt becomes values in [−1, 1] unless it is tiny; declared ones stand.

    A merge weighs by precision, and later words win.
    """
    a = Profile(declared={"warmth": 0.5}, learnt={"warmth": Learnt(-1.0, 0.1), "length": Learnt(-0.004, 0.1)}, role="x")
    b = Profile(declared={"warmth": -0.5}, learnt={"length": Learnt(-0.2, 0.05)}, topics=("tea",))
    assert values_of(a) == {"warmth": 0.5}
    both = merged_profiles([a, b])
    assert (both.declared, both.role, both.topics) == ({"warmth": -0.5}, "x", ("tea",))
    assert both.learnt["length"].mean == pytest.approx((-0.004 * 100 - 0.2 * 400) / 500)
    assert both.learnt["length"].sd == pytest.approx(500**-0.5)


def test_saying_and_doing_differ(tmp_path: Path) -> None:
    """Who asks for long answers and prefers short ones is told so, with counts of the log, which an import ignores."""
    shown: list[Profile] = []

    async def test(router: Router, quizzes: Quizzes, _config: Config) -> None:
        await router.declare(ANN, {"length": 0.3})
        await finish(quizzes, await quizzes.start(ANN))
        for number in range(40):
            for model, value in (("brief", 1.0), ("long", 0.0)):
                message = {"role": "user", "content": f"What about {number % 20}?"}
                answer = await router.complete(Request(messages=(message,), model=model, identity=ANN))
                await router.feedback(answer.decision.id, FeedbackKind.THUMB, value, identity=ANN)
        await settled(router)
        for _ in range(200):
            if not router.status().lag.warehouse_events:
                break
            await asyncio.sleep(0.05)
        shown.append(await Profiles(router).show(ANN))
        await Profiles(router).import_profile(Identity(user="bob"), shown[0])

    played(install(tmp_path), test)
    [found] = shown
    assert [(each.dimension, each.declared) for each in found.differs] == [("length", 0.3)]
    assert found.differs[0].learnt < 0.0 < 0.8 <= found.differs[0].sure
    assert (found.said.keys(), found.did) == ({"pair", "thumb"}, {})
    assert found.said["thumb"] == Given(80, 0.5)
    assert parsed_profile(msgspec.to_builtins(found)) == found
    assert differences({"a": 1.0, "b": -1.0}, {"a": Learnt(-0.1, 0.01), "b": Learnt(0.1, 0.3)})[0].dimension == "a"


def test_an_import_beats_a_stranger(tmp_path: Path) -> None:
    """Of a simulated person who likes short answers: the first decisions after an import have less regret."""
    (one := tmp_path / "one").mkdir()
    (two := tmp_path / "two").mkdir()
    documents: list[Profile] = []

    async def there(router: Router, quizzes: Quizzes, _config: Config) -> None:
        for _ in range(3):
            await finish(quizzes, await quizzes.start(ANN, again=True))
        await settled(router)
        documents.append(await Profiles(router).show(ANN))

    async def here(router: Router, _quizzes: Quizzes, _config: Config) -> None:
        for t in range(20):
            for name in router.models:
                ask = Request(messages=({"role": "user", "content": f"What about {t}?"},), model=name)
                await router.complete(ask)
        await settled(router)
        stranger, imported = Identity(user="bob"), Identity(user="ann")
        profile = parsed_profile(msgspec.to_builtins(documents[0]))
        found = await Profiles(router).import_profile(imported, profile)
        assert found.values
        await router.settled()
        chance = {}
        for who in (stranger, imported):
            each = []
            for t in range(10):
                ask = Request(messages=({"role": "user", "content": f"What about {t}?"},), identity=who)
                decision = (await router.decide(ask)).decision
                each.append(decision.probs[next(k for k, arm in enumerate(decision.eligible) if "brief" in arm)])
            chance[who.user] = float(np.mean(each))
        assert chance["ann"] > chance["bob"] + 0.05, chance

    played(install(one), there)
    played(install(two), here)


async def settled(router: Router) -> None:
    """Wait until all answers are scored and folded."""
    for _ in range(400):
        if not (await asyncio.to_thread(router.status)).lag.scorer_answers:
            break
        await asyncio.sleep(0.05)
    await router.settled()


def test_commands_and_routes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Import, show, export and merge, here and over a gateway; an application's key reads no profile."""
    file, document = install(tmp_path), tmp_path / "ann.json"
    document.write_text(json.dumps({**LIKES_SHORT, "declared": {"warmth": 0.5}}))

    def run(*arguments: object) -> str:
        result = CliRunner().invoke(cli.app, ["personal", "profile", *map(str, arguments)], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    assert "length -1.00" in run("import", document, "--user", "ann", "--config", file)
    shown = json.loads(run("show", "--user", "ann", "--config", file))
    assert shown["declared"] == {"length": -1.0, "warmth": 0.5}
    run("export", tmp_path / "out.json", "--user", "ann", "--config", file)
    assert json.loads(run("merge", document, tmp_path / "out.json"))["declared"] == shown["declared"]
    assert "approved" in run("approve", tmp_path / "out.json", "--yes")
    approved = json.loads((tmp_path / "out.json").read_text())
    assert approved["approved"]["digest"]
    run("import", tmp_path / "out.json", "--user", "ann", "--config", file)
    (tmp_path / "out.json").write_text(json.dumps({**approved, "declared": {}}))
    refused = CliRunner().invoke(
        cli.app, ["personal", "profile", "import", str(tmp_path / "out.json"), "--user", "ann"]
    )
    assert "approve it again" in str(refused.exception)
    run("approve", tmp_path / "out.json", "--yes")
    settings = load_config(file)
    keys = [{"name": name, "tenant": "one", "key_env": name, "trusted": name == "OWN"} for name in ("APP", "OWN")]
    for name in ("APP", "OWN"):
        monkeypatch.setenv(name, f"a-long-key-called-{name}")
    settings = settings.model_copy(update={"server": config(keys=keys).server})
    with serving(Router.from_config(settings), settings) as url, client(url) as http:
        who = {"authorization": "Bearer a-long-key-called-OWN", "x-fitrouter-user": "eve"}
        body = {"profile": json.loads(document.read_text())}
        assert http.put("/v1/profile", json=body, headers=who).json()["declared"] == shown["declared"]
        assert http.get("/v1/profile", headers=who).json()["declared"] == shown["declared"]
        for bad in ({"profile": 3}, {"profile": {"version": 9}}, {**body, "values": {}}):
            assert http.put("/v1/profile", json=bad, headers=who).status_code == 400
        app = {**who, "authorization": "Bearer a-long-key-called-APP"}
        assert http.get("/v1/profile", headers=app).status_code == 403
