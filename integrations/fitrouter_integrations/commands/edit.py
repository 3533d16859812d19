"""Changing one setting of a configuration file without touching the rest of it, comments included."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import yaml

from fitrouter.config import parse_config
from fitrouter.errors import ConfigError


def set_top_level(path: Path, settings: dict[str, str]) -> None:
    """Set scalars at the top level of a YAML file; one that is not there yet is added at the end.

    The result is validated before it replaces the file, which happens in one step.

    Args:
        path: the file.
        settings: name → value, written as YAML.

    Raises:
        ConfigError: the file cannot be read or written, or would not be a valid configuration afterwards.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error}; `fitrouter init` writes one") from None
    for name, value in settings.items():
        text = _set(text, name, value)
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{str(path)!r} is not valid YAML: {error}") from None
    parse_config(data, f"{str(path)!r}")
    if not isinstance(data, dict) or any(data.get(name) != yaml.safe_load(value) for name, value in settings.items()):
        raise ConfigError(f"{str(path)!r} sets {', '.join(settings)} in a way that cannot be edited; change it by hand")
    _replace(path, text)


def _set(text: str, name: str, value: str) -> str:
    """The text with the line of a setting changed, its comment kept."""
    line = re.compile(
        rf"^({re.escape(name)}[ \t]*:)(?:[ \t]+[^\s#][^#\r\n]*?)?([ \t]+#[^\r\n]*)?[ \t]*(\r?)$", re.MULTILINE
    )
    changed, times = line.subn(lambda match: f"{match[1]} {value}{match[2] or ''}{match[3]}", text)
    if times:
        return changed
    return text + ("" if text.endswith("\n") or not text else "\n") + f"{name}: {value}\n"


def _replace(path: Path, text: str) -> None:
    """Write beside it, then rename, so that nobody ever reads half a file."""
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
