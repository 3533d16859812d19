"""What people state beside values: goals, priorities, marked examples and comments, and what follows from them."""

from __future__ import annotations

import asyncio
import json
from contextlib import nullcontext
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.kits.gateway import client, serving
from tests.kits.quiz import CONFIG, install
from tests.personal.test_quizzes import ANN, logged, played
from typer.testing import CliRunner

from fitrouter.config import Config, load_config
from fitrouter.errors import InvalidRequest, NotAuthorized, StoreError
from fitrouter.router import Router
from fitrouter.stores.identities import Identities, UnknownSubject
from fitrouter.types import Identity, ProfileChange, Request, Score
from fitrouter_evaluators.personal import Mark, Profile, Profiles, Quizzes, merged_profiles, parsed_profile
from fitrouter_evaluators.personal.profile import Comment, Example, Learnt, declared, values_of
from fitrouter_integrations import cli

NAMES = ("one", "length", "warmth")
NOBODY = np.zeros(3)
SHORT, LONG = Example(good=True, features={"length": -1.0}), Example(good=False, features={"length": 2.0})


def keeping(folder: Path) -> Path:
    """An installation that keeps contents."""
    file = install(folder)
    file.write_text(CONFIG + "content: encrypted\n")
    return file


async def scored(router: Router, decision_id: str) -> None:
    """Wait until an answer is scored."""
    for _ in range(1000):
        if any(isinstance(event, Score) for event in await router.events(decision_id)):
            return
        await asyncio.sleep(0.02)
    raise AssertionError("not scored")


def test_a_priority_scales_a_taste() -> None:
    """1 changes nothing, 0 takes everybody's taste away, and 3 makes three times of what was said and of theirs."""
    theirs = np.array([0.7, 0.01, 0.0])
    assert declared({"warmth": 0.3}, {"warmth": 1.0, "length": 1.0}, (), NAMES, theirs) == {"warmth": 0.3}
    found = declared({"warmth": 0.3}, {"warmth": 3.0, "length": 0.0, "unknown": 2.0}, (), NAMES, theirs)
    assert found == {"warmth": pytest.approx(0.9), "length": pytest.approx(-0.01 / 0.047)}
    assert declared({}, {"length": 10.0}, (), NAMES, theirs) == {"length": 1.0}


def test_examples_are_comparisons_with_the_average_answer() -> None:
    """Good short and bad long answers declare shortness, each a little more; average answers declare nothing."""
    one, two = (declared({}, {}, each, NAMES, NOBODY)["length"] for each in ((SHORT,), (SHORT, LONG)))
    assert -1.0 < two < one < 0.0
    assert declared({}, {}, [Example(good=True), Example(good=False)], NAMES, NOBODY) == {}
    turned = [msgspec.structs.replace(each, good=not each.good) for each in (SHORT, LONG)]
    assert declared({}, {}, turned, NAMES, NOBODY)["length"] == pytest.approx(-two)
    many = declared({"length": 1.0}, {}, [SHORT, LONG] * 32, NAMES, NOBODY)
    assert many["length"] == -1.0


def test_documents_grow_compatibly() -> None:
    """A document of version 1 loads; too much of anything is refused with its field; what is newer wins a merge."""
    assert parsed_profile({"version": 1, "declared": {"length": 1}}).goals == ()
    for bad in (
        {"goals": ["x"] * 33},
        {"goals": ["x" * 1001]},
        {"priorities": {"length": 11}},
        {"priorities": {"length": -1}},
        {"priorities": {str(i): 1 for i in range(257)}},
        {"examples": [{"good": True}] * 65},
        {"examples": [{"good": None}]},
        {"examples": [{"good": True, "text": "x" * 8001}]},
        {"examples": [{"good": True, "features": {"length": 1e9}}]},
        {"comments": [{"ts": 1, "text": "x" * 1001}]},
        {"comments": [{"ts": 1, "text": "x"}] * 201},
    ):
        with pytest.raises(InvalidRequest, match=r"\$\."):
            parsed_profile(bad)
    old = Profile(goals=("learn",), priorities={"length": 2.0}, examples=(SHORT,), comments=(Comment(2.0, "b"),))
    new = Profile(
        goals=("learn", "rest"),
        priorities={"length": 3.0},
        examples=(LONG, msgspec.structs.replace(SHORT, good=False)),
        comments=(Comment(1.0, "a"), Comment(2.0, "b")),
    )
    both = merged_profiles([old, new])
    assert (both.goals, both.priorities) == (("learn", "rest"), {"length": 3.0})
    assert both.examples == new.examples
    assert both.comments == (Comment(1.0, "a"), Comment(2.0, "b"))


