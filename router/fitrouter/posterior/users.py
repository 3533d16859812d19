"""Terms of users: those used last are in memory, the others in a spill file."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fitrouter.posterior.people import Person
from fitrouter.stores.spill import Spill


class Users(Mapping[str, Person]):
    """Mapping of users to their terms; after `shrink` at most `limit` of them are in memory.

    A user's state does not depend on where it is kept. The fold reads with `demand`, and only the fold changes people;
    requests read from memory with `hot`, after `load` in another thread. `shrink` must not run beside the fold. As a
    mapping it has all users, and reads those in the spill without bringing them into memory.

    Args:
        new: makes a user's terms before any label.
        limit: most users in memory; None for no limit.
        folder: for the spill file, which is created when it is first needed.
    """

    def __init__(self, new: Callable[[], Person], limit: int | None = None, folder: Path | None = None) -> None:
        self.limit, self.folder = limit, folder
        self.damaged = False
        """Whether a stored user could not be read back: only a refit restores it."""
        self._new = new
        self._memory: OrderedDict[str, Person | None] = OrderedDict()
        """In the order of their last use; None for a user who is known to have no terms."""
        self._changed: set[str] = set()
        """Users in memory whose row in the spill is missing or out of date."""
        self._gone: set[str] = set()
        """Users whose row in the spill is to be removed."""
        self._spill: Spill | None = None
        self._shrinks = 0
        self._mutex = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        if self._spill is not None:
            raise TypeError("users that are in a spill file cannot be copied")
        return {name: value for name, value in vars(self).items() if name != "_mutex"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _mutex=threading.Lock())

    # --- reading ---

    def hot(self, name: str) -> Person | None:
        """A user's terms if they are in memory."""
        person = self._memory.get(name)
        if person is not None and self.limit is not None:
            with self._mutex:
                if name in self._memory:
                    self._memory.move_to_end(name)
        return person

    def cold(self, name: str) -> bool:
        """Whether a user's terms may be in the spill only."""
        return self._spill is not None and name not in self._memory

    def load(self, name: str) -> None:
        """Bring a user into memory; thread-safe, and one indexed read if the user is not there yet."""
        while self.cold(name):
            shrinks = self._shrinks
            person = self._read(name)
            with self._mutex:
                # Rows that were written since the read may be newer.
                if shrinks == self._shrinks:
                    self._memory.setdefault(name, person)

    def __iter__(self) -> Iterator[str]:
        with self._mutex:
            known = {name for name, person in self._memory.items() if person is not None}
        if self._spill is not None:
            known.update(name for name in self._spill.keys() if name not in self._gone)  # noqa: SIM118 - not a dict
        return iter(sorted(known))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, name: str) -> Person:
        person = self._memory.get(name)
        if person is None and self.cold(name):
            person = self._read(name)
        if person is None:
            raise KeyError(name)
        return person

    @property
    def full(self) -> bool:
        """Whether more users are in memory than allowed."""
        return self.limit is not None and len(self._memory) > self.limit

    # --- writing ---

    def demand(self, name: str) -> Person | None:
        """Return a user's terms in order to change them; reads the spill if `load` was not called before."""
        self.load(name)
        if self.limit is not None:
            self._changed.add(name)
        return self.hot(name)

    def __setitem__(self, name: str, person: Person) -> None:
        with self._mutex:
            self._memory[name] = person
            self._changed.add(name)

    def pop(self, name: str) -> None:
        """Erase a user."""
        with self._mutex:
            self._memory.pop(name, None)
            self._changed.discard(name)
            if self._spill is not None:
                self._gone.add(name)

    def put_aside(self, rows: Iterable[tuple[str, bytes]]) -> None:
        """Write stored users to the spill, without bringing them into memory. Blocks on the disk."""
        self._file().write(rows)

    def shrink(self) -> None:
        """Move the users that were not used for longest from memory to the spill. Blocks on the disk.

        Raises:
            sqlite3.Error: the spill cannot be written; nobody is dropped then.
            OSError: the spill cannot be opened; nobody is dropped then.
        """
        if self.limit is None or not self.full:
            return
        with self._mutex:
            names = list(self._memory)[: len(self._memory) - self.limit + self.limit // 16]
        changed = [(name, person) for name in names if name in self._changed and (person := self._memory[name])]
        spoilt = {name for name, person in changed if not person.finite()}  # stay, to be found and rebuilt
        names = [name for name in names if name not in spoilt]
        gone = list(self._gone)
        self._file().write(((name, person.dump()) for name, person in changed if name not in spoilt), gone)
        with self._mutex:
            self._shrinks += 1
            self._gone.difference_update(gone)
            self._changed.difference_update(names)
            for name in names:
                self._memory.pop(name, None)

    def _file(self) -> Spill:
        if self._spill is None:
            self._spill = Spill(self.folder)
        return self._spill

    def _read(self, name: str) -> Person | None:
        if self._spill is None or name in self._gone or not (payload := self._spill.read(name)):
            return None
        person = self._new()
        if person.load(payload):
            return person
        self.damaged = True
        return None
