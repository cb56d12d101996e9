"""Which verifications were asked for, and how far capture is with each: files in `verify/` of the log's directory.

Owns the files. A request has two: the one of whoever asks, who removes both when he has the verdict or waits no more,
and the one of capture beside it, so that each has one writer.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tranlog.capture.request_files import read_all, read_json, remove, write_beside, write_first
from tranlog.disk import OS_DISK, Disk
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.log.files.directory import join

VERIFY_DIR: Final = "verify"
_SUFFIX: Final = ".json"
_PROGRESS: Final = ".progress"


class VerifyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A verification that is wanted. `tables`: `schema.table` of each; `filters`: the pipeline's, as text.

    `filters_hash` as the pipeline's channels have it; `buckets` as in `VerifyBegin`.
    """

    verify: str
    pipeline: str
    tables: tuple[str, ...]
    filters: str
    filters_hash: str
    buckets: dict[str, tuple[int, ...]] = {}


class VerifyProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far capture is. `seqno`: where the snapshot stands in the log. `table`: the one that is read, `rows` of it.

    `waits_for`: transactions that the source's snapshot waits for, as text. `done`: all sums are in the log.
    `missing`: tables that are not in the snapshot, and why.
    """

    seqno: Seqno = NO_SEQNO
    table: str = ""
    rows: int = 0
    waits_for: str = ""
    done: bool = False
    missing: tuple[tuple[str, str], ...] = ()


def read_verify_requests(log_dir: str, disk: Disk = OS_DISK) -> list[VerifyRequest]:
    """Return the verifications that are wanted, in the order of their ids. Raises DiskFailedError, naming the file."""
    return read_all(join(log_dir, VERIFY_DIR), _SUFFIX, VerifyRequest, disk)


def read_verify_progress(log_dir: str, verify: str, disk: Disk = OS_DISK) -> VerifyProgress | None:
    """Return how far capture is, None before it has begun. Raises DiskFailedError, naming the file."""
    return read_json(_path(log_dir, verify, _PROGRESS), VerifyProgress, disk)


def write_verify_request(log_dir: str, request: VerifyRequest, disk: Disk = OS_DISK) -> None:
    """Ask for a verification. Raises DiskFailedError."""
    write_first(log_dir, join(log_dir, VERIFY_DIR), _path(log_dir, request.verify, _SUFFIX), request, disk)


def write_verify_progress(log_dir: str, verify: str, progress: VerifyProgress, disk: Disk = OS_DISK) -> None:
    """Tell how far capture is. Raises DiskFailedError."""
    write_beside(_path(log_dir, verify, _PROGRESS), progress, disk)


def remove_verify_request(log_dir: str, verify: str, disk: Disk = OS_DISK) -> None:
    """Want a verification no more. Raises DiskFailedError."""
    remove([_path(log_dir, verify, suffix) for suffix in (_SUFFIX, _PROGRESS)], disk)


def _path(log_dir: str, verify: str, suffix: str) -> str:
    return join(join(log_dir, VERIFY_DIR), f"{verify}{suffix}")
