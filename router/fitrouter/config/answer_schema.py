"""Whether an answer is JSON of a schema; as a program it reads `{"schema", "content"}`, and ends with 1 if not."""

import json
import os
import sys
from typing import Any


def fault(schema: Any) -> str:
    """What is wrong with a schema; empty if it is one."""
    from jsonschema import Draft202012Validator, SchemaError
    from jsonschema.validators import validator_for

    try:
        validator_for(schema, default=Draft202012Validator).check_schema(schema)
    except SchemaError as error:
        return str(error.message)
    return ""


def fails(schema: Any, content: object) -> bool:
    """Whether the content of an answer is no JSON, or JSON that a schema excludes. References lead nowhere else.

    >>> [fails({"type": "integer"}, text) for text in ("7", "seven", '"7"', None)]
    [False, True, True, True]
    """
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for
    from referencing import Registry

    kind = validator_for(schema, default=Draft202012Validator)
    try:
        value = json.loads(content) if isinstance(content, str) else None
    except ValueError:
        return True
    return not isinstance(content, str) or not kind(schema, registry=Registry()).is_valid(value)


if __name__ == "__main__":
    sys.excepthook = lambda *_: os._exit(2)  # by default 1: a schema that cannot be read would fail every answer
    given = json.load(sys.stdin)
    sys.exit(int(fails(given["schema"], given["content"])))
