"""`fitrouter decisions`, `feedback`, `users`, `models` and `explain --last`: from a folder, and from a gateway."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from tests.kits.gateway import PATIENCE_S, client, config, make_router, serving, wait_for
from typer.testing import CliRunner, Result

from fitrouter.assemble import extender
from fitrouter.config import load_config
from fitrouter.errors import InvalidRequest, NotAuthorized, UnknownDecision
from fitrouter.router import Router
from fitrouter.stores.audit_log import AuditLog
from fitrouter.stores.journal import Entry, MemoryJournal, SqliteJournal
from fitrouter.stores.listing import story
from fitrouter.types import Decision, FeedbackKind, Identity, Prices, Request
from fitrouter_integrations import cli
from fitrouter_integrations._http import KEY_ENV

LONG = "anthropic/claude-bullets-large-with-a-name-of-its-own-that-is-longer-than-a-line-of-80-columns-20261001"
CONFIG = f"""\
data: d
providers: {{s: {{kind: simulated, options: {{{LONG}: {{length: 2}}, chatty: {{length: 12}}}}}}}}
models:
  - {{name: {LONG}, provider: s, prices: {{input: 0.5, output: 1}}}}
  - {{name: chatty, provider: s, revision: "2", prices: {{input: 0, output: 10}}}}
encoder: hashing
feedback: {{ask: 0}}
scorer: {{encoder: hashing, prior: none}}
"""
KEYS = {"OWN": "key-of-the-people-themselves", "APP": "key-of-an-application"}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def listed(*arguments: object) -> list[dict[str, Any]]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output or result.exception
    found: list[dict[str, Any]] = json.loads(result.output)
    return found


async def lived(file: Path) -> list[str]:
    """Four answers: ann's as a nurse, bob's, nobody's, and one in another tenant; ann votes twice and comments."""
    people = [
        Identity(user="ann", role="Senior_Nurse", task="shift"),
        Identity(user="bob"),
        Identity(),
        Identity(tenant="two", user="ann"),
    ]
    ids = []
    async with Router.from_config(load_config(file)) as router:
        for i, who in enumerate(people):
            model = ("chatty", LONG)[i % 2]
            request = Request(messages=({"role": "user", "content": f"Question {i}?"},), identity=who, model=model)
            ids.append((await router.complete(request)).decision.id)
        for stars in (4, 2):
            await router.feedback(ids[0], FeedbackKind.RATING, stars, scale=(1, 5), identity=people[0])
        await router.feedback(ids[1], FeedbackKind.THUMB, 1.0, identity=people[1])
        await router.comment(ids[0], understood={"length": -1.0}, identity=people[0])
        await router.declare(people[0], {"warmth": -0.5})
        await asyncio.to_thread(wait_for, lambda: all(one.score for one in router.lists.answers(4)))
    return ids


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    file = tmp_path_factory.mktemp("lists") / "fitrouter.yaml"
    file.write_text(CONFIG)
    return file, asyncio.run(lived(file))


def test_decisions_are_listed_and_filtered(log: tuple[Path, list[str]]) -> None:
    """The newest first; by user, role, model, tenant and number; with votes as they stand now."""
    file, ids = log
    c = ("--config", file)
    found = listed("decisions", *c)
    assert [one["decision_id"] for one in found] == ids[::-1]
    first = found[-1]
    assert (first["user"], first["role"], first["model"]) == ("ann", "Senior_Nurse", "chatty@2")
    assert (first["mode"], first["status"], first["votes"]) == ("pinned", "ok", {"rating": 0.25})
    assert first["cost_usd"] > 0
    assert 0 < found[0]["score"] < 1
    for options, expected in (
        (("--last", 2), [3, 2]),
        (("--user", "ann"), [3, 0]),
        (("--user", "ann", "--tenant", "two"), [3]),
        (("--tenant", "default"), [2, 1, 0]),
        (("--role", "senior nurse"), [0]),
        (("--model", "chatty"), [2, 0]),
        (("--model", "chatty@2", "--user", "bob"), []),
        (("--model", LONG, "--last", "1"), [3]),
    ):
        assert [one["decision_id"] for one in listed("decisions", *options, *c)] == [ids[i] for i in expected], options
    assert "no decisions of these" in run("decisions", "--model", "none", *c).output


