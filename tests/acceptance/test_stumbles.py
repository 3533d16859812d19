"""What strangers met has a test each, and the tests are there."""

from __future__ import annotations

import ast
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
STUMBLES = yaml.safe_load((ROOT / "tests" / "acceptance" / "stumbles.yaml").read_text(encoding="utf-8"))


def test_every_stumble_has_a_test_that_exists() -> None:
    """All eight untrue statements are listed; each item names a test function, and how it failed when it was true."""
    assert {each["said"][0] for each in STUMBLES["untrue statements"]} == set("12345678")
    for each in (*STUMBLES["untrue statements"], *STUMBLES["stumbles"]):
        assert set(each) == {"said", "test", "failed"}, each
        assert all(isinstance(text, str) and text for text in each.values()), each
        file, _, name = each["test"].partition("::")
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, each["test"]
