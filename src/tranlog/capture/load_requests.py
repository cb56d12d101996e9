"""Which loads were asked for and are not at their end: a file each in `loads/` of the log's directory.

Owns the files. The hard idea: what a load has done stands in the log alone. The file says that it is wanted, from which
seqno on to look for it, and, for people, how far it was. What an operator wants of it stands in a file beside it, so
that each file has one writer.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tranlog.capture.request_files import read_all, read_json, remove, write_beside, write_first
from tranlog.disk import OS_DISK, Disk
from tranlog.errors import ConfigError
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.loads import ANY_PIPELINE, LoadProgress
from tranlog.log.files.directory import join

LOADS_DIR: Final = "loads"
_SUFFIX: Final = ".json"
_ORDER: Final = ".order"


class LoadOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator wants of a load. `rows_per_second`: no more than that, 0 for no limit.

    `paused`: no chunk is read; `given_up`: it comes to its end with what was read.
    """

    paused: bool = False
    given_up: bool = False
    rows_per_second: int = 0


class LoadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A load that is wanted. `tables`: `schema.table` of each, () for all; `joined`: and those that the source's
    foreign keys join to them. `references`: foreign keys at the target, (referring, referred) `schema.table`, by which
    what is referred to is loaded first. `since`: no step of it is before this seqno.

    `progress` is how far it was at `since`. `waits_for`: transactions that the source's snapshot waits for, as text.
    `rows_there`: about how many rows the tables have in all, 0 where the source does not know; `rows_per_s`: how fast
    the last chunks came; `seconds_left`: how long the others take at that, None while it is not known. `asked_at`: ms
    since 1970.
    """

    load: str
    pipeline: str = ANY_PIPELINE
    tables: tuple[str, ...] = ()
    joined: bool = False
    references: tuple[tuple[str, str], ...] = ()
    replace: bool = False
    asked_at: int
    since: Seqno = NO_SEQNO
    progress: LoadProgress = LoadProgress()
    waits_for: str = ""
    rows_there: int = 0
    rows_per_s: float = 0.0
    seconds_left: float | None = None
    order: LoadOrder = LoadOrder()


def read_requests(log_dir: str, disk: Disk = OS_DISK) -> list[LoadRequest]:
    """Return the loads that are wanted, in the order of their ids. Raises DiskFailedError, naming the file."""
    found = read_all(join(log_dir, LOADS_DIR), _SUFFIX, LoadRequest, disk)
    return [msgspec.structs.replace(one, order=read_order(log_dir, one.load, disk)) for one in found]


def read_order(log_dir: str, load: str, disk: Disk = OS_DISK) -> LoadOrder:
    """Return what an operator wants of a load. Raises DiskFailedError, naming the file."""
    return read_json(_path(log_dir, load, _ORDER), LoadOrder, disk) or LoadOrder()


def write_request(log_dir: str, request: LoadRequest, disk: Disk = OS_DISK) -> None:
    """Write a request, durable. Raises DiskFailedError."""
    write_first(log_dir, join(log_dir, LOADS_DIR), _path(log_dir, request.load), request, disk)


def remove_request(log_dir: str, load: str, disk: Disk = OS_DISK) -> None:
    """Remove the request of a load that is at its end. Raises DiskFailedError."""
    remove([_path(log_dir, load, suffix) for suffix in (_SUFFIX, _ORDER)], disk)


def give_order(
    log_dir: str,
    load: str | None,
    *,
    paused: bool | None = None,
    given_up: bool = False,
    rows_per_second: int | None = None,
    disk: Disk = OS_DISK,
) -> LoadRequest:
    """Tell capture, running or not, what is wanted of a load; None: of the only one. Return its request.

    What is None stays as it is. Raises ConfigError where there is no such load, or several; DiskFailedError.
    """
    found = {request.load: request for request in read_requests(log_dir, disk)}
    if load is None and len(found) == 1:
        (load,) = found
    if load not in found:
        known = ", ".join(found) or "none is under way"
        raise ConfigError(option="load", value=load, why=f"names one of the loads under way: {known}")
    before = found[load].order
    order = LoadOrder(
        paused=before.paused if paused is None else paused,
        given_up=before.given_up or given_up,
        rows_per_second=before.rows_per_second if rows_per_second is None else rows_per_second,
    )
    write_beside(_path(log_dir, load, _ORDER), order, disk)
    return msgspec.structs.replace(found[load], order=order)


def ask(log_dir: str, request: LoadRequest, disk: Disk = OS_DISK) -> None:
    """Write a new request. Raises ConfigError where a table is being loaded already; DiskFailedError."""
    for other in read_requests(log_dir, disk):
        both = sorted(set(other.tables) & set(request.tables))
        if both or not other.tables or not request.tables:
            names = ", ".join(both) or "all tables"
            why = f"the load {other.load}, of {names}, is not at its end; wait for it, `tranlog status` shows it"
            raise ConfigError(option="tables", value=list(request.tables), why=why)
    write_request(log_dir, request, disk)


def _path(log_dir: str, load: str, suffix: str = _SUFFIX) -> str:
    return join(join(log_dir, LOADS_DIR), f"{load}{suffix}")