def test_what_examples_taught_is_not_imported_twice() -> None:
    """A learnt taste that the document's own examples explain adds nothing; what goes beyond them does."""
    learnt = {"length": Learnt(-0.02, 0.05)}
    assert values_of(Profile(learnt=learnt), {"length": -0.5}) == {}
    assert values_of(Profile(learnt=learnt), {"length": -0.2}) == {"length": pytest.approx(-0.02 / 0.047 + 0.2)}


def test_stated_things_are_kept_replaced_and_travel(tmp_path: Path) -> None:
    """What is left out of a declaration stays; an import brings it all, and moves the same tastes.

    Without `content` neither comments nor examples keep a text; the journal holds no word of it in the clear.
    """
    (one := tmp_path / "one").mkdir()
    (two := tmp_path / "two").mkdir()
    documents: list[Profile] = []

    async def there(router: Router, _quizzes: Quizzes, _config: Config) -> None:
        profiles = Profiles(router)
        await profiles.declare(ANN, {"warmth": 0.5}, goals=["Less hedging, please", "find a flat in Vienna"])
        plain = router.people.declared(await router.people.recall(ANN))[0]
        found = await profiles.declare(
            ANN, priorities={"warmth": 1.5}, examples=[Mark(good=False, prompt="What?", text="Long words. " * 99)]
        )
        assert found.values["warmth"] != plain["warmth"]
        assert found.not_understood == ("find a flat in Vienna",)
        ask = Request(messages=({"role": "user", "content": "What about 3?"},), model="brief", identity=ANN)
        answer = await router.complete(ask)
        await scored(router, answer.decision.id)
        await profiles.declare(ANN, examples=[Mark(good=True, decision_id=answer.decision.id)])
        await router.settled()
        documents.append(await profiles.show(ANN))
        await router.comment(answer.decision.id, "Too short for my Viennese cousin.", identity=ANN)
        shown = await profiles.show(ANN, contents=True)
        assert (shown.declared, shown.priorities) == ({"warmth": 0.5}, {"warmth": 1.5})
        assert shown.goals == ("Less hedging, please", "find a flat in Vienna")
        assert [(each.good, each.text, bool(each.features)) for each in shown.examples] == [
            (False, "", True),
            (True, "", True),
        ]
        assert shown.comments == ()
        log = msgspec.json.encode(logged(router))
        assert not any(word in log for word in (b"Vienn", b"hedging, please", b"Long words"))
        with pytest.raises(NotAuthorized):
            await profiles.declare(Identity(user="eve"), examples=[Mark(good=True, decision_id=answer.decision.id)])
        for bad in (Mark(good=True), Mark(good=True, text="x" * 8001), Mark(good=True, decision_id="d", text="x")):
            with pytest.raises(InvalidRequest):
                await profiles.declare(ANN, examples=[bad])
        with pytest.raises(InvalidRequest, match="unknown dimension"):
            await profiles.declare(ANN, priorities={"nonsense": 2.0})
        await profiles.declare(ANN, examples=[Mark(good=None, decision_id=answer.decision.id)])
        assert [each.good for each in (await profiles.show(ANN)).examples] == [False]
        with pytest.raises(InvalidRequest, match="allowed are 64"):
            await profiles.declare(ANN, examples=[Mark(good=True, text="x")] * 65)

    async def here(router: Router, _quizzes: Quizzes, _config: Config) -> None:
        profiles, [document] = Profiles(router), documents
        await profiles.import_profile(ANN, parsed_profile(msgspec.to_builtins(document)))
        await router.settled()
        shown = await profiles.show(ANN)
        assert (shown.goals, shown.priorities) == (document.goals, document.priorities)
        assert [each.features for each in shown.examples] == [each.features for each in document.examples]
        assert {each.decision for each in shown.examples} == {""}
        for name, each in document.learnt.items():
            assert shown.learnt[name].mean == pytest.approx(each.mean, abs=0.002), name
        assert (await router.erase("default", "ann")).subjects == 1
        assert (await profiles.show(ANN)) == Profile()

    played(install(one), there)
    played(install(two), here)


