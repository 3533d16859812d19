"""Evaluators: score responses, train, replay, report. They hold no state that a decision depends on."""
