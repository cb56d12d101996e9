"""Who follows a captured SQLite database, up to which row its log is durable, and which rows may go for that.

Owns the claim in `_tranlog_source`, the progress file beside the database, and freeing the outbox. A writer's commit
and capture free by the same rule, in `free`. The hard idea: whoever commits while another transaction stands between
its first read and its first write makes that one fail with SQLITE_BUSY_SNAPSHOT. So capture does not write into a
database whose writers are ours: it says in a file what is durable, and each writer frees in a transaction of its own.
A file can be old, copied or damaged, so it is believed only where the database agrees: the claim names the file's
history, and the row of the file stands in the outbox with the file's token.

Source: docs/decisions/0022.
"""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import apsw

from tranlog.source.sqlite.raw import OUTBOX_TABLE
from tranlog.source.sqlite.schema import SOURCE_TABLE

PROGRESS_SUFFIX: Final = "-tranlog"
"""The progress file's name is the database's with this after it."""
FREE_ROWS: Final = 100
FREE_BYTES: Final = 1 << 20
"""One transaction frees so many rows at most, and no more of them once they hold so many bytes."""

_PROGRESS_MOST: Final = 200
_PROGRESS: Final = re.compile(rb"tranlog 1 ([0-9a-f-]{36}) ([0-9a-f]{32}) ([0-9]{1,19}) ([0-9a-f]{16}) ")
_CANDIDATES: Final = f"""
SELECT id, length(changes) FROM main.{OUTBOX_TABLE} WHERE id < ?1
AND EXISTS (SELECT 1 FROM main.{SOURCE_TABLE} WHERE uuid = ?3 AND history = ?4)
AND EXISTS (SELECT 1 FROM main.{OUTBOX_TABLE} WHERE id = ?2 AND token = ?5)
ORDER BY id LIMIT {FREE_ROWS}"""
_FREE: Final = f"DELETE FROM main.{OUTBOX_TABLE} WHERE id <= ?"


class SourceClaim(NamedTuple):
    """The one log that a source is for: the identity of its history, and of the directory that goes on with it."""

    history: bytes
    holder: str

    def __str__(self) -> str:
        return f"history {self.history.hex()}, holder {self.holder}"


class OutboxPlace(NamedTuple):
    """A row of the outbox: its id, and the random token that tells it from another one with that id."""

    id: int
    token: int

    @property
    def text(self) -> str:
        """What of it stands in an event id."""
        return f"{self.id}:{self.token & _TOKEN_MASK:016x}"


_TOKEN_MASK: Final = (1 << 64) - 1
_EVENT_ID: Final = re.compile(r"(.+):([0-9]{1,19}):([0-9a-f]{16})")


def place_of(event_id: str) -> tuple[str, OutboxPlace] | None:
    """Return the uuid and the row that an event id names; None for what is no event id of a SQLite source."""
    found = _EVENT_ID.fullmatch(event_id)
    return None if found is None else (found[1], OutboxPlace(int(found[2]), _signed(found[3])))


def _signed(token: str) -> int:
    """Return a token as SQLite stores it."""
    number = int(token, 16)
    return number - (1 << 64) if number >> 63 else number


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableUpTo:
    """What the progress file says: the last row of the database `uuid` that the log of `history` holds durably."""

    uuid: str
    history: bytes
    place: OutboxPlace


def read_progress(path: str) -> DurableUpTo | None:
    """Return what stands beside the database at `path`; None where nothing readable does."""
    try:
        fd = os.open(path + PROGRESS_SUFFIX, os.O_RDONLY | os.O_CLOEXEC)
        try:
            raw = os.read(fd, _PROGRESS_MOST)
        finally:
            os.close(fd)
    except OSError:
        return None
    found = _PROGRESS.match(raw)
    if found is None or raw[found.end() :] != _check_of(found[0]):
        return None
    place = OutboxPlace(int(found[3]), _signed(found[4].decode()))
    return DurableUpTo(uuid=found[1].decode(), history=bytes.fromhex(found[2].decode()), place=place)


def write_progress(path: str, progress: DurableUpTo) -> None:
    """Write the progress file, durable and in one step. Raises OSError."""
    number, token = progress.place.text.split(":")
    body = f"tranlog 1 {progress.uuid} {progress.history.hex()} {number} {token} ".encode()
    name = path + PROGRESS_SUFFIX
    fresh = f"{name}.new"
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, body + _check_of(body))
        os.fdatasync(fd)
    finally:
        os.close(fd)
    os.rename(fresh, name)
    directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _check_of(body: bytes) -> bytes:
    return b"%08x\n" % zlib.crc32(body)


def free(db: apsw.Connection, progress: DurableUpTo, *, below: int) -> tuple[int, bool]:
    """Delete rows of the outbox below an id, in the transaction that is open for writing.

    Shape: the oldest first, so what is left has no gap. Of rows that are larger than `FREE_BYTES` one goes at a time.
    Return how many went, and whether there may be more.
    """
    place = progress.place
    listed: list[Any] = db.execute(
        _CANDIDATES, (below, place.id, progress.uuid, progress.history, place.token)
    ).fetchall()
    count = size = 0
    while count < len(listed) and size < FREE_BYTES:
        size += listed[count][1]
        count += 1
    if count:
        db.execute(_FREE, (listed[count - 1][0],))
    return count, count == FREE_ROWS or size >= FREE_BYTES


def sync_wal(path: str) -> None:
    """Make durable what was committed into the WAL without a sync. Raises OSError.

    Closing it here lets go of no lock: SQLite keeps those of the WAL in the file `-shm`.
    """
    with contextlib.suppress(FileNotFoundError):  # then all of it is in the database, which was synced before
        fd = os.open(path + "-wal", os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
