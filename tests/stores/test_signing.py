"""Laws of signed documents."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fitrouter.errors import InvalidRequest, StoreError
from fitrouter.stores.signing import FIELD, signed, signing_key, verified

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return signing_key(tmp_path_factory.mktemp("keys") / "sub" / "signing.key")


@settings(max_examples=50, deadline=None)
@given(document=st.dictionaries(st.text().filter(lambda name: name != FIELD), JSON, max_size=4), more=st.data())
def test_a_signature_holds_until_an_edit(key: Any, document: dict[str, Any], more: st.DataObject) -> None:
    """A signed document verifies after a round through JSON with any layout, and not after any single change."""
    sealed = json.loads(json.dumps(signed(document, key), indent=more.draw(st.sampled_from([None, 2]))))
    print_of_key = verified(sealed)
    assert verified(signed(sealed, key)) == print_of_key
    name = more.draw(st.sampled_from([*sorted(document), "new"]))
    value = more.draw(JSON.filter(lambda value: json.dumps(value) != json.dumps(document.get(name, 0))))
    with pytest.raises(InvalidRequest, match="changed after"):
        verified({**sealed, name: value})


def test_what_is_refused(key: Any, tmp_path: Path) -> None:
    """No signature, one of another document or broken in itself, and a file that holds no key."""
    sealed = signed({"a": 1}, key)
    for broken in ({"a": 1}, {**sealed, FIELD: None}, {**sealed, FIELD: {"algorithm": "none"}}):
        with pytest.raises(InvalidRequest, match="missing"):
            verified(broken)
    value = sealed[FIELD]["value"]
    loose = value[:-3] + chr(ord(value[-3]) + 1) + "=="  # base64 of the same bytes
    for change in (
        {"value": ""},
        {"value": loose},
        {"more": 1},
        {"key": "?"},
        {"value": signed({"a": 2}, key)[FIELD]["value"]},
    ):
        with pytest.raises(InvalidRequest, match="changed after"):
            verified({**sealed, FIELD: {**sealed[FIELD], **change}})
    (tmp_path / "bad").write_bytes(b"short")
    with pytest.raises(StoreError):
        signing_key(tmp_path / "bad")


def test_a_key_is_made_once(tmp_path: Path) -> None:
    """The next call reads the key of the first one; nobody else may read the file."""
    path = tmp_path / "signing.key"
    first = verified(signed({}, signing_key(path)))
    assert verified(signed({}, signing_key(path))) == first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
