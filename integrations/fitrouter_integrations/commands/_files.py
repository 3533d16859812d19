"""Reading and writing of files for the command line, with a `ConfigError` for whatever goes wrong."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from fitrouter.errors import ConfigError

TOO_DEEP = "a file that was given is nested too deeply; flatten it"
"""What a command says of a RecursionError, which only reading a file can cause."""


def refuse_existing(path: Path, option: str) -> None:
    """Raise `ConfigError` if a file exists that the command would write."""
    if path.exists():
        raise ConfigError(f"{str(path)!r} exists already; remove it, or choose another file with {option}")


def read_file(path: Path, option: str) -> bytes:
    """Read the bytes of a file.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{option}: {str(path)!r} cannot be read: {error.strerror}") from None


def write_new(path: Path, text: str, option: str, *, private: bool = True) -> None:
    """Write a file that must not exist yet; a private one can be read by its owner only.

    Raises:
        ConfigError: it exists, or cannot be written.
    """
    refuse_existing(path, option)
    try:
        with open(path, "x", encoding="utf-8", opener=for_owner if private else None) as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be written: {error.strerror}") from None


def for_owner(path: str, flags: int) -> int:
    """Open a file that only its owner can read, as the `opener` of `open`."""
    return os.open(path, flags, 0o600)


def as_json(value: Any) -> str:
    """Encode a value as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1).decode()


def write_json(value: Any, out: Path | None) -> None:
    """Write a value to the file of `--json`, if one was given.

    Raises:
        ConfigError: it cannot be written.
    """
    if out is not None:
        write_private(out, (as_json(value) + "\n").encode(), "--json")


def write_private(path: Path, content: bytes, option: str) -> None:
    """Write a file that only its owner can read, also where one stands that others could.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        with open(path, "wb", opener=for_owner) as file:
            if path.is_file():
                os.fchmod(file.fileno(), 0o600)
            file.write(content)
    except OSError as error:
        raise ConfigError(f"{option}: {str(path)!r} cannot be written: {error.strerror}") from None


def flow(value: Any) -> str:
    """Format a value as YAML on one line."""
    import yaml

    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1_000_000, allow_unicode=True)
    return text.removesuffix("...\n").strip()


def set_top_level(path: Path, settings: dict[str, str]) -> None:
    """Set top-level scalars of a YAML configuration, keeping the rest of the file; new ones are appended.

    The result is validated before it replaces the file atomically.

    Args:
        path: the file.
        settings: name → value, written as YAML.

    Raises:
        ConfigError: the file cannot be read or written, or would not be a valid configuration afterwards.
    """
    import yaml

    from fitrouter.config import load_yaml, parse_config

    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error}; `fitrouter init` writes one") from None
    for name, value in settings.items():
        text = _set(text, name, value)
    try:
        data = load_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{str(path)!r} is not valid YAML: {error}") from None
    parse_config(data, f"{str(path)!r}")
    if not isinstance(data, dict) or any(data.get(name) != yaml.safe_load(value) for name, value in settings.items()):
        raise ConfigError(f"{str(path)!r} sets {', '.join(settings)} in a way that cannot be edited; change it by hand")
    replace_file(path, text)


def _set(text: str, name: str, value: str) -> str:
    """Return YAML text with one setting changed or appended, its comment kept."""
    line = re.compile(
        rf"^({re.escape(name)}[ \t]*:)(?:[ \t]+[^\s#][^#\r\n]*?)?([ \t]+#[^\r\n]*)?[ \t]*(\r?)$", re.MULTILINE
    )
    changed, times = line.subn(lambda match: f"{match[1]} {value}{match[2] or ''}{match[3]}", text)
    if times:
        return changed
    return text + ("" if text.endswith("\n") or not text else "\n") + f"{name}: {value}\n"


def replace_file(path: Path, text: str) -> None:
    """Write a temporary file next to the target and rename it, so that no reader sees half a file.

    Raises:
        ConfigError: it cannot be written.
    """
    target = path.resolve()
    try:
        handle, beside = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(text.encode("utf-8"))
                file.flush()
                os.fsync(file.fileno())
            Path(beside).chmod(target.stat().st_mode & 0o777)
            Path(beside).replace(target)
        except BaseException:
            Path(beside).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be written: {error.strerror}") from None
