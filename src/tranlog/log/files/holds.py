"""What readers and pipelines tell purge and rollback: `holds/`, from where on each of them needs the log.

Owns the file of a hold and its lock; what a purge or a rollback makes of it is theirs. The hard idea: an older hold is
a safer one, so it is written over in place and seldom synced; one that is damaged holds everything.

Source: docs/format.md.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from tranlog.clock import SYSTEM_CLOCK, Clock
from tranlog.disk import OS_DISK, Disk, DiskLock
from tranlog.errors import ConfigError, HoldError
from tranlog.ids import Seqno
from tranlog.log.files.sealed_line import parse_line, sealed_line
from tranlog.log.rules.rollback import FOLLOWERS

HOLDS_DIR: Final = "holds"
HOLD_BYTES: Final = 512
HOLD_NAME_MAX: Final = 200
MAY_HAVE_ALL: Final = Seqno((1 << 63) - 1)
"""`applied_seqno` of a pipeline that runs, or that ended without saying how far it was."""
_GATE_NAME: Final = ".rollback"
"""In holds/: locked while a log is rolled back."""
_GATE_WAIT_S: Final = 30.0
_GATE_LOOK_S: Final = 0.02
_KEPT_S: Final = 1.0
HOLDER_MAX: Final = 360
"""Bytes of a holder's own words as the line has them, escaped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """What one pipeline or follower still needs: everything from `restart_seqno` on, that record included.

    `restart_seqno` is None where the file is damaged: it then holds everything. `written_at` is ms since 1970.
    `holder`: who needs it, in its own words, as `fit_holder` leaves them; empty where it said nothing. `applied_seqno`:
    the greatest that a pipeline may have put where no rollback takes it back; None of whoever only reads.
    """

    name: str
    restart_seqno: Seqno | None
    written_at: int
    holder: str = ""
    applied_seqno: Seqno | None = None

    @property
    def of_pipeline(self) -> bool:
        """Whether a pipeline wrote it, and no reader; False of a damaged one, which tells neither."""
        return self.applied_seqno is not None


@contextlib.contextmanager
def _touching(path: str) -> Iterator[None]:
    """Raise HoldError for what the operating system refuses meanwhile."""
    try:
        yield
    except OSError as exc:
        raise HoldError(path=path, why=exc.strerror or str(exc)) from exc


def _holds_of(path: str) -> str:
    return f"{path.rstrip('/')}/{HOLDS_DIR}"


def _hold_path(path: str, name: object) -> str:
    if (
        not isinstance(name, str)
        or not name
        or name.startswith(".")
        or "/" in name
        or "\0" in name
        or len(name.encode()) > HOLD_NAME_MAX
    ):
        raise ConfigError(
            option="name", value=name, why="a hold's name is a plain file name without a slash or a leading dot"
        )
    return f"{_holds_of(path)}/{name}"


def fit_holder(text: str) -> str:
    """Return what a hold keeps of a holder's words: all, or, where there is no room for them, their end."""
    if len(_quoted(text)) <= HOLDER_MAX:
        return text
    text = text[-HOLDER_MAX:]
    while len(_quoted(f"…{text}")) > HOLDER_MAX:
        text = text[1:]
    return f"…{text}"


def _quoted(text: str) -> str:
    return quote(text, safe="/:@,;+?&()[]", errors="surrogatepass")


def _encode_hold(restart_seqno: Seqno, written_at: int, holder: str, applied: Seqno | None) -> bytes:
    line = f"restart_seqno={restart_seqno} written_at={written_at}"
    if applied is not None:
        line = f"{line} applied_seqno={applied}"
    if holder:
        line = f"{line} holder={_quoted(fit_holder(holder))}"
    return sealed_line(line, HOLD_BYTES)


def _decode_hold(name: str, raw: bytes) -> Hold:
    damaged = Hold(name=name, restart_seqno=None, written_at=0)
    fields = parse_line(raw)
    if fields is None:
        return damaged
    try:
        return Hold(
            name=name,
            restart_seqno=Seqno(int(fields["restart_seqno"])),
            written_at=int(fields["written_at"]),
            holder=unquote(fields.get("holder", ""), errors="surrogatepass"),
            applied_seqno=Seqno(int(fields["applied_seqno"])) if "applied_seqno" in fields else None,
        )
    except (ValueError, KeyError):
        return damaged


