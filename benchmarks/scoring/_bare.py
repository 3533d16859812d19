"""Minimal substitute for msgspec on machines that have torch and little else.

Only `scorer.py` uses it, and prints that it does. Events can be written (as JSON, which is slower) but not read, so
that rows through the journal are null. Importing this module installs it if msgspec is missing.
"""

from __future__ import annotations

import base64
import importlib.util
import json as _json
import sys
import types
import typing
from typing import Any


class Struct:
    """Minimal `msgspec.Struct`: fields from annotations, defaults from the class."""

    __struct_fields__: tuple[str, ...] = ()
    __struct_config__ = types.SimpleNamespace(tag=None)

    def __init_subclass__(cls, **options: Any) -> None:
        names = [name for base in reversed(cls.__mro__) for name in vars(base).get("__annotations__", {})]
        cls.__struct_fields__ = tuple(name for name in dict.fromkeys(names) if not name.startswith("__"))
        cls.__struct_config__ = types.SimpleNamespace(tag=options.get("tag"))

    def __init__(self, *values: Any, **named: Any) -> None:
        for name in self.__struct_fields__:
            default = getattr(type(self), name, None)
            setattr(self, name, default.copy() if isinstance(default, dict | list | set) else default)
        for name, value in (*zip(self.__struct_fields__, values, strict=False), *named.items()):
            setattr(self, name, value)
        check = getattr(self, "__post_init__", None)
        if check is not None:
            check()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return {name: getattr(value, name) for name in value.__struct_fields__}


def _encode(value: Any, **_: Any) -> bytes:
    return _json.dumps(value, default=_plain).encode()


def _build(kind: Any, value: Any) -> Any:
    """Convert JSON values to a Struct, or to a dict or tuple of them."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is dict:
        return {key: _build(inner[1], part) for key, part in value.items()}
    if origin in (tuple, list):
        return tuple(_build(inner[0], part) for part in value)
    if isinstance(kind, type) and issubclass(kind, Struct):
        hints = typing.get_type_hints(kind)
        return kind(**{name: _build(hints[name], part) for name, part in value.items()})
    return value


def _decode(payload: bytes, type: Any = None, **_: Any) -> Any:  # noqa: A002 - msgspec's own name
    return _build(type, _json.loads(payload))


class _Encoder:
    encode = staticmethod(_encode)


class _Decoder:
    def __init__(self, *_: Any) -> None:
        """Ignore the arguments; `decode` always raises."""

    def __class_getitem__(cls, _: Any) -> Any:
        return cls

    def decode(self, _: bytes) -> Any:
        raise RuntimeError("events cannot be read without msgspec")


def _replace(value: Any, **changes: Any) -> Any:
    return type(value)(**{name: getattr(value, name) for name in value.__struct_fields__} | changes)


def _stand_in() -> None:
    found: Any = types.ModuleType("msgspec")
    found.Struct, found.MsgspecError, found.DecodeError = Struct, ValueError, ValueError
    found.json = types.SimpleNamespace(decode=_decode, encode=_encode, Decoder=_Decoder, Encoder=_Encoder)
    found.msgpack = types.SimpleNamespace(Encoder=_Encoder, Decoder=_Decoder, encode=_encode, decode=_decode)
    found.structs = types.SimpleNamespace(replace=_replace, force_setattr=setattr)
    sys.modules["msgspec"] = found


USED = importlib.util.find_spec("msgspec") is None
if USED:
    _stand_in()
