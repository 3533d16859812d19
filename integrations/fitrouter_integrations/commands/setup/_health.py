"""Checks of `fitrouter doctor`: what is installed, the data folder and its stores, and a gateway that uses it."""

from __future__ import annotations

import importlib.util
import os
import platform
import resource
import shutil
import sqlite3
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import msgspec

from fitrouter.assemble import open_identities, open_journal
from fitrouter.config import Config
from fitrouter.errors import FitrouterError, StoreError, masked
from fitrouter.stores import cold
from fitrouter.stores import journal as journals
from fitrouter.stores.audit_log import AuditLog
from fitrouter.stores.cold_feed import EVENTS
from fitrouter.stores.erasure import WAREHOUSE
from fitrouter.stores.figures import many
from fitrouter.stores.keys import FILE as KEYS
from fitrouter.stores.keys import read_keys
from fitrouter.stores.warehouse import Warehouse
from fitrouter_integrations._http import KEY_ENV, NoGateway, call, url_of
from fitrouter_integrations.commands._gateway import installation_of

Level = Literal["ok", "open", "warning", "fault"]
PACKAGES = ("msgspec", "numpy", "aiohttp", "starlette", "uvicorn", "duckdb", "litellm", "torch")
WHOLE_BYTES = 256 * 2**20
"""Journals up to this size are read whole."""
ROOM_BYTES = 256 * 2**20
"""Free space below which the next hours may fill the disk."""
FILES = 1024
"""Open files that a worker needs at least."""
BEHIND = 20_000
"""Events to fold or copy at a start from which it takes long."""
SKEW_S = 5.0
TAKEN_S = 3.0
"""Time in which a worker takes a free lease, or makes the warehouse."""
SCORE_S = 600.0
"""Age of an unscored answer from which the scorer is behind."""
_SOON_S = 14 * 86_400.0
_COUNTED = 10_000
"""Users of a database up to which they are counted."""
_NETWORKED = ("nfs", "cifs", "smb", "fuse.sshfs", "9p", "ceph", "glusterfs")


class Check(msgspec.Struct, frozen=True):
    """The result of a check."""

    name: str
    level: Level
    text: str
    """What was found."""
    do: str = ""
    """What to do about it; empty if nothing."""


def ok(name: str, text: str) -> Check:
    """Return the result of a check that found nothing wrong."""
    return Check(name, "ok", masked(text))


def unchecked(name: str, text: str) -> Check:
    """Return the result of a check that had nothing to look at yet, or did not look."""
    return Check(name, "open", masked(text))


def warning(name: str, text: str, do: str) -> Check:
    """Return the result of a check that found something that may become a fault."""
    return Check(name, "warning", masked(text), do)


def fault(name: str, text: str, do: str) -> Check:
    """Return the result of a check that found something that does not work."""
    return Check(name, "fault", masked(text), do)


def versions() -> Check:
    """List the versions of everything that bug reports should name."""
    found = [f"fitrouter {metadata.version('fitrouter')}", f"Python {platform.python_version()}", platform.platform()]
    found.append(f"SQLite {sqlite3.sqlite_version}")
    found += [f"{name} {metadata.version(name)}" for name in PACKAGES if importlib.util.find_spec(name)]
    return ok("versions", ", ".join(found))


