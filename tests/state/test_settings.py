"""Runtime settings: versions over the configuration, as events."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fitrouter.errors import InvalidRequest
from fitrouter.state.settings import SETTINGS, VERSIONS, PolicySettings, check_settings
from fitrouter.types import PolicyChange


def change(action: str, name: str = "", **settings: Any) -> PolicyChange:
    return PolicyChange(id="c", ts=0.0, action=action, name=name, settings=settings, config_hash="h")


def test_versions_stack_and_are_restored() -> None:
    """Each change overrides the one before; restoring goes back step by step to the configuration file."""
    control = PolicySettings()
    control.observe(change("set", share=0.05))
    control.observe(change("promote", "bold", gamma=9.0))
    assert (control.live, control.settings) == ("bold", {"share": 0.05, "gamma": 9.0})
    control.observe(change("restore"))
    assert (control.live, control.settings) == ("configuration + share", {"share": 0.05})
    control.observe(change("restore"))
    control.observe(change("restore"))
    assert (control.live, control.settings) == ("configuration", {})


def test_a_new_configuration_takes_precedence() -> None:
    """A start with another configuration drops the overrides of the old one."""
    control = PolicySettings()
    control.observe(change("set", share=0.05))
    control.observe(change("config"))
    assert control.settings == {}
    assert control.config_hash == "h"


def test_unknown_changes_are_ignored() -> None:
    """Actions and settings of a later version change nothing."""
    control = PolicySettings()
    control.observe(change("levitate", share=0.5))
    assert control.history == []
    control.observe(change("set", share=0.5, tomorrow=1))
    assert control.settings == {"share": 0.5}


@given(st.lists(st.sampled_from(["set", "promote", "restore", "config"]), max_size=100))
def test_state_round_trips(actions: list[str]) -> None:
    """The state round-trips exactly, and the history is bounded."""
    control = PolicySettings()
    for i, action in enumerate(actions):
        control.observe(change(action, f"v{i}", share=1 / (i + 1)))
    assert len(control.history) <= VERSIONS
    again = PolicySettings()
    assert again.load(control.dump())
    assert (again.history, again.config_hash) == (control.history, control.config_hash)
    assert again.dump() == control.dump()


@pytest.mark.parametrize(
    "payload", [b"", b"x", PolicySettings().dump()[:-1], b"\x92\x91\x92\xa1v\x81\xa5share\x05\xa1h"]
)
def test_damaged_state_is_rejected(payload: bytes) -> None:
    """Invalid bytes and settings out of range change nothing."""
    control = PolicySettings()
    control.observe(change("set", share=0.05))
    before = control.dump()
    assert not control.load(payload)
    assert control.dump() == before


def test_bad_settings_are_named(subtests: pytest.Subtests) -> None:
    """The message names what was given and what is allowed."""
    for settings, told in (
        ({}, "no setting"),
        ({"shar": 1}, "shar"),
        ({"share": 1.5}, "at most 1"),
        ({"share": True}, "True"),
        ({"share": float("nan")}, "nan"),
        ({"gamma": 0.0}, "gamma"),
        ({"cost_weight": -1}, "cost_weight"),
        ({"cost_weight": "much"}, "much"),
        ({"personal": 1}, "true or false"),
        ({"algorithm": 3}, "text"),
    ):
        with subtests.test(settings=settings, told=told), pytest.raises(InvalidRequest, match=told):
            check_settings(settings)


def test_every_setting_accepts_a_valid_value() -> None:
    values = {name: {str: "squarecb", bool: True}.get(each.kind, max(each.low, 0.5)) for name, each in SETTINGS.items()}
    assert check_settings(values) == values
