"""Two SQLite libraries in one process: refused where it can be seen, since they destroy the database.

The hard idea: SQLite's locks are POSIX's, which a process loses when it closes any descriptor of the file. Connections
of one library know of each other and take care; two libraries do not, and neither does a program that opens the file
itself. Python's own `sqlite3` is another library than the one that we use. So when the first connection of ours opens a
file, nothing else in the process may have it open (`/proc/self/fd` tells), and from then on Python says of each
connection of `sqlite3` which file it is for, before it opens it (an audit hook). What is not seen: a file that such a
connection attaches, another library than these two, and `open` on the file.

Source: https://www.sqlite.org/howtocorrupt.html, "Multiple copies of SQLite linked into the same application".
"""

from __future__ import annotations

import contextlib
import os
import sys
from functools import cache
from typing import Final
from urllib.parse import unquote, urlsplit
from weakref import WeakKeyDictionary

import apsw

from tranlog.errors import SourceSetupError

_FDS: Final = "/proc/self/fd"
_CONNECT: Final = "sqlite3.connect"
_REMEDY: Final = (
    "Two SQLite libraries in one process take each other's locks, and that destroys the database. Use "
    "tranlog.source.sqlite.connect or apsw here, or do it in another process"
)
_ours: Final[WeakKeyDictionary[apsw.Connection, tuple[int, int] | None]] = WeakKeyDictionary()
"""Connections of ours, and the file that each was opened with."""


def check_alone(path: str) -> None:
    """Refuse to open a file that something else in this process has open. Raises SourceSetupError."""
    file = _identity(path)
    if not apsw.using_amalgamation or file is None or any(_has(db, file) for db in apsw.connections()):
        return  # with a connection of our library there the descriptors are its own, as far as anybody can tell
    with contextlib.suppress(FileNotFoundError):
        for number in os.listdir(_FDS):
            if _identity(f"{_FDS}/{number}") == file:
                why = f"{path} is open in this process already, by another library than ours (descriptor {number})"
                raise SourceSetupError(why=why, remedy=_REMEDY)


def watch(db: apsw.Connection) -> None:
    """Have Python's `sqlite3` refused the file of a connection of ours for as long as that one is open."""
    if apsw.using_amalgamation:
        _ours[db] = _identity(db.filename)
        _install()


@cache
def _install() -> None:
    sys.addaudithook(_on_event)


def _on_event(event: str, arguments: tuple[object, ...]) -> None:
    if event != _CONNECT or not _ours:
        return
    database = arguments[0]
    if not isinstance(database, str | bytes | os.PathLike):
        return
    name = os.fsdecode(database)
    file = _identity(unquote(urlsplit(name).path) if name.startswith("file:") else name)
    if file is None:
        return
    for db in apsw.connections():
        if db in _ours and _has(db, file):
            why = f"Python's sqlite3 is to open {name}, which is open in this process through ours"
            raise SourceSetupError(why=why, remedy=_REMEDY)


def _has(db: apsw.Connection, file: tuple[int, int]) -> bool:
    """Whether a connection has a file open, as its main database or attached.

    One that another thread is using cannot be asked: it is known by the file that it was opened with, if it is ours; of
    any other it is assumed.
    """
    try:
        return any(_identity(db.db_filename(name)) == file for name in db.db_names())
    except apsw.ThreadingViolationError:
        return _ours.get(db, file) == file
    except apsw.ConnectionClosedError:
        return False


def _identity(path: str) -> tuple[int, int] | None:
    """Return which file a path leads to, without opening it; None for none."""
    if not path:
        return None
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino
