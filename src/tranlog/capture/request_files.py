"""Files in a folder of the log's directory by which an operator and capture tell each other something, as JSON.

Owns how they are read, written and removed, and which file an error names. What stands in them is `load_requests`' and
`verify_requests`'.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec

from tranlog.disk import Disk
from tranlog.errors import DiskFailedError
from tranlog.log.files.commit_point import check_no_member
from tranlog.log.files.directory import join, replace_file

FormT = TypeVar("FormT", bound=msgspec.Struct)
_BYTES_MAX: Final = 64 << 20


def read_json(path: str, form: type[FormT], disk: Disk) -> FormT | None:
    """Return what a file says, None where it is not there. Raises DiskFailedError, naming the file."""
    try:
        with contextlib.closing(disk.open(path)) as file:
            return msgspec.json.decode(file.pread(_BYTES_MAX, 0), type=form)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as exc:
        raise DiskFailedError(path=path, why=f"the request cannot be read: {exc}") from exc


def read_all(folder: str, suffix: str, form: type[FormT], disk: Disk) -> list[FormT]:
    """Return what the files of a suffix say, in the order of their names. Raises DiskFailedError, naming the file."""
    names = sorted(disk.list_dir(folder)) if disk.exists(folder) else []
    found = [read_json(join(folder, name), form, disk) for name in names if name.endswith(suffix)]
    return [one for one in found if one is not None]


def write_first(log_dir: str, folder: str, path: str, said: msgspec.Struct, disk: Disk) -> None:
    """Write a file, durable, and make its folder where that is missing.

    Raises DiskFailedError, naming the folder; MemberLogError where the log is a node's, and no capture will look.
    """
    check_no_member(log_dir, disk)
    try:
        if not disk.exists(folder):
            disk.make_dir(folder)
            disk.sync_dir(log_dir)
        replace_file(path, msgspec.json.encode(said), disk)
    except OSError as exc:
        raise DiskFailedError(path=folder, why=exc.strerror or str(exc)) from exc


def write_beside(path: str, said: msgspec.Struct, disk: Disk) -> None:
    """Write a file, durable, in a folder that is there. Raises DiskFailedError, naming the file."""
    try:
        replace_file(path, msgspec.json.encode(said), disk)
    except OSError as exc:
        raise DiskFailedError(path=path, why=exc.strerror or str(exc)) from exc


def remove(paths: Iterable[str], disk: Disk) -> None:
    """Remove files; one that is not there is no matter. Raises DiskFailedError, naming the file."""
    for path in paths:
        try:
            with contextlib.suppress(FileNotFoundError):
                disk.unlink(path)
        except OSError as exc:
            raise DiskFailedError(path=path, why=exc.strerror or str(exc)) from exc
