"""Service health: when an outage begins and ends, whose it is, and what does not count."""

from __future__ import annotations

import itertools

import pytest

from fitrouter.hooks import Happened
from fitrouter.monitors import service
from fitrouter.monitors.service import Outage, ServiceHealth, service_status
from fitrouter.types import Attempt, Execution, Identity, Refusal

FAILED = (Attempt(model="m", probability=1.0, error="ProviderUnavailable"),)
IDS = itertools.count()


class Service:
    """A health with a clock of its own, and requests that end as told."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.health = ServiceHealth(lambda: self.now)

    def end(
        self,
        status: str,
        n: int = 1,
        *,
        tenant: str = "default",
        key: str = "",
        model: str = "m",
        every_s: float = 1.0,
        probe: bool = False,
    ) -> None:
        """Let requests end, one after the other."""
        for _ in range(n):
            self.now += every_s
            attempts = (Attempt(model=model, probability=1.0, probe=probe),) if status == "ok" else FAILED
            attempts = tuple(Attempt(model=model, probability=1.0, error=a.error, probe=a.probe) for a in attempts)
            self.health(Happened(self.execution(status, tenant, key, model, attempts)))

    def execution(self, status: str, tenant: str, key: str, model: str, attempts: tuple[Attempt, ...]) -> Execution:
        return Execution(
            id=f"{next(IDS)}",
            ts=self.now,
            decision_id="d",
            identity=Identity(tenant=tenant),
            chosen=model,
            served_by=model if status in {"ok", "partial"} else None,
            status=status,
            attempts=attempts,
            key=key,
        )

    def refuse(self, n: int, reason: str = "breaker", tenant: str = "default") -> None:
        self.now += 1.0
        identity = Identity(tenant=tenant)
        self.health(Happened(Refusal(id=f"{next(IDS)}", ts=self.now, identity=identity, reason=reason, n=n)))

    def found(self, tenant: str | None = None) -> list[tuple[str, str, str]]:
        return [(outage.scope, outage.name, outage.level) for outage in self.health.outages(tenant)]

    @property
    def outage(self) -> Outage:
        (found,) = self.health.outages()
        return found


DOWN = [("all", "", "down")]
ONE = [("all", "m", "down")]
SOME = [("all", "", "degraded")]


def test_five_unanswered_in_a_row_are_an_outage() -> None:
    """Four are not; refusals and answers that break off count like failures; it says how many and why."""
    new = Service()
    new.end("failed", 4)
    assert new.found() == []
    it = Service()
    it.end("ok", 200)
    it.end("failed", 2)
    it.end("partial")
    it.refuse(1)
    assert it.found() == []
    it.refuse(1)
    assert it.found() == DOWN
    assert (it.outage.requests, it.outage.failed, it.outage.refused) == (205, 3, 2)
    assert "No request is answered: 3 failed and 2 were refused of 205 requests" in it.outage.text
    assert "m fails" in it.outage.text
    assert it.outage.errors[0] == "ProviderUnavailable"
    assert service_status({}, it.health.outages()).status == "down"


def test_a_share_of_five_percent_is_an_outage() -> None:
    """At least five and at least 5% of the last five minutes; not four, not 4%, and not what is older."""
    few = Service()
    for _ in range(4):
        few.end("failed", every_s=0.1)
        few.end("ok", 9, every_s=0.1)
    assert few.found() == []
    few.end("failed")
    assert few.found() == SOME
    rare = Service()
    for _ in range(10):
        rare.end("failed", every_s=0.1)
        rare.end("ok", 24, every_s=0.1)
    assert rare.found() == []
    old = Service()
    for _ in range(20):
        old.end("failed", every_s=80.0)
        old.end("ok", every_s=1.0)
    assert old.found() == []


@pytest.mark.parametrize("status", ["rejected", "cancelled", "lost", "recorded"])
def test_what_is_nobodys_failure_does_not_count(status: str) -> None:
    """The caller's own errors, callers that left, plans that nobody ran, and recorded answers; nor spent budgets."""
    it = Service()
    it.end(status, 50)
    it.refuse(50, "budget")
    assert it.found() == []
    it.end("failed", 3)
    it.end(status, 50)
    it.end("failed", 2)
    assert it.found() == ONE, "nor do they stand between failures"


def test_ten_answers_end_an_outage() -> None:
    """With traffic, nine do not; and not while something went unanswered a moment ago."""
    it = Service()
    it.end("failed", 30, every_s=0.5)
    it.end("ok", 9, every_s=0.7)
    assert it.found() == SOME
    it.end("ok")
    assert it.found() == []
    it.end("failed", 4)
    assert it.found() == [], "what was before does not count again"
    it.end("failed")
    assert it.found() == ONE
    it.end("ok", 10, every_s=0.1)
    assert it.found() == SOME
    it.now += service.QUIET_S
    assert it.found() == []


def test_three_answers_or_a_probe_end_an_outage_at_little_traffic() -> None:
    """Fewer than ten requests in a minute; it needs no request to stay, and none to be forgotten."""
    it = Service()
    it.end("failed", 30)
    it.now += 3600.0
    assert it.found() == ONE
    assert "the last one was 60 minutes ago" in it.outage.text
    it.end("ok", 2, every_s=20.0)
    assert it.found() == SOME
    it.end("ok", every_s=20.0)
    assert it.found() == []
    it.end("failed", 6, every_s=20.0)
    assert it.found() == ONE
    it.end("ok", every_s=20.0, probe=True)
    assert it.found() == []


