"""The identity of a log's directory, by which a source knows the one log that may follow it.

The hard idea: a copy must not have it. The history's identity goes with every copy of a log, and so would a number that
lies in the directory; so the file that holds the number says which file it is, on which machine. Where that is not so,
the directory is a copy, or was moved to another disk, and gets a number of its own.
"""

from __future__ import annotations

import os
from typing import Final

import msgspec

from tranlog.disk import Disk, OsDisk
from tranlog.errors import DiskFailedError

HOLDER_NAME: Final = "holder"
_MACHINE_ID: Final = "/etc/machine-id"


class _Holder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str
    inode: int
    machine: str


def holder_of(directory: str, *, disk: Disk | None = None, machine: str | None = None) -> str:
    """Return the identity of a log's directory, made where it has none of its own.

    `machine` names this machine in the place of /etc/machine-id; where that is missing, nothing does, and a copy on
    another machine whose file happens to have the same inode number goes by. Raises DiskFailedError.
    """
    disk = OsDisk() if disk is None else disk
    machine = _machine_id() if machine is None else machine
    name = os.path.join(directory, HOLDER_NAME)
    try:
        found = _own(name, disk, machine)
        if found is not None:
            return found
        fresh = f"{name}.new"
        if disk.exists(fresh):
            disk.unlink(fresh)
        file = disk.open(fresh, write=True, create=True)
        try:
            holder = _Holder(id=os.urandom(16).hex(), inode=file.identity(), machine=machine)
            file.pwrite(msgspec.json.encode(holder), 0)
            file.sync()
        finally:
            file.close()
        disk.rename(fresh, name)
        disk.sync_dir(directory)
    except OSError as exc:
        raise DiskFailedError(path=name, why=exc.strerror or str(exc)) from exc
    return holder.id


def known_holder(directory: str) -> str | None:
    """Return the identity of a log's directory, None where it has none of its own; nothing is made.

    Raises DiskFailedError.
    """
    name = os.path.join(directory, HOLDER_NAME)
    try:
        return _own(name, OsDisk(), _machine_id())
    except OSError as exc:
        raise DiskFailedError(path=name, why=exc.strerror or str(exc)) from exc


def _own(name: str, disk: Disk, machine: str) -> str | None:
    """Return the number in a file, where that is the very file, on the machine, which it says it is."""
    found = _read(name, disk)
    own = found is not None and found[0].inode == found[1] and found[0].machine == machine
    return found[0].id if found is not None and own else None


def _read(name: str, disk: Disk) -> tuple[_Holder, int] | None:
    """Return what the file says and its inode number; None where there is none, or a damaged one."""
    try:
        file = disk.open(name)
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(file.pread(file.size(), 0), type=_Holder), file.identity()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    finally:
        file.close()


def _machine_id() -> str:
    try:
        with open(_MACHINE_ID) as file:
            return file.read().strip()
    except OSError:
        return ""
