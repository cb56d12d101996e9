"""Which loads were asked for and are not at their end: a file each in `loads/` of the log's directory.

Owns the files. The hard idea: what a load has done stands in the log alone. The file says that it is wanted, from which
seqno on to look for it, and, for people, how far it was.
"""

from __future__ import annotations

import contextlib
from typing import Final

import msgspec

from tranlog.disk import OS_DISK, Disk
from tranlog.errors import ConfigError, DiskFailedError
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.loads import ANY_PIPELINE, LoadProgress
from tranlog.log.files.directory import join, replace_file

LOADS_DIR: Final = "loads"
_SUFFIX: Final = ".json"
_BYTES_MAX: Final = 64 << 20


class LoadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A load that is wanted. `tables`: `schema.table` of each, () for all; `since`: no step of it is before this seqno.

    `progress` is how far it was at `since`. `waits_for`: transactions that the source's snapshot waits for, as text.
    `asked_at`: ms since 1970.
    """

    load: str
    pipeline: str = ANY_PIPELINE
    tables: tuple[str, ...] = ()
    replace: bool = False
    asked_at: int
    since: Seqno = NO_SEQNO
    progress: LoadProgress = LoadProgress()
    waits_for: str = ""


def read_requests(log_dir: str, disk: Disk = OS_DISK) -> list[LoadRequest]:
    """Return the loads that are wanted, in the order of their ids. Raises DiskFailedError, naming the file."""
    folder = join(log_dir, LOADS_DIR)
    found = []
    for name in sorted(disk.list_dir(folder)) if disk.exists(folder) else ():
        path = join(folder, name)
        if not name.endswith(_SUFFIX):
            continue
        try:
            with contextlib.closing(disk.open(path)) as file:
                found.append(msgspec.json.decode(file.pread(_BYTES_MAX, 0), type=LoadRequest))
        except FileNotFoundError:
            continue
        except (OSError, msgspec.DecodeError) as exc:
            raise DiskFailedError(path=path, why=f"the request of a load cannot be read: {exc}") from exc
    return found


def write_request(log_dir: str, request: LoadRequest, disk: Disk = OS_DISK) -> None:
    """Write a request, durable. Raises DiskFailedError."""
    folder = join(log_dir, LOADS_DIR)
    try:
        if not disk.exists(folder):
            disk.make_dir(folder)
            disk.sync_dir(log_dir)
        replace_file(_path(log_dir, request.load), msgspec.json.encode(request), disk)
    except OSError as exc:
        raise DiskFailedError(path=folder, why=exc.strerror or str(exc)) from exc


def remove_request(log_dir: str, load: str, disk: Disk = OS_DISK) -> None:
    """Remove the request of a load that is at its end. Raises DiskFailedError."""
    path = _path(log_dir, load)
    try:
        disk.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as exc:
        raise DiskFailedError(path=path, why=exc.strerror or str(exc)) from exc


def ask(log_dir: str, request: LoadRequest, disk: Disk = OS_DISK) -> None:
    """Write a new request. Raises ConfigError where a table is being loaded already; DiskFailedError."""
    for other in read_requests(log_dir, disk):
        both = sorted(set(other.tables) & set(request.tables))
        if both or not other.tables or not request.tables:
            names = ", ".join(both) or "all tables"
            why = f"the load {other.load}, of {names}, is not at its end; wait for it, `tranlog status` shows it"
            raise ConfigError(option="tables", value=list(request.tables), why=why)
    write_request(log_dir, request, disk)


def _path(log_dir: str, load: str) -> str:
    return join(join(log_dir, LOADS_DIR), f"{load}{_SUFFIX}")