def test_one_tenant_that_fails_alone_is_named() -> None:
    """Instead of everybody, however large its share; other tenants read nothing of it."""
    for share in (1, 20):
        it = Service()
        for _ in range(12):
            it.end("ok", 10, tenant="ours", every_s=0.1)
            it.end("failed", share, tenant="acme", every_s=0.1)
        it.end("ok", tenant="ours", every_s=0.1)
        assert it.found() == [("tenant", "acme", "degraded")]
        assert "Requests of tenant acme go unanswered, while others are answered" in it.outage.text
        assert it.found("acme") == it.found()
        assert it.found("ours") == []


def test_one_key_that_fails_alone_is_named() -> None:
    """Not its tenant, whose other keys are answered."""
    it = Service()
    for _ in range(12):
        it.end("ok", 5, tenant="acme", key="web", every_s=0.1)
        it.end("failed", 5, tenant="acme", key="bot", every_s=0.1)
        it.end("ok", 5, tenant="ours", key="app", every_s=0.1)
    assert it.found() == [("key", "bot", "degraded")]
    assert "the key bot of acme" in it.outage.text


def test_one_model_that_fails_alone_is_named() -> None:
    """Named requests of it fail while others are answered; a tenant that only names it is said in the same sentence."""
    it = Service()
    for _ in range(12):
        it.end("ok", 10, tenant="ours", model="n", every_s=0.1)
        it.end("failed", 3, tenant="acme", model="m", every_s=0.1)
    it.end("ok", tenant="ours", model="n", every_s=0.1)
    assert len(it.found()) == 1
    assert "tenant acme, the model m" in it.outage.text
    assert service_status({}, it.health.outages()).status == "degraded"


def test_a_dead_model_is_named_where_nothing_else_is_asked_for() -> None:
    """All unanswered requests went to it, and nobody knows of others; not where one went to another model, too."""
    it = Service()
    it.end("ok", 20, model="n")
    it.end("failed", 6, model="m")
    assert it.found() == ONE
    assert it.outage.text.startswith("No request for m is answered: 6 failed")
    it.now += 1.0
    tried = tuple(Attempt(model=model, probability=1.0, error="ProviderUnavailable") for model in "mn")
    it.health(Happened(it.execution("failed", "default", "", "m", tried)))
    assert it.found() == DOWN
    assert it.outage.text.startswith("No request is answered: 7 failed")
    it.now += service.WINDOW_S + 20.0
    it.end("failed", 5, model="m")
    assert it.found() == ONE, "what is older says nothing of now"


def test_everybody_is_everybody() -> None:
    """A total outage begins with the tenant of the most traffic, and is not taken for its own; it ends for all."""
    it = Service()
    for _ in range(10):
        it.end("ok", 9, tenant="large", model="m", every_s=0.1)
        it.end("ok", tenant="small", model="n", every_s=0.1)
    for _ in range(6):
        it.end("failed", 4, tenant="large", model="m", every_s=0.1)
        it.end("failed", tenant="small", model="n", every_s=0.1)
        it.refuse(3, tenant="large")
        assert set(it.found()) <= {*DOWN, *SOME}
    assert it.found() == DOWN
    it.end("ok", 10, tenant="large", every_s=1.0)
    assert it.found() == [], "the small one has sent nothing since"


def test_a_tenant_is_not_blamed_for_the_others() -> None:
    """One tenant is unanswered for good, and many others now and then: that is everybody."""
    it = Service()
    for number in range(40):
        it.end("failed", tenant="acme", every_s=0.1)
        it.end("ok", 4, tenant=f"t{number}", every_s=0.1)
        it.end("failed", tenant=f"t{number}", every_s=0.1)
        it.end("ok", tenant=f"t{number}", every_s=0.1)
    assert it.found() == SOME


def test_a_tenant_that_failed_before_everybody_stays_named() -> None:
    """The end of an outage of all says nothing of it; those whose trouble began with that of all are well again."""
    it = Service()
    for _ in range(90):
        it.end("ok", 30, tenant="ours", every_s=0.03)
        it.end("failed", tenant="acme", every_s=0.1)
    assert it.found() == [("tenant", "acme", "degraded")]
    for tenant in ("ours", "acme"):
        it.end("failed", 6, tenant=tenant, every_s=0.1)
    assert it.found() == ONE
    it.end("ok", 12, tenant="ours")
    assert it.found() == [("tenant", "acme", "degraded")]


def test_workers_see_each_others_requests() -> None:
    """What one counted and the other read of the journal is the same; nothing counts twice."""
    one, other = Service(), Service()
    for number in range(40):
        mine, theirs = (one, other) if number % 2 else (other, one)
        one.now += 1.0
        other.now = one.now
        event = one.execution("failed" if number % 3 else "ok", "default", "", "m", FAILED if number % 3 else ())
        mine.health(Happened(event))
        mine.health(Happened(event))
        mine.health.follow(event)
        theirs.health.follow(event)
        assert one.health.outages() == other.health.outages()
    assert (one.outage.requests, one.outage.failed) == (40, 26)


def test_what_is_kept_is_bounded() -> None:
    """Whatever names come, and however many requests."""
    it = Service()
    for number in range(3 * service.SCOPES):
        it.end("failed", tenant=f"t{number}", key=f"k{number}", model=f"m{number}", every_s=7.0)
    health = it.health
    assert {len(tracks) for tracks in health._scopes.values()} == {service.SCOPES}
    assert len(health._all._slots) <= service.WINDOW_S / 10.0 + 2
    assert len(health._all._last) == service.AGAIN
    assert len(it.found()) == 1
