"""Guards whose removal no test noticed once. They are removed in each run, besides those that are drawn."""

from __future__ import annotations

from typing import NamedTuple


class Known(NamedTuple):
    """A guard, what the source is without it, and the tests that have to notice."""

    name: str
    file: str
    text: str
    without: str
    tests: tuple[str, ...]


_ROUTER = "router/fitrouter/"
_SPENDING, _ERASURE = "tests/serving/test_spending.py::", "tests/stores/test_erasure.py::"
_PROVIDER = "tests/providers/test_openai_compatible.py::test_sound_answers_that_are_too_large_or_compressed_are_refused"
_SOUND_VERSION = "tests/state/test_poison.py::test_a_refit_counts_the_last_sound_version"
KNOWN = (
    Known(
        "choices in a reservation",
        f"{_ROUTER}serving/spending.py",
        "asked.choices * usd",
        "usd",
        (f"{_SPENDING}test_what_a_call_reserves",),
    ),
    Known(
        "Spending.reserve says yes",
        f"{_ROUTER}serving/spending.py",
        "        if found.refusal:\n            return Cover(refusal=found.refusal)\n        if found.usd >=",
        "        return Cover(lost_usd + most, limit)\n        if found.usd >=",
        (f"{_SPENDING}test_requests_at_once_cannot_spend_the_same_money",),
    ),
    Known(
        "range of votes in a refit",
        f"{_ROUTER}state/refit.py",
        "isinstance(row.event, Feedback) and not fault_in(row.event)",
        "isinstance(row.event, Feedback)",
        (_SOUND_VERSION,),
    ),
    Known(
        "range of remarks in a refit",
        f"{_ROUTER}state/refit.py",
        "isinstance(row.event, Remark) and not fault_in(row.event)",
        "isinstance(row.event, Remark)",
        (_SOUND_VERSION,),
    ),
    Known(
        "end of a plan's reservation",
        f"{_ROUTER}serving/external.py",
        "payer, valid_s=valid_s)",
        "payer)",
        (f"{_SPENDING}test_the_money_of_a_plan_that_nobody_reports_is_free_after_its_time",),
    ),
    Known(
        "spool at erasure",
        f"{_ROUTER}stores/journal/_erase.py",
        '    connection.execute(f"DELETE FROM spool WHERE',
        '    (lambda *_: None)(f"DELETE FROM spool WHERE',
        (f"{_ERASURE}test_answers_that_wait_for_a_score_are_erased",),
    ),
    Known(
        "compaction of identities at erasure",
        f"{_ROUTER}stores/erasure.py",
        "        self._identities.compact()\n",
        "",
        (f"{_ERASURE}test_a_running_process_completes_what_another_left",),
    ),
    Known(
        "an untrusted key erases nobody",
        "integrations/fitrouter_integrations/gateway/_personal.py",
        "        if not call.trusted:\n",
        "        if False:\n",
        ("tests/gateway/test_personal.py::test_an_applications_key_erases_nobody",),
    ),
    Known(
        "probabilities of the twin",
        f"{_ROUTER}routing/decider.py",
        "twin=tuple(blind.tolist())",
        "twin=tuple(probs.tolist())",
        ("tests/routing/test_decider.py::test_the_twin_is_the_pmf_of_somebody_unknown",),
    ),
    Known("size of a stream", f"{_ROUTER}providers/_sse.py", "if total > limit:", "if False:", (_PROVIDER,)),
    Known(
        "compressed answers",
        f"{_ROUTER}providers/_openai_compatible.py",
        'if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":',
        'if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity" and False:',
        (_PROVIDER,),
    ),
)