def test_feedback_is_listed(log: tuple[Path, list[str]]) -> None:
    """Votes and remarks with model and user; of two ratings the first is replaced."""
    file, ids = log
    found = listed("feedback", "--config", file)
    assert [(one["kind"], one["user"], one["replaced"]) for one in found] == [
        ("comment", "ann", False),
        ("thumb", "bob", False),
        ("rating", "ann", False),
        ("rating", "ann", True),
    ]
    assert found[0]["understood"] == {"length": -1.0}
    assert (found[2]["value"], found[2]["scale"], found[2]["model"]) == (2.0, [1.0, 5.0], "chatty@2")
    assert [one["decision_id"] for one in listed("feedback", "--user", "bob", "--config", file)] == [ids[1]]
    text = run("feedback", "--config", file).output
    for words in ("comment: less length (-1)", "thumb up", "rating 4 of 1 to 5, replaced by a later vote"):
        assert words in text


def test_users_are_listed_and_shown(log: tuple[Path, list[str]]) -> None:
    """A name leads to its subject, counts, models, declared tastes; the subject is that of the log's events."""
    file, _ = log
    c = ("--config", file)
    assert [(one["tenant"], one["user"]) for one in listed("users", *c)] == [
        ("two", "ann"),
        ("default", "bob"),
        ("default", "ann"),
    ]
    assert [one["user"] for one in listed("users", "--tenant", "two", *c)] == ["ann"]
    (found,) = [json.loads(run("users", "show", "--user", "ann", "--json", *c).output)]
    assert (found["requests"], found["votes"], found["remarks"]) == (1, 2, 1)
    assert found["roles"] == ["Senior_Nurse"]
    assert found["models"] == [{"model": "chatty@2", "answers": 1, "up": 0, "down": 1}]
    assert found["declared"] == found["profile"]["declared"] == {"warmth": -0.5}
    assert found["subject"] == listed("decisions", "--role", "senior nurse", *c)[0]["subject"]
    text = run("users", "show", "--user", "ann", *c).output
    for words in (found["subject"], "1 request, 2 votes, 1 remark", "chatty@2: 1 answer, 0 votes up, 1 down"):
        assert words in text
    refused = run("users", "show", "--user", "carl", *c)
    assert isinstance(refused.exception, InvalidRequest)
    assert "`fitrouter users` lists them" in str(refused.exception)


def test_users_have_two_names(log: tuple[Path, list[str]]) -> None:
    """`users list` is `users`."""
    c = ("--config", log[0])
    assert listed("users", "list", *c) == listed("users", *c)
    assert len(listed("users", "list", "--last", 1, *c)) == 1