def hold(
    path: str,
    name: str,
    restart_seqno: Seqno,
    *,
    holder: str = "",
    applied: Seqno | None = None,
    sync: bool = False,
    follower: bool = False,
    disk: Disk = OS_DISK,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Write that `name` restarts at `restart_seqno`: nothing from there on may be purged from the log at `path`.

    `holder` says in words who that is, `applied` how far a pipeline may have applied. Units: a line of text of fixed
    size, overwritten in place; it is synced when it is created, later only where `sync` asks for it, since an older
    hold is a safer one. A `follower` copies the log, and its name begins with `node.` or `restore.`; nobody else's
    does. Raises HoldError where it cannot be written, ConfigError for an impossible name, and for that of a pipeline
    where a reader writes, or the other way round.
    """
    file_path = _hold_path(path, name)
    if name.startswith(FOLLOWERS) is not follower:
        raise ConfigError(
            option="name", value=name, why=f"{' and '.join(FOLLOWERS)} begin the names of followers alone"
        )
    raw = _encode_hold(restart_seqno, clock.now_ms(), holder, applied)
    found = None if follower else _read_hold(file_path, name, disk)
    why = None if found is None else _taken(found, by_pipeline=applied is not None)
    if why is not None:
        raise ConfigError(option="hold", value=name, why=why)
    with _touching(file_path):
        fresh = not disk.exists(file_path)
        if fresh:
            disk.make_dir(_holds_of(path))
            disk.sync_dir(path)
        with contextlib.closing(disk.open(file_path, write=True, create=True)) as file:
            file.pwrite(raw, 0)
            if fresh or sync:
                file.sync()
            if fresh:
                disk.sync_dir(_holds_of(path))


def _taken(found: Hold, *, by_pipeline: bool) -> str | None:
    """Return why whoever writes now may not replace a hold; None where it may, as where it cannot be read. Pure."""
    if found.restart_seqno is None or by_pipeline is found.of_pipeline:
        return None
    if by_pipeline:
        return (
            f"a reader ({found.holder or 'unnamed'}) keeps the log under this name, the pipeline's own; have it choose "
            f"another, or drop what it keeps: tranlog hold drop {found.name}"
        )
    return (
        f"the pipeline of this name keeps the log under it, for {found.holder or 'its target'}; choose another name "
        "for the reader's hold"
    )


def read_hold(path: str, name: str, *, disk: Disk = OS_DISK) -> Hold | None:
    """Return one hold on the log at `path`, None where there is none. Raises HoldError, ConfigError as `hold`."""
    return _read_hold(_hold_path(path, name), name, disk)


def _read_hold(file_path: str, name: str, disk: Disk) -> Hold | None:
    with _touching(file_path), contextlib.suppress(FileNotFoundError):
        with contextlib.closing(disk.open(file_path)) as file:
            return _decode_hold(name, file.pread(HOLD_BYTES, 0))
    return None


def read_holds(path: str, *, disk: Disk = OS_DISK) -> list[Hold]:
    """Return the holds on the log at `path`, by name. Raises HoldError where they cannot be read."""
    names: list[str] = []
    with _touching(_holds_of(path)), contextlib.suppress(FileNotFoundError):
        names = [name for name in disk.list_dir(_holds_of(path)) if not name.startswith(".")]
    found = [_read_hold(f"{_holds_of(path)}/{name}", name, disk) for name in names]
    return [one for one in found if one is not None]


def drop_hold(path: str, name: str, *, disk: Disk = OS_DISK) -> None:
    """Give up a hold; one that is not there is harmless. Raises HoldError."""
    file_path = _hold_path(path, name)
    with _touching(file_path), contextlib.suppress(FileNotFoundError):
        disk.unlink(file_path)


class KeptHold:
    """A hold that a reader keeps where it stands, written at most once a second. Threads: one at a time.

    It stays when the reader ends, for one that goes on there; `drop_hold` gives it up.
    """

    def __init__(self, path: str, name: str, *, disk: Disk, clock: Clock) -> None:
        self._path = path
        self._name = name
        self._disk = disk
        self._clock = clock
        self._held: Seqno | None = None
        self._next = 0.0

    def at(self, seqno: Seqno, *, now: bool = False) -> None:
        """Write that everything before `seqno` is done with; with `now` at once. Raises HoldError, ConfigError."""
        if seqno == self._held or (not now and self._clock.monotonic() < self._next):
            return
        words = f"pid {os.getpid()}"
        hold(self._path, self._name, seqno, holder=words, disk=self._disk, clock=self._clock)
        self._held = seqno
        self._next = self._clock.monotonic() + _KEPT_S


# --- holds and rollbacks ---------------------------------------------------------------------------------


def lock_hold(path: str, name: str, *, disk: Disk = OS_DISK) -> DiskLock | None:
    """Lock a hold's file, which there is, as whoever runs it does; None where somebody else has. Raises HoldError."""
    file_path = _hold_path(path, name)
    return _lock(file_path, disk)


def is_running(path: str, name: str, *, disk: Disk = OS_DISK) -> bool:
    """Whether somebody keeps the lock on a hold's file: its pipeline runs. Takes no lock. Raises HoldError."""
    file_path = _hold_path(path, name)
    with _touching(file_path), contextlib.suppress(FileNotFoundError):  # given up meanwhile
        return disk.is_locked(file_path)
    return False


@contextlib.contextmanager
def shut_out(path: str, *, disk: Disk) -> Iterator[None]:
    """Make pipelines that begin wait while the log is rolled back. Raises HoldError."""
    gate = _lock_gate(path, disk)
    if gate is None:
        raise HoldError(path=_holds_of(path), why="another rollback of the log is under way")
    try:
        yield
    finally:
        gate.release()


def _lock_gate(path: str, disk: Disk) -> DiskLock | None:
    with _touching(_holds_of(path)):
        disk.make_dir(_holds_of(path))
    return _lock(f"{_holds_of(path)}/{_GATE_NAME}", disk)


def await_rollback(path: str, *, disk: Disk, clock: Clock) -> None:
    """Return when no rollback is under way that may have overlooked a hold written just now. Raises HoldError."""
    deadline = clock.monotonic() + _GATE_WAIT_S
    while (lock := _lock_gate(path, disk)) is None:
        if clock.monotonic() >= deadline:
            raise HoldError(path=_holds_of(path), why="a rollback of the log is under way")
        clock.sleep(_GATE_LOOK_S)
    lock.release()


def _lock(path: str, disk: Disk) -> DiskLock | None:
    with _touching(path), contextlib.suppress(BlockingIOError):
        return disk.lock(path)
    return None