def limits() -> Check:
    """Check the limit of open files."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    text = f"{files} open files, {os.cpu_count()} processors"
    if files < FILES:
        return warning("limits", text, f"raise the limit of open files, for instance `ulimit -n {16 * FILES}`")
    return ok("limits", text)


def device(config: Config) -> Check:
    """Check the device of the encoder and of reward models."""
    wanted, models = config.scorer.device, [model.name for model in config.scorer.models if model.needs_torch]
    if wanted == "cpu" or (wanted == "auto" and not models):
        return ok("device", "cpu")
    if importlib.util.find_spec("torch") is None:
        if wanted == "cuda":
            return fault("device", "scorer.device is cuda, but torch is not installed", "set it to cpu, or install it")
        return ok("device", "cpu: torch is not installed")
    import torch

    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return ok("device", f"{torch.cuda.get_device_name()}, {_size(free)} of {_size(total)} free")
    if wanted == "cuda":
        return fault("device", "scorer.device is cuda, but torch finds none", "set it to cpu, or check the driver")
    text = f"cpu, for the reward models {', '.join(models)}"
    return warning("device", text, "expect seconds for each answer; a GPU, or fewer models, shortens that")


def stored_keys(config: Config, now: float) -> Check:
    """Count the keys of `fitrouter keys`, and warn of those that expire soon."""
    try:
        keys = read_keys(config.data / KEYS)
    except FitrouterError as error:
        return fault("keys", str(error), "restore keys.json from a backup, or delete it and create the keys again")
    held = [key for key in keys if key.opens(now)]
    text = f"{len(held)} in force of {len(keys)} in keys.json, {len(config.server.keys)} in the environment"
    if soon := [key.name for key in held if key.expires is not None and key.expires - now < _SOON_S]:
        return warning("keys", f"{text}; {', '.join(soon)} expire within two weeks", "`fitrouter keys rotate NAME`")
    return ok("keys", text)


def disk(data: Path) -> Iterator[Check]:
    """Check free space and access rights of the data folder."""
    place = next(each for each in (data, *data.absolute().parents) if each.exists())
    space = shutil.disk_usage(place)
    sizes = [_bytes(path) for path in data.glob("*")]
    used, largest = sum(sizes), max(sizes, default=0)
    text = f"{_size(space.free)} of {_size(space.total)} free for {data}, which has {_size(used)}"
    if space.free < ROOM_BYTES or space.free < 0.01 * space.total:
        yield fault("disk", text, "make room: a full disk stops logging and learning, though not routing")
    elif space.free < 2 * largest or space.free < 0.1 * space.total:
        yield warning("disk", text, "make room: erasures and migrations copy the largest file")
    else:
        yield ok("disk", text)
    if (kind := _file_system(place)).startswith(_NETWORKED):
        yield warning("file system", f"{data} is on {kind}", "move it to a local disk: the stores rely on its locks")
    if not os.access(place, os.W_OK | os.X_OK):
        yield fault("rights", f"{place} cannot be written by uid {os.getuid()}", "chown it to the gateway's user")
        return
    foreign = [path.name for path in data.glob("*") if path.exists() and not os.access(path, os.R_OK | os.W_OK)]
    if foreign:
        shown = ", ".join(foreign)
        yield fault("rights", f"uid {os.getuid()} cannot read and write {shown}", "chown them to the gateway's user")
    elif (loose := sorted(filter(None, map(_loose, data.glob("*"))))) and place.stat().st_mode & 0o077:
        yield warning("rights", f"others may read {', '.join(loose)}", f"`chmod -R go= {data}`")
    else:
        yield ok("rights", f"{data}: read and written by uid {os.getuid()} alone")
    if aside := sorted(path.name for path in data.glob("*.corrupt-*")):
        do = "delete them once nothing more is to be saved from them"
        yield warning("damaged files", f"put aside at an earlier start: {', '.join(aside)}", do)


class JournalHealth(msgspec.Struct, kw_only=True):
    """Health of the journal."""

    head: int = 0
    newest: float = 0.0
    """Time of the newest event, in seconds since the epoch."""
    sound: bool = False
    """Whether it can be opened by more than a reader."""


def database(config: Config, found: JournalHealth) -> Check:
    """Check a journal in a database; fills `found`."""
    try:
        with closing(open_journal(config)) as opened:
            found.head, found.sound = opened.head(), True
            last = opened.tail(found.head - 1)
            spooled, left = opened.spooled(BEHIND), opened.unfinished()
    except FitrouterError as error:
        return fault("journal", str(error), "see docs/postgres.md")
    found.newest = last[-1].event.ts if last else 0.0
    text = f"{many(found.head, 'event')} in {opened!r}, {many(len(spooled), 'answer')} without a score"
    if left:
        return warning("journal", f"{text}, {len(left)} unfinished erasures", "let a gateway run, which finishes them")
    return ok("journal", text)


def journal(data: Path, now: float, found: JournalHealth) -> Iterator[Check]:
    """Check the journal file, its snapshot, answers without a score and unfinished erasures; fills `found`."""
    path = data / "journal.db"
    if not path.is_file():
        yield unchecked("journal", "none yet: the first start makes it")
        found.sound = True
        return
    try:
        with _reading(path) as connection:
            row = connection.execute("SELECT coalesce(max(seq), 0), coalesce(max(ts), 0) FROM events").fetchone()
            found.head, found.newest = row
            (seq,) = connection.execute("SELECT seq FROM snapshot_position").fetchone()
            spooled, oldest = connection.execute("SELECT count(*), coalesce(min(ts), 0) FROM spool").fetchone()
            (left,) = connection.execute("SELECT count(*) FROM erased WHERE NOT done").fetchone()
        size = sum(_bytes(path.with_name(path.name + suffix)) for suffix in ("", "-wal", "-shm"))
        whole = size <= WHOLE_BYTES
        check = journals.check(path) if whole else None
    except (sqlite3.Error, OSError) as error:
        yield fault("journal", f"{path} cannot be read: {error}", "`fitrouter journal check`; restore a backup if gone")
        return
    text = f"{many(found.head, 'event')}, {_size(size)}"
    if check is None:
        yield ok("journal", f"{text}; too large to read whole here: `fitrouter journal check` does")
    elif not check.sound:
        bad = [f"event {seq}" for seq in check.damaged[:5]] + list(filter(None, (check.file, check.log)))
        do = "restart the gateway, which salvages what is sound; or `fitrouter journal salvage` first"
        yield fault("journal", f"{text}; damaged: {'; '.join(bad)}", do)
        return
    elif check.unsound:
        do = "`fitrouter journal check` names them; they are left out of what is learnt"
        yield warning("journal", f"{text}; numbers out of range in {len(check.unsound)} of them", do)
    else:
        yield ok("journal", f"{text}, all sound")
    found.sound = True
    behind = found.head - seq
    text = f"at event {seq}, {many(behind, 'event')} behind the journal"
    if behind > BEHIND:
        yield warning("snapshot", text, "a start folds them first; see `learner` in the gateway's log if this grows")
    else:
        yield ok("snapshot", text)
    if spooled and now - oldest > SCORE_S:
        do = "see that a gateway runs, and `scorer` in its log"
        yield warning(
            "scores", f"{many(spooled, 'answer waits', 'answers wait')}, the oldest for {now - oldest:.0f} s", do
        )
    if left:
        do = "start the gateway, or let it run: it completes them, and logs what hinders it"
        yield warning("erasures", f"{left} are not complete", do)


def clock(newest: float, now: float) -> Check:
    """Check that the clock is not behind the newest event."""
    if not newest:
        return unchecked("clock", "no event to compare it with")
    if newest > now + SKEW_S:
        text = f"{newest - now:.0f} s behind the newest event"
        return fault("clock", text, "set it, and keep it by NTP: keys, budgets and decay go by it")
    return ok("clock", f"the newest event is {now - newest:.0f} s old")


def warehouse(data: Path, log: JournalHealth) -> Check:
    """Check the DuckDB tables, and how far they are behind the journal."""
    path = data / WAREHOUSE
    if importlib.util.find_spec("duckdb") is None:
        return warning("warehouse", "none: duckdb is not installed", "`pip install 'fitrouter[warehouse]'`")
    if not path.is_file():
        return unchecked("warehouse", "none yet: a running gateway fills it from the journal")
    deadline = time.monotonic() + TAKEN_S
    while True:
        try:
            ((seq,),) = Warehouse(path).query("SELECT seq FROM position")
            break
        except StoreError as error:  # a gateway may be making it
            if time.monotonic() > deadline:
                do = "close the program that has it open; if it is damaged, delete it: it is filled again"
                return fault("warehouse", str(error), do)
        time.sleep(0.2)
    head = log.head  # of a database
    if (file := data / "journal.db").is_file():
        try:
            with _reading(file) as connection:  # a gateway may have gone on
                (head,) = connection.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()
        except sqlite3.Error as error:
            text = f"at event {seq}; how far it is behind is not known: the journal is not readable now: {error}"
            return warning("warehouse", text, "mend the journal first")
    text = f"at event {seq}, {many(max(0, head - seq), 'event')} behind the journal, {_size(_bytes(path))}"
    if seq > head:
        return fault("warehouse", text + ": it is another journal's", "a start sets it aside and fills a new one")
    if head - seq > BEHIND:
        return warning("warehouse", text, "let a gateway run; see `warehouse` in its log if this does not shrink")
    return ok("warehouse", text)


def cold_store(config: Config, log: JournalHealth) -> Iterator[Check]:
    """Check the Parquet files in a folder or bucket, if any, and how far they are behind the journal."""
    if (place := config.cold.place) is None:
        return
    try:
        storage = cold.storage_at(place, config.data)
        sizes, files = storage.sizes(), cold.files_at(storage)
    except FitrouterError as error:
        yield fault("cold store", str(error), "mend it as it says; a gateway goes on, and writes them afterwards")
        return
    behind, size = log.head - (files[-1].last if files else 0), sum(sizes.get(file.name, 0) for file in files)
    text = f"{place}: {many(len(files), 'file')}, {_size(size)}, {many(max(0, behind), 'event')} behind the journal"
    if holes := cold.gaps(files):
        text += f"; missing are the events {', '.join(f'{first}–{last}' for first, last in holes[:5])}"
        yield fault("cold store", text, "let a gateway run, which writes those that its journal has; restore a backup")
    elif behind > BEHIND + EVENTS:
        yield warning("cold store", text, "let a gateway run; see `cold` in its log if this does not shrink")
    else:
        yield ok("cold store", text)


def identities(config: Config) -> Check:
    """Check the identities: in a database, or in a file with a copy."""
    if not config.database:
        return _identities(config.data)
    try:
        with closing(open_journal(config)) as log, closing(open_identities(config, log)) as found:
            users, told = len(found.people(_COUNTED)), found.incident
            where = found.rows.name
    except FitrouterError as error:
        return fault("identities", str(error), "see docs/postgres.md")
    text = f"{users}{' or more' * (users == _COUNTED)} users in {where}"
    return warning("identities", text, told) if told else ok("identities", text)


def _identities(data: Path) -> Check:
    path = data / "identities.db"
    copy = path.with_name(f"{path.name}.copy")
    if not path.is_file():
        if copy.is_file():
            return warning(
                "identities", f"{path.name} is missing", "start the gateway, which restores it from its copy"
            )
        return unchecked("identities", "none yet: the first start makes them")
    try:
        with _reading(path) as connection:
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            (users,) = connection.execute("SELECT count(*) FROM subjects").fetchone()
    except (sqlite3.Error, OSError) as error:
        return fault("identities", f"{path} cannot be read: {error}", "restart the gateway: it restores the copy")
    if verdict != "ok":
        return fault("identities", f"{path} is damaged: {verdict}", "restart the gateway: it restores the copy")
    if not copy.is_file():
        return warning(
            "identities", f"{many(users, 'user')}, without a copy", "restart the gateway, which makes it again"
        )
    return ok("identities", f"{many(users, 'user')} and a copy")


def audit_log(data: Path) -> Check:
    """Check the hash chain of the audit log."""
    try:
        found = AuditLog(data).verify()
    except StoreError as error:
        return fault("audit log", str(error), "let the gateway's user read it")
    if found.broken is not None:
        do = "find out who changed it; `fitrouter audits log verify`"
        return fault("audit log", f"line {found.broken} does not follow the one before", do)
    return ok("audit log", f"{found.acts} acts, an unbroken chain")


def gateway(config: Config) -> Iterator[Check]:
    """Check a gateway that has the journal open: its readiness, services and circuit breakers."""
    path = config.data / "journal.db"
    if not path.is_file() or not journals.in_use(path):
        yield unchecked("gateway", "none has the data folder open")
        return
    url, own = url_of(config), installation_of(config)
    try:
        alive = call("GET", url, "/healthz", timeout_s=5.0)
        if not isinstance(alive, dict) or alive.get("installation") != own:
            do = "stop it, or give this one another `server.port`; `--config` names the configuration that is meant"
            yield warning("gateway", f"the one at {url} is of another installation", do)
            return
        report: Mapping[str, Any] = call("GET", url, "/readyz", timeout_s=5.0, answers=(503,))
    except NoGateway as error:
        do = "give its configuration with --config; a command may also have it open for a moment"
        yield warning("gateway", f"the data folder is open in a process, but {error}", do)
        return
    except FitrouterError as error:
        yield warning("gateway", str(error), f"put a key of the gateway into {KEY_ENV}")
        return
    if "reasons" not in report:
        text = f"{url} is {'ready' if report.get('ready') else 'not ready'}"
        yield warning("gateway", f"{text}; it tells no more without a key", f"put one into {KEY_ENV}")
    else:
        for part, text in report["reasons"].items():
            yield fault(f"gateway: {part}", text, "docs/deployment.md, Faults")
        for part, text in report["behind"].items():
            do = f"see `{part}` in its log; requests are answered and learnt from meanwhile, and it goes on by itself"
            yield warning(f"gateway: {part}", text, do)
        for part, text in report["incidents"].items():
            yield warning(f"gateway: {part}", text, "see docs/deployment.md, Faults; gone with the next start")
        for name, why in report["breakers"].items():
            yield warning(f"gateway: {name}", f"is not called at present: {why}", "see the provider's status and key")
        lag = ", ".join(f"{name} {value:g}" for name, value in report["lag"].items() if value)
        text = f"{url}, worker {report['pid']} at event {report['seq']}; behind: {lag or 'nothing'}"
        if report["ready"]:
            yield ok("gateway", text)
        elif not report["reasons"]:
            yield warning("gateway", f"{text}; starting", "wait: it folds the journal first")
    deadline = time.monotonic() + TAKEN_S
    while (idle := [name for name in _services(config) if not journals.leased(path, name)]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.2)
    if idle:
        do = "see these names in the gateway's log: another process takes them over within seconds, or says why not"
        yield warning("services", f"no process holds {', '.join(idle)}", do)
    else:
        yield ok("services", ", ".join(_services(config)) + ": each in one process")


def _reading(path: Path) -> closing[sqlite3.Connection]:
    """Open a read-only connection to a SQLite file."""
    return closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True))


def _services(config: Config) -> list[str]:
    """Names of the leases that a running gateway holds under a configuration."""
    found = ["warehouse"] if importlib.util.find_spec("duckdb") else []
    return found + (["scorer"] if config.scorer.encoder != "none" else [])


def _bytes(path: Path) -> int:
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _loose(path: Path) -> str:
    """Name of a file that users other than its owner may access; empty if none may, or if it is gone."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return ""
    return path.name if stat.S_ISREG(found.st_mode) and found.st_mode & 0o077 else ""


def _file_system(path: Path) -> str:
    """Kind of the file system of a path; empty if unknown."""
    try:
        lines = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except FileNotFoundError:
        return ""
    where = path.resolve()
    held = [(len(line[1]), line[2]) for line in lines if where.is_relative_to(line[1].replace("\\040", " "))]
    return max(held)[1] if held else ""


def _size(count: float) -> str:
    """A number of bytes in words.

    >>> _size(1536), _size(0)
    ('1.5 kB', '0 B')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"