def test_an_id_may_be_cut_short(log: tuple[Path, list[str]], url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To four characters or more that no other decision of the tenant begins with; votes name the whole id."""
    file, ids = log
    short = ids[1][:-1]
    for where in (("--config", file), ("--url", url)):
        found = json.loads(run("explain", short, *where, "--json", "-").output)
        assert found["decision_id"] == ids[1]
    assert run("rate", f"chatcmpl-{short}", "4", "--scale", "1:5", "--url", url).exit_code == 0
    (vote,) = listed("feedback", "--last", 1, "--config", file)
    assert (vote["decision_id"], vote["value"]) == (ids[1], 4)
    for wrong in (ids[3][:-1], ids[1][:3], short.upper() + "x"):  # of another tenant, too short, no id
        assert isinstance(run("explain", wrong, "--url", url).exception, UnknownDecision), wrong
    assert "add --scale 1:5" in str(run("rate", ids[1], "4", "--url", url).exception)


def test_an_ambiguous_beginning_is_refused(log: tuple[Path, list[str]]) -> None:
    """With ids to choose from, those of other tenants left out."""
    with closing(SqliteJournal(log[0].parent / "d" / "journal.db")) as journal:
        event = journal.event(log[1][0])
    assert isinstance(event, Decision)
    memory = MemoryJournal()
    for id_, tenant in (("0198aaaa-1", "a"), ("0198aaaa-12", "a"), ("0198aaaa-2", "a"), ("0198aaaa-3", "b")):
        identity = Identity(tenant=tenant)
        memory.append(Entry(msgspec.structs.replace(event, id=id_, identity=identity))).result(PATIENCE_S)
    assert story(memory, "0198aaaa-1", "a")[0].id == "0198aaaa-1", "an id is itself before it begins others"
    assert story(memory, "0198aaaa", "b")[0].id == "0198aaaa-3"
    with pytest.raises(InvalidRequest, match="several decisions begin with '0198aaaa': 0198aaaa-1, ") as refused:
        story(memory, "0198aaaa", "a")
    assert "0198aaaa-3" not in str(refused.value)
    for n in range(20):
        decision = msgspec.structs.replace(event, id=f"0198bbbb-{n}", identity=Identity(tenant=f"t{n}"))
        memory.append(Entry(decision)).result(PATIENCE_S)
    with pytest.raises(InvalidRequest, match="several decisions begin"):
        story(memory, "0198bbbb", "t1")


def test_models_are_listed(log: tuple[Path, list[str]]) -> None:
    """Provider, prices and context, before the first start, too."""
    file, _ = log
    found = listed("models", "--config", file)
    assert [(one["name"], one["input_usd"], one["output_usd"]) for one in found] == [
        (LONG, 0.5, 1.0),
        ("chatty@2", 0.0, 10.0),
    ]
    new = file.with_name("new.yaml")
    new.write_text(CONFIG.replace("data: d", "data: none"))
    assert listed("models", "--config", new) == found
    assert not (file.parent / "none").exists()


def test_an_unknown_price_is_not_zero_while_no_model_can_be_called(tmp_path: Path) -> None:
    """A command opens the data without providers: a price that the configuration lacks stays unknown."""
    paid = tmp_path / "paid.yaml"
    paid.write_text(
        CONFIG.replace("s: {kind: simulated", "s: {kind: openai_compatible, base_url: http://127.0.0.1:9")
        .replace(", prices: {input: 0.5, output: 1}", "")
        .replace(f", options: {{{LONG}: {{length: 2}}, chatty: {{length: 12}}}}", "")
    )
    assert [(one["input_usd"], one["output_usd"]) for one in listed("models", "--config", paid)] == [
        (None, None),
        (0.0, 10.0),
    ]
    text = run("models", "--config", paid).output
    assert "price not known" in text
    assert "0 USD in and 10 USD out" in " ".join(text.split())


@pytest.mark.parametrize("command", ["decisions", "feedback", "users", "models"])
def test_lists_fit_into_80_columns_and_cut_no_name(log: tuple[Path, list[str]], command: str) -> None:
    """No line is longer than the terminal; names of models, ids and subjects are whole."""
    file, ids = log
    text = run(command, "--config", file).output
    assert max(map(len, text.splitlines())) <= 80
    whole = "".join(text.split())
    names = {"users": ["ann", "bob"], "models": [LONG, "chatty@2"], "feedback": [LONG, ids[0]]}
    for name in names.get(command, [LONG, *ids]):
        assert name in whole, name


def test_the_last_decision_is_explained(log: tuple[Path, list[str]]) -> None:
    """`explain --last`, also of one user; neither an id nor `--last`, or both, is an error."""
    file, ids = log
    c = ("--config", file)
    assert json.loads(run("explain", "--last", "--json", "-", *c).output)["decision_id"] == ids[3]
    found = json.loads(run("explain", "--last", "--user", "bob", "--json", "-", *c).output)
    assert found["decision_id"] == ids[1]
    for wrong in ((), (ids[0], "--last"), (ids[0], "--user", "bob")):
        assert isinstance(run("explain", *wrong, *c).exception, InvalidRequest)


@pytest.fixture
def url(log: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    keys: list[Any] = [{"name": name, "key_env": name, "trusted": name == "OWN"} for name in KEYS]
    settings = load_config(log[0])
    settings = settings.model_copy(update={"server": config(keys=keys).server})
    with serving(Router.from_config(settings), settings) as address:
        monkeypatch.setenv(KEY_ENV, KEYS["OWN"])
        yield address


def test_a_gateway_lists_the_keys_tenant(log: tuple[Path, list[str]], url: str) -> None:
    """Over `--url` the same entries as from the configured data, but of the key's tenant only."""
    file, ids = log
    for words in ("decisions", "feedback", "users"):
        here = [one for one in listed(words, "--config", file) if one["tenant"] == "default"]
        assert listed(words, "--url", url) == listed(words, "--tenant", "default", "--config", file) == here
    assert json.loads(run("explain", "--last", "--url", url, "--json", "-").output)["decision_id"] == ids[2]
    assert isinstance(run("decisions", "--user", "carl", "--url", url).exception, InvalidRequest)


def test_lists_of_people_need_a_trusted_key(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key of an application lists nobody; parameters are checked, and the message says what is allowed."""
    monkeypatch.setenv(KEY_ENV, KEYS["APP"])
    for command in ("decisions", "feedback", "users"):
        refused = run(command, "--url", url)
        assert isinstance(refused.exception, NotAuthorized)
        assert "trusted: true" in str(refused.exception)
    with client(url, headers={"authorization": f"Bearer {KEYS['OWN']}"}) as http:
        for query, words in (
            ("last=0", "1 to 1000"),
            ("last=many", "1 to 1000"),
            ("last=1001", "1 to 1000"),
            ("limit=3", "allowed are last, model"),
        ):
            reply: httpx.Response = http.get(f"/v1/decisions?{query}")
            assert (reply.status_code, words in reply.json()["error"]["message"]) == (400, True), reply.text
        schema: Mapping[str, Any] = http.get("/openapi.json").json()["paths"]
    for path in ("/v1/decisions", "/v1/feedback", "/v1/users"):
        assert "last" in {each["name"] for each in schema[path]["get"]["parameters"]}


def test_an_empty_log_says_so(tmp_path: Path) -> None:
    """Before the first request there are lists, and nothing in them."""
    file = tmp_path / "fitrouter.yaml"
    file.write_text(CONFIG)

    async def started() -> None:
        async with Router.from_config(load_config(file)):
            pass

    asyncio.run(started())
    for command in ("decisions", "feedback", "users"):
        assert run(command, "--config", file).output == f"no {command} yet\n"
    assert isinstance(run("explain", "--last", "--config", file).exception, UnknownDecision)


def test_a_user_is_exported_and_erased(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the folder and over a gateway; a tenant's key erases its own users only, an application's key nobody."""
    file = tmp_path / "fitrouter.yaml"
    file.write_text(CONFIG)
    asyncio.run(lived(file))
    c = ("--config", file)
    result = run("users", "export", "--user", "ann", tmp_path / "ann.json", *c)
    assert result.exit_code == 0, result.output
    whole = json.loads((tmp_path / "ann.json").read_text())
    assert {"decision", "execution", "score", "feedback", "remark", "profile"} == {
        one["type"] for one in whole["events"]
    }
    assert (len(whole["answers"]), len(whole["feedback"]), whole["known"]["declared"]) == (1, 3, {"warmth": -0.5})
    assert run("users", "erase", "--user", "ann", *c).exit_code == 1, "asks first"
    for name, key in KEYS.items():
        monkeypatch.setenv(name, key)
    keys = [{"name": name, "tenant": "two", "key_env": name, "trusted": name == "OWN"} for name in KEYS]
    settings = load_config(file).model_copy(update={"server": config(keys=keys).server})
    with serving(Router.from_config(settings), settings) as url:
        u = ("--url", url, "--yes")
        monkeypatch.setenv(KEY_ENV, KEYS["APP"])
        assert isinstance(run("users", "erase", "--user", "ann", *u).exception, NotAuthorized)
        monkeypatch.setenv(KEY_ENV, KEYS["OWN"])
        assert run("users", "export", "--user", "ann", tmp_path / "two.json", *u[:2]).exit_code == 0
        assert len(json.loads((tmp_path / "two.json").read_text())["answers"]) == 1
        assert "erased ann: 3 events" in run("users", "erase", "--user", "ann", *u).output
        assert "nothing is known of 'ann'" in run("users", "erase", "--user", "ann", *u).output
        assert isinstance(run("users", "erase", "--user", "", *u).exception, InvalidRequest)
    assert [(one["tenant"], one["user"]) for one in listed("users", *c)] == [("default", "bob"), ("default", "ann")]
    result = run("users", "erase", "--user", "ann", "--yes", *c)
    assert (result.exit_code, result.output) == (0, "erased ann: 7 events\n"), result.exception
    assert [one["user"] for one in listed("users", *c)] == ["bob"]
    assert [one["user"] for one in listed("decisions", *c)] == [None, "bob"]
    log = AuditLog(load_config(file).data)
    uid = f"uid {os.getuid()}"
    assert [(act.act, act.by, act.about["tenant"]) for act in log.acts()] == [
        ("user export", uid, "default"),
        ("user erase", "key OWN", "two"),
        ("user erase", uid, "default"),
    ]
    assert log.verify().broken is None
    assert "ann" not in log.path.read_text()


def test_models_are_added_and_removed_without_a_gateway(tmp_path: Path) -> None:
    """The journal takes the change, the next start has it, and the audit log names who gave the command."""
    file = tmp_path / "fitrouter.yaml"
    file.write_text("data: d\nproviders: {s: {kind: simulated}}\nmodels: [{name: m, provider: s}]\n", encoding="utf-8")
    settings = load_config(file)
    SqliteJournal(settings.journal_file()).close()
    runner = CliRunner()

    def models(*given: str) -> str:
        done = runner.invoke(cli.app, ["models", *given, "--config", str(file)], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    assert "next start" in models("add", "org/new", "--provider", "s", "--input", "1", "--output", "2")
    assert {one["name"] for one in json.loads(models("--json"))} == {"m", "org/new"}
    with Router.offline(settings) as router:
        assert router.models["org/new"].prices == Prices(input=1.0, output=2.0, known=True)
    with pytest.raises(InvalidRequest, match="either --provider"):
        models("add", "other")
    with pytest.raises(InvalidRequest, match="configuration file"):
        models("remove", "m")
    assert "next start" in models("remove", "org/new")
    with Router.offline(settings) as router:
        assert set(router.models) == {"m"}
    acts = [(act.act, act.about["model"]) for act in AuditLog(settings.data).acts()]
    assert acts == [("model add", "org/new"), ("model remove", "m"), ("model remove", "org/new")]


def test_models_are_added_and_removed_over_http(tmp_path: Path) -> None:
    """With --url a running gateway makes the change, with the name of the key's variable and never a key."""
    settings = config(additions={"private_addresses": True}).model_copy(update={"data": tmp_path})
    with serving(make_router(tmp_path, extend=extender(config())), settings) as url:
        for given in (
            ["add", "a/b c", "--provider", "echo", "--target", "x"],
            ["add", "mine", "--base-url", "http://127.0.0.1:9/v1"],
            ["remove", "a/b c"],
        ):
            done = CliRunner().invoke(cli.app, ["models", *given, "--url", url], catch_exceptions=False)
            assert (done.exit_code, url in done.stdout) == (0, True), done.output
        found = {one["name"] for one in listed("models", "--url", url)}
    assert found == {"alpha", "beta", "gamma", "mine"}
