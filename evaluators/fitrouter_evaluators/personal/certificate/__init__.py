"""Signed fit certificates: a person's figures for each model, recomputable elsewhere from exported rows."""

from fitrouter_evaluators.personal.certificate.certificate import (
    Certificate,
    Verified,
    certified,
    issued,
    layout,
    verify,
)
from fitrouter_evaluators.personal.certificate.figures import Figures, Method
from fitrouter_evaluators.personal.certificate.rows import Rows, anchor_scores, logged_rows

__all__ = [
    "Certificate",
    "Figures",
    "Method",
    "Rows",
    "Verified",
    "anchor_scores",
    "certified",
    "issued",
    "layout",
    "logged_rows",
    "verify",
]