def test_words_that_cannot_be_read_are_not_taken_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An erased person has said nothing; a text that cannot be decrypted is an error in profile, report and scores."""

    async def there(router: Router, _quizzes: Quizzes, _config: Config) -> None:
        profiles = Profiles(router)
        await profiles.declare(ANN, {"warmth": 0.5}, goals=["find a flat in Vienna"])
        who = await router.people.recall(ANN)
        for error, told in ((UnknownSubject("erased"), False), (ValueError("changed"), True)):

            def fail(_self: object, _blob: bytes, error: Exception = error) -> str:
                raise error

            raised = pytest.raises(StoreError, match="not readable") if told else nullcontext()
            with monkeypatch.context() as patch, raised:
                patch.setattr(Identities, "decrypt", fail)
                assert not router.people.stated(who)

    played(install(tmp_path), there)


def test_texts_are_kept_where_contents_are(tmp_path: Path) -> None:
    """With `content: encrypted` comments and examples have their texts, until the person is erased."""

    async def test(router: Router, _quizzes: Quizzes, config: Config) -> None:
        profiles = Profiles(router)
        ask = Request(messages=({"role": "user", "content": "What about 3?"},), model="brief", identity=ANN)
        answer = await router.complete(ask)
        await scored(router, answer.decision.id)
        for said in ("too long", "quite simply: too long"):
            await router.comment(answer.decision.id, said, identity=ANN)
        marks = [Mark(good=True, decision_id=answer.decision.id), Mark(good=False, prompt="Why?", text="Because.")]
        await profiles.declare(ANN, examples=marks)
        bare = await profiles.show(ANN)
        assert (bare.comments, [each.prompt + each.text for each in bare.examples]) == ((), ["", ""])
        shown = await profiles.show(ANN, contents=True)
        assert [each.text for each in shown.comments] == ["quite simply: too long"]
        assert [(each.prompt, each.text) for each in shown.examples] == [
            ("What about 3?", "Topic 3: yes."),
            ("Why?", "Because."),
        ]
        await profiles.import_profile(ANN, shown)
        again = await profiles.show(ANN, contents=True)
        assert (again.comments, again.examples) == (shown.comments, shown.examples)
        assert b"simply" not in (config.data / "content.db").read_bytes()
        eve = Identity(user="eve")
        await profiles.import_profile(eve, msgspec.structs.replace(shown, examples=(shown.examples[0],)))
        assert [each.decision for each in (await profiles.show(eve, contents=True)).examples] == [""]
        await router.comment(answer.decision.id, understood={}, identity=ANN)
        assert router.people.comments(await router.people.recall(ANN)) == []
        await router.comment(answer.decision.id, "too long", identity=ANN)
        who = await router.people.recall(ANN)
        await router.erase("default", "ann")
        assert router.people.comments(who) == []
        assert not any(isinstance(event, ProfileChange) and event.identity.user == who.user for event in logged(router))

    played(keeping(tmp_path), test)


def test_commands_and_routes(tmp_path: Path) -> None:
    """Declare, mark and erase, here and over a gateway; what a body leaves out stays."""
    file = install(tmp_path)

    def run(*arguments: object, fails: bool = False) -> str:
        result = CliRunner().invoke(cli.app, ["personal", "profile", *map(str, arguments)])
        assert bool(result.exit_code) is fails, result.output
        return result.output

    here = ("--user", "ann", "--config", file)
    said = run("declare", "--value", "warmth=0.5", "--goal", "see Rome", "--priority", "warmth=1.2", *here)
    assert "warmth +0.60" in said
    assert "moves no preference: see Rome" in said
    (text := tmp_path / "long.txt").write_text("A long answer. " * 50)
    run("mark", "--bad", "--text", text, *here)
    run("export", tmp_path / "out.json", *here)
    shown = json.loads((tmp_path / "out.json").read_text())
    assert (shown["goals"], shown["priorities"], len(shown["examples"])) == (["see Rome"], {"warmth": 1.2}, 1)
    run("mark", "--text", text, *here, fails=True)
    run("declare", *here, fails=True)
    run("declare", "--priority", "warmth", *here, fails=True)
    settings = load_config(file)
    with serving(Router.from_config(settings), settings) as url, client(url) as http:
        who = {"x-fitrouter-user": "ann"}
        found = http.put("/v1/profile", json={"examples": [{"good": False, "text": "Again, long. " * 60}]}, headers=who)
        assert found.status_code == 200, found.text
        there = http.get("/v1/profile", headers=who).json()
        assert (there["goals"], there["declared"], len(there["examples"])) == (["see Rome"], {"warmth": 0.5}, 2)
        assert http.put("/v1/profile", json={"values": {}}, headers=who).json()["declared"] != {}
        assert http.get("/v1/profile", headers=who).json()["declared"] == {}
        for bad in (
            {"goals": [3]},
            {"priorities": {"warmth": 99}},
            {"priorities": []},
            {"examples": [{}]},
            {"examples": [{"good": 1, "text": "x"}]},
            {"examples": [{"good": True, "decision_id": "x" * 99}]},
            {"examples": [{"good": True, "text": 3}]},
            {"examples": ["x"]},
        ):
            assert http.put("/v1/profile", json=bad, headers=who).status_code in {400, 404}, bad
    assert "erased ann" in run("erase", "--yes", *here)
    assert json.loads(run("show", *here))["goals"] == []
