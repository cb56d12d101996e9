"""What a member keeps beside its segments: its group's commit point, `group/commit`, and what it lost, `group/missing`.

Owns the files' form, and by what a member's directory is known. How far the group has committed is told, never
concluded: what is synced here may be abandoned yet. The hard idea: an older commit point is a safer one, so the file
is written over itself, and never synced once it is there.

Source: docs/format.md.
"""

from __future__ import annotations

from contextlib import closing, suppress
from typing import Final

from tranlog.disk import Disk
from tranlog.errors import MemberLogError
from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.log.files.directory import join, replace_file
from tranlog.log.files.sealed_line import parse_line, sealed_line

GROUP_DIR: Final = "group"
"""A directory with this folder is the log of a member of a group."""
COMMIT_NAME: Final = f"{GROUP_DIR}/commit"
MISSING_NAME: Final = f"{GROUP_DIR}/missing"
COMMIT_BYTES: Final = 128
WHOSE_NAME: Final = f"{GROUP_DIR}/whose"
"""Whose log it is, for messages."""
WHOSE_BYTES: Final = 1024


def is_member(path: str, disk: Disk) -> bool:
    """Whether the log at `path` is that of a member of a group."""
    return disk.exists(join(path, GROUP_DIR))


def become_member(path: str, disk: Disk) -> None:
    """Make the log at `path` that of a member, durably. Raises OSError."""
    if not is_member(path, disk):
        disk.make_dir(join(path, GROUP_DIR))
        disk.sync_dir(path)


def write_whose(path: str, whose: str, disk: Disk) -> None:
    """Say whose log it is at `path`, which is a member's. Raises OSError."""
    replace_file(join(path, WHOSE_NAME), whose.encode()[:WHOSE_BYTES], disk)


def check_no_member(path: str, disk: Disk) -> None:
    """Refuse a log that a node of a group alone may write. Raises MemberLogError."""
    if not is_member(path, disk):
        return
    whose = "a node of a group"
    with suppress(OSError), closing(disk.open(join(path, WHOSE_NAME))) as file:
        whose = file.pread(WHOSE_BYTES, 0).decode(errors="replace")
    raise MemberLogError(path=path, whose=whose)


def write_commit_point(path: str, gtid: Gtid, disk: Disk) -> None:
    """Keep the commit point of the log at `path`. Raises OSError."""
    with closing(disk.open(join(path, COMMIT_NAME), write=True, create=True)) as file:
        file.pwrite(sealed_line(f"epoch={gtid.epoch} seqno={gtid.seqno}", COMMIT_BYTES), 0)


def read_commit_point(path: str, disk: Disk) -> Gtid | None:
    """Return the commit point that the log at `path` keeps; None where there is none, or it cannot be read."""
    try:
        with closing(disk.open(join(path, COMMIT_NAME))) as file:
            fields = parse_line(file.pread(COMMIT_BYTES, 0))
        return None if fields is None else Gtid(Epoch(int(fields["epoch"])), Seqno(int(fields["seqno"])))
    except (OSError, KeyError, ValueError):
        return None


def write_missing(path: str, seqno: Seqno, disk: Disk) -> None:
    """Keep, durably, that the log at `path` held transactions up to `seqno` and does not now. Raises OSError."""
    known = read_missing(path, disk)
    with closing(disk.open(join(path, MISSING_NAME), write=True, create=True)) as file:
        file.pwrite(sealed_line(f"seqno={seqno if known is None else max(known, seqno)}", COMMIT_BYTES), 0)
        file.sync()
    disk.sync_dir(join(path, GROUP_DIR))


def read_missing(path: str, disk: Disk) -> Seqno | None:
    """Return up to where the log at `path` went before it lost something; None where nothing is kept of that.

    Raises OSError; a file that cannot be read says 0.
    """
    if not disk.exists(join(path, MISSING_NAME)):
        return None
    with closing(disk.open(join(path, MISSING_NAME))) as file:
        fields = parse_line(file.pread(COMMIT_BYTES, 0)) or {}
    return Seqno(int(fields.get("seqno", "0")))


def forget_missing(path: str, disk: Disk) -> None:
    """Forget it, durably; where nothing is kept this is harmless. Raises OSError."""
    if disk.exists(join(path, MISSING_NAME)):
        disk.unlink(join(path, MISSING_NAME))
        disk.sync_dir(join(path, GROUP_DIR))
