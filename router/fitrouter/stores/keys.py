"""File of the API keys that `fitrouter keys` creates; it holds digests, so that whoever reads it has no key.

A key is `sk-fr-ID-SECRET`: the id finds the entry, and the secret's 256 random bits need no slow hash.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from fitrouter.errors import ConfigError
from fitrouter.stores._files import make_folder

FILE = "keys.json"
"""Name of the file in the data folder."""
PREFIX = "sk-fr-"
SCOPES = ("chat", "feedback", "read", "trusted", "metrics", "admin")
"""What a key may do: ask and report; rate and declare; see decisions and the policy; speak for all users of its tenant;
read the metrics of all tenants; change the policy, and read the metrics."""


class StoredKey(msgspec.Struct, frozen=True, kw_only=True):
    """An API key as it is stored, without its secret."""

    id: str
    name: str
    tenant: str | None = None
    """None for the installation's own key, whose requests are the tenant `default`."""
    user: str = ""
    """The one user that it speaks for, as requests name them; empty for no one in particular. Their erasure removes
    the key."""
    scopes: tuple[str, ...] = ("chat", "feedback", "read")
    digest: str
    """sha256 of the whole key, in hex; empty once it is revoked."""
    previous: str = ""
    """Digest before the last rotation, which holds until `previous_until`."""
    previous_until: float = 0.0
    created: float
    """Seconds since the epoch."""
    expires: float | None = None
    requests_per_minute: float | None = None
    usd_per_day: float | None = None

    def opens(self, now: float) -> bool:
        """Whether the key is valid: neither revoked nor expired."""
        return bool(self.digest) and (self.expires is None or now < self.expires)

    def digests(self, now: float) -> tuple[str, ...]:
        """Return the digests of the secrets that are valid now; none if the key is revoked or expired."""
        if not self.opens(now):
            return ()
        return (self.digest, self.previous) if self.previous and now < self.previous_until else (self.digest,)


class _File(msgspec.Struct, frozen=True):
    keys: tuple[StoredKey, ...]
    version: int = 1


def digest_of(key: str) -> str:
    """Return the digest of a key, the form in which it is stored."""
    return hashlib.sha256(key.encode()).hexdigest()


def id_of(key: str) -> str:
    """Extract the id from a key; empty if it is not one of ours."""
    return key.removeprefix(PREFIX).partition("-")[0] if key.startswith(PREFIX) else ""


def new_key(key_id: str | None = None) -> tuple[str, str]:
    """Make a key with a new secret; return its id and the key."""
    key_id = key_id or secrets.token_hex(4)
    return key_id, f"{PREFIX}{key_id}-{secrets.token_urlsafe(32)}"


def read_keys(path: Path) -> tuple[StoredKey, ...]:
    """Read the keys of a file; none if there is no file.

    Raises:
        ConfigError: it is damaged, or other users of the machine can read or write it.
    """
    try:
        mode, data = path.stat().st_mode, path.read_bytes()
        if mode & 0o077:
            raise ConfigError(f"{str(path)!r} can be read or written by other users; run `chmod 600 {path}`")
        return msgspec.json.decode(data, type=_File).keys
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"{str(path)!r} cannot be read: {error}; restore a backup, or remove it to begin anew"
        ) from None


def forget_user(path: Path, tenant: str, user: str) -> None:
    """Remove the keys of a user; errors as of `change_keys`."""
    if any(key.user == user and (key.tenant or "default") == tenant for key in read_keys(path)):
        change_keys(path, lambda keys: [key for key in keys if (key.tenant or "default", key.user) != (tenant, user)])


def change_keys(path: Path, change: Callable[[Sequence[StoredKey]], Sequence[StoredKey]]) -> None:
    """Replace the keys of a file by the result of `change`, atomically and by one process at a time.

    Raises:
        ConfigError: the file cannot be read or written.
    """
    try:
        make_folder(path.parent)
        with os.fdopen(os.open(path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR, 0o600), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            text = msgspec.json.format(msgspec.json.encode(_File(tuple(change(read_keys(path))))), indent=1)
            handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # with mode 0600
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                Path(beside).replace(path)
            except BaseException:
                Path(beside).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be written: {error.strerror}") from None
