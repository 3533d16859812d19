"""Personal test suites: prompts, probes and contrast pairs of a person or role; validated by people, run on models."""

from fitrouter_evaluators.personal.suite import results
from fitrouter_evaluators.personal.suite.generate import Generator, with_pairs, with_prompts, written, written_prompts
from fitrouter_evaluators.personal.suite.importing import Imported, imported
from fitrouter_evaluators.personal.suite.judge import PairJudge, Trust, Verdict
from fitrouter_evaluators.personal.suite.ledger import Ledger
from fitrouter_evaluators.personal.suite.models import Models
from fitrouter_evaluators.personal.suite.pairs import surface_accuracy
from fitrouter_evaluators.personal.suite.results import ModelResult, TurnsResult
from fitrouter_evaluators.personal.suite.run import Runner, estimated
from fitrouter_evaluators.personal.suite.suite import ANCHORS, GENERAL, MARKS, Pair, Prompt, Suite, Task, decoded
from fitrouter_evaluators.personal.suite.validation import RaterAgreement, agreements, blind, with_mark

__all__ = [
    "ANCHORS",
    "GENERAL",
    "MARKS",
    "Generator",
    "Imported",
    "Ledger",
    "ModelResult",
    "Models",
    "Pair",
    "PairJudge",
    "Prompt",
    "RaterAgreement",
    "Runner",
    "Suite",
    "Task",
    "Trust",
    "TurnsResult",
    "Verdict",
    "agreements",
    "blind",
    "decoded",
    "estimated",
    "imported",
    "results",
    "surface_accuracy",
    "with_mark",
    "with_pairs",
    "with_prompts",
    "written",
    "written_prompts",
]
