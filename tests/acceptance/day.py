"""The day: what twelve people ask, what they say of the answers, and what happens to the models meanwhile."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import openai
from tests.acceptance.company import ADDED, CUT_USD, ERASED, FAILS, KEYS, MODELS, PEOPLE, Counts, Person, Upstream
from tests.acceptance.ledger import LEFT, Asked, Ledger, Report, Voted

__all__ = ["Day"]

TOPICS = ("rivers", "budgets", "bandages", "compilers", "poems", "trains", "vaccines", "harbours")
PARAMETERS = {"type": "object", "properties": {"topic": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": PARAMETERS}}
OLD = [name for name in MODELS if name != ADDED]
BY_NAME = {(who.tenant, who.name): who for who in PEOPLE}


class Day:
    """Lives through the day against a gateway.

    Args:
        url: of the gateway.
        upstream: the models' server.
        rounds: requests of each person in the morning; as many follow in the afternoon.
    """

    def __init__(self, url: str, upstream: Upstream, rounds: int = 8) -> None:
        self.upstream, self.rounds, self.ledger = upstream, rounds, Ledger(calls=upstream.calls)
        self._clients = {
            tenant: openai.OpenAI(
                base_url=f"{url}/v1",
                api_key=key,
                max_retries=0,
                timeout=60.0,
                http_client=httpx.Client(event_hooks={"response": [self._heed]}),
            )
            for tenant, key in KEYS.items()
        }
        self._errors: list[tuple[int, str | None, str]] = []
        """Of the last request and its retries: status, code, decision."""
        self._http = {
            tenant: httpx.Client(base_url=url, timeout=60.0, headers={"authorization": f"Bearer {key}"})
            for tenant, key in KEYS.items()
        }

    def live(self) -> Ledger:
        """Live through it; returns the books."""
        self.round_of(OLD, 1)
        self.talk()
        self.outage("lister")
        self.retry()
        self.leave()
        self.noon()
        self.declare()
        self.round_of(list(MODELS), 2)
        self.agents()
        self.cascade()
        self.compare()
        self.comment()
        self.cut()
        self.erase(ERASED)
        for tenant in KEYS:
            self._clients[tenant].close()
            self._http[tenant].close()
        return self.ledger

    # --- what people do ---

    def round_of(self, models: list[str], streamed: int) -> None:
        """Everybody asks and rates, every other time a model by name: the one that they like, or each in turn."""
        for r in range(self.rounds):
            for i, who in enumerate(PEOPLE):
                named = (who.likes, models[(r + i) % len(models)])[r // 2 % 2] if r % 2 else None
                self.rate(self.ask(who, named, stream=r % 3 == streamed))

    def talk(self) -> None:
        """Conversations of several turns, and a tool that is called."""
        for who in PEOPLE[:2]:
            messages: list[dict[str, Any]] = []
            for _ in range(3):
                asked = self.ask(who, session=f"talk of {who.name}", before=messages)
                messages += [{"role": "user", "content": asked.prompt}, {"role": "assistant", "content": asked.text}]
                self.rate(asked)
        for who, model in ((PEOPLE[6], "brief"), (PEOPLE[9], "garage")):
            called = self.ask(who, model, tools=True)
            assert called.call is not None
            before = [{"role": "user", "content": called.prompt}, called.call]
            result = {"role": "tool", "tool_call_id": called.call["tool_calls"][0]["id"]}
            self.rate(self.ask(who, model, before=before, tools=True, last=result))

    def ask(
        self,
        who: Person,
        pinned: str | None = None,
        *,
        stream: bool = False,
        tools: bool = False,
        session: str | None = None,
        before: list[dict[str, Any]] | tuple[()] = (),
        last: dict[str, Any] | None = None,
        retries: int = 0,
        run: str = "",
        tier: str = "",
        plan: str = "",
        note: str = "",
    ) -> Asked:
        """Ask something, and write down what comes back.

        Args:
            who: asks.
            pinned: the model by name.
            stream: whether the answer is streamed.
            tools: whether a tool is offered.
            session: name of the conversation.
            before: its messages.
            last: of the message, beside its text; a user's by default.
            retries: how often the client tries again; each try is a request of its own.
            run: of an agent, whose step it is.
            tier: of cost.
            plan: whether a plan is looked at before: `run` it, or `decline` it for another model.
            note: words after the question.
        """
        asked = Asked(len(self.ledger.asked), who, pinned, stream, session, run=run, tier=tier)
        asked.prompt = f"Question (no. {asked.n}) about {TOPICS[asked.n % len(TOPICS)]}?{note}"
        headers = {"role": who.role, "session": session, "run": run, "tier": tier}
        body: dict[str, Any] = {
            "model": pinned or "fitrouter/auto",
            "messages": [*before, {**(last or {"role": "user"}), "content": asked.prompt}],
            "user": who.name,
            "max_tokens": 300,
            "extra_headers": {f"x-fitrouter-{name}": value for name, value in headers.items() if value},
            **({"tools": [TOOL]} if tools else {}),
        }
        if plan:
            found = self._post(who, "/v1/plans", {"kind": "look", **body}, body["extra_headers"])
            body["extra_headers"]["x-fitrouter-plan"] = found["about"]["decision_id"]
            asked.looked = plan == "run"
            if plan == "decline":
                body["model"] = asked.pinned = next(name for name in OLD if name != found["about"]["model"])
                asked.alternative = True
                self.ledger.declined.append((who, found["about"]["decision_id"]))
        self.ledger.asked.append(asked)
        chat = self._clients[who.tenant].with_options(max_retries=retries).chat.completions
        self._errors.clear()
        try:
            if stream and asked.n in self.upstream.halting:
                with chat.create(**body, stream=True) as chunks:
                    answer = next(iter(chunks))
                asked.text, asked.status = answer.choices[0].delta.content or "", LEFT
            elif stream:
                chunks = list(chat.create(**body, stream=True, stream_options={"include_usage": True}))
                asked.text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
                answer, usage, asked.status = chunks[0], chunks[-1].usage, 200
            else:
                answer = chat.create(**body)
                message, usage, asked.status = answer.choices[0].message, answer.usage, 200
                asked.text = message.content or ""
                asked.call = message.model_dump(exclude_none=True) if message.tool_calls else None
        except openai.APIStatusError:
            asked.status, asked.code, asked.id = self._errors.pop()
        for status, code, id_ in self._errors:
            self.ledger.asked.append(Asked(asked.n, who, pinned, stream, session, asked.prompt, status, code, id_))
        if asked.status in {200, LEFT}:
            asked.id, asked.model = answer.id.removeprefix("chatcmpl-"), answer.model
            asked.solicited = answer.fitrouter["asked"]
        if asked.status == 200:
            of_prompt, of_answer = usage.prompt_tokens_details, usage.completion_tokens_details
            asked.tokens = Counts(
                usage.prompt_tokens,
                usage.completion_tokens,
                cached=getattr(of_prompt, "cached_tokens", None) or 0,
                written=getattr(of_prompt, "cache_write_tokens", None) or 0,
                reasoning=getattr(of_answer, "reasoning_tokens", None) or 0,
            )
        return asked

    def _heed(self, reply: httpx.Response) -> None:
        """Write down an error, whether the client tries again or not."""
        if reply.status_code != 200:
            code = json.loads(reply.read())["error"]["code"]
            self._errors.append((reply.status_code, code, reply.headers.get("x-fitrouter-decision", "")))

    def vote(self, on: Asked, kind: str, value: float, **more: Any) -> None:
        """Vote on an answer; it is in the books once it is acknowledged."""
        other: Asked | None = more.pop("other", None)
        vote = Voted(on, kind, value, more.get("scale", (0.0, 1.0)), more.get("dimension", "overall"), other)
        self.tell(on, {"kind": kind, "value": value, **more, **({"other": other.id} if other else {})})
        self.ledger.votes.append(vote)

    def tell(self, on: Asked, said: dict[str, Any]) -> dict[str, Any]:
        """Send feedback on an answer."""
        return self._post(on.who, "/v1/feedback", {"decision_id": on.id, **said})

    def _post(
        self, who: Person, path: str, said: dict[str, Any], headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Send something until it is acknowledged: an answer does not wait for a slow commit."""
        body = {"user": who.name, **{name: value for name, value in said.items() if name != "extra_headers"}}
        for _ in range(200):
            reply = self._http[who.tenant].post(path, json=body, headers=headers)
            if reply.status_code != 404:
                break
            self.ledger.too_early.append(reply.json()["error"]["code"])
            time.sleep(0.05)
        assert reply.status_code == 200, reply.text
        found: dict[str, Any] = reply.json()
        return found

    def rate(self, asked: Asked) -> None:
        """Say what the person thinks of an answer: full marks for the model that they like; and a few other things."""
        if asked.status != 200:
            return
        likes, how, n = asked.model == asked.who.likes, asked.who.rates, asked.n
        if how == "thumb" or (how == "both" and n % 2):
            if n % 16 == 3:
                self.vote(asked, "thumb", 0.0 if likes else 1.0)  # a slip, which is taken back
            self.vote(asked, "thumb", 1.0 if likes else 0.0)
        else:
            self.vote(asked, "rating", 5.0 if likes else 1.0 + n % 2, scale=(1.0, 5.0))
        if n % 12 == 5:
            self.vote(asked, "rating", 4.0, scale=(1.0, 5.0), dimension="tone")
        if n % 14 == 2:
            self.vote(asked, "accept" if likes else "regenerate", 1.0)
        if n % 20 == 7:
            self.vote(asked, "edit", 0.0 if likes else 0.5)
        if n % 20 == 9:
            self.vote(asked, "dwell", 12.5)
        if n % 20 == 11:
            self.vote(asked, "copy", 1.0)
        rated = [vote.on for vote in self.ledger.votes if vote.on.who == asked.who and vote.on.model != asked.model]
        if n % 10 == 1 and rated and (likes or rated[-1].model == asked.who.likes):
            self.vote(asked, "pair", 1.0 if likes else 0.0, other=rated[-1])

    def compare(self) -> None:
        """Enough votes for what is planted, whatever was drawn.

        Those who do not like the model that most like try it and theirs, which makes a claim certain. Those who do
        try the others: else hardly anybody but their friends gets them, and they seem to be everybody's.
        """
        for who in PEOPLE:
            if who.tenant == "acme":
                others = [name for name in OLD if name != "brief"] * 2
                for model in others if who.likes == "brief" else ("brief", who.likes) * 4:
                    self.rate(self.ask(who, model))

    def declare(self) -> None:
        """Two people say what they value."""
        for name, values in (("cem", {"length": -0.5}), ("finn", {"length": -1.0, "warmth": 0.5})):
            who = BY_NAME["acme", name]
            reply = self._http["acme"].put("/v1/profile", json={"user": name, "values": values})
            assert reply.status_code == 200, reply.text
            self.ledger.declared[who] = values

    def comment(self) -> None:
        """Some say what is wrong with a long answer."""
        for who in PEOPLE:
            wordy = [each for each in self.ledger.asked if each.who == who and each.model == "rambler"]
            if wordy and who.likes == "brief":
                understood = self.tell(wordy[-1], {"comment": "Too long."})["understood"]
                self.ledger.comments.append((wordy[-1], understood))

    def agents(self) -> None:
        """Runs of agents: of tiers and plans, a stuck one, a silent one, and one of somebody who is erased."""
        finn, hana, zoe = BY_NAME["acme", "finn"], BY_NAME["acme", "hana"], ERASED
        self.ask(finn, run="ticket 1", tier="economy")
        self.ask(finn, "brief", run="ticket 1")
        self.ask(finn, run="ticket 1", tier="quality", plan="run")
        self.ask(finn, run="ticket 1", plan="decline")
        self.end(finn, "ticket 1", value=True)
        self.end(finn, "ticket 1", kind="rating", value=4, scale=[1, 5], source="person")
        called = self.ask(hana, session="loop", run="ticket 2", tools=True)
        assert called.call is not None
        result = {"role": "tool", "tool_call_id": called.call["tool_calls"][0]["id"]}
        again = [called.call, {**result, "content": "nothing"}]
        before = [{"role": "user", "content": called.prompt}, *again * 2, called.call]
        self.ask(hana, session="loop", run="ticket 2", tools=True, before=before, last=result).stuck = True
        self.end(hana, "ticket 2", kind="number", value=18_500, scale=[50_000, 0])
        self.end(hana, "ticket 2", value=False, source="adapter")
        self.ask(finn, run="ticket 3", plan="run")
        self.ask(zoe, run="ticket 4", tier="economy")
        self.end(zoe, "ticket 4", value=False)

    def end(self, who: Person, run: str, **report: Any) -> None:
        """Report how a run ended."""
        self._post(who, f"/v1/runs/{run}/outcome", report)
        self.ledger.reports.append(Report(who, run, report))

    def cascade(self) -> None:
        """Answers of a model fail its check, and others are drawn."""
        while len(self.ledger.cascades()) < 2:
            self.rate(self.ask(BY_NAME["acme", "hana"], note=f" {FAILS}"))

    # --- what happens ---

    def outage(self, model: str) -> None:
        """A model fails for an hour: others stand in, those who named it get errors, until a breaker refuses them."""
        self.upstream.failing.add(model)
        for i in range(6):
            self.rate(self.ask(PEOPLE[(3, 7)[i % 2]]))  # those who like it
        for i in range(12):
            self.ask(PEOPLE[i % 10], model)
        self.upstream.failing.clear()

    def retry(self) -> None:
        """Clients try again by themselves: when a model limits the rate, and while a breaker is open."""
        for who, model in ((PEOPLE[4], "rambler"), (PEOPLE[5], "rambler"), (PEOPLE[3], "lister")):
            n, slow_down = len(self.ledger.asked), model == "rambler"
            if slow_down:
                self.upstream.stumbling.add(n)
            asked = self.ask(who, model, retries=8)
            assert asked.status == 200, asked
            # A slow machine may come when the breaker allows a call again.
            assert not slow_down or len(self.ledger.asked) == n + 2, "nothing was tried again"
            self.rate(asked)

    def leave(self) -> None:
        """Some read the beginning of an answer, and hang up; one of a model without a price."""
        for who, model in ((PEOPLE[0], "brief"), (PEOPLE[2], "garage"), (PEOPLE[10], "rambler")):
            self.upstream.halting.add(len(self.ledger.asked))
            assert self.ask(who, model, stream=True).status == LEFT

    def noon(self) -> None:
        """Add a model."""
        prices = MODELS[ADDED]
        assert prices is not None
        body = {"name": ADDED, "provider": "house", "prices": {"input": prices[0], "output": prices[1]}}
        reply = self._http[""].post("/v1/models", json=body)
        assert reply.status_code == 200, reply.text
        self.ledger.acts.append(("model add", "key ops"))
        self._known(ADDED)

    def _known(self, model: str) -> None:
        """Wait until the workers have it."""
        for _ in range(200):
            listed = [self._http["acme"].get("/v1/models").json()["data"] for _ in range(4)]
            if all(any(each["id"] == model for each in one) for one in listed):
                return
            time.sleep(0.05)

    def cut(self) -> None:
        """Cut a tenant's budget to little more than what it has spent, and spend the rest."""
        who = BY_NAME["birch", "ann"]
        limit = self.ledger.spent_usd("birch") + CUT_USD
        body = {"action": "budget", "tenant": "birch", "usd_per_period": limit}
        reply = self._http[""].post("/v1/policy", json=body)
        assert reply.status_code == 200, reply.text
        self.ledger.acts.append(("policy budget", "key ops"))
        self.ledger.limit_usd = limit
        for _ in range(20):
            self.ask(who, "rambler")

    def erase(self, who: Person) -> None:
        """Erase somebody."""
        reply = self._http[who.tenant].delete("/v1/profile", headers={"x-fitrouter-user": who.name})
        assert reply.status_code == 200, reply.text
        self.ledger.acts.append(("user erase", f"key {who.tenant}"))
        self.ledger.erased.add(who)
