"""Implicit remarks: logs what a user's message says about the previous answer."""

from __future__ import annotations

from fitrouter.routing.pipeline import Proposal
from fitrouter.serving.recorder import Recorder
from fitrouter.serving.services import ScorerPlugin
from fitrouter.types import Remark


class RemarkListener:
    """Appends an implicit `Remark` where a request's last message is about the session's previous answer.

    Args:
        recorder: appends it.
        scorer: reads it; None for no remarks.
        enabled: the setting `feedback.implicit`.
    """

    def __init__(self, recorder: Recorder, scorer: ScorerPlugin | None, *, enabled: bool) -> None:
        self._recorder, self._scorer = recorder, scorer if enabled else None

    def listen(self, proposal: Proposal) -> None:
        """Log a remark if the message of a request makes one; failures are reported to the hooks."""
        decision = proposal.decision
        if self._scorer is None or not proposal.previous or decision.identity.user is None:
            return
        try:
            said = self._scorer.overhear(proposal.prompt)
        except Exception as error:  # noqa: BLE001 - routing never fails because learning did
            self._recorder.hooks.trouble("scorer", error)
            return
        if said is not None:
            self._recorder.append_event(
                Remark(
                    id=f"{proposal.previous}:implicit",  # one for each answer, however often the history is sent
                    ts=decision.ts,
                    decision_id=proposal.previous,
                    identity=decision.identity,
                    kind="implicit",
                    moved=said.moved,
                    y=said.y,
                )
            )
