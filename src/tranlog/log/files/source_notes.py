"""What a source needs to know at its next start, left in the log's directory by capture.

Owns the file `source`, in which the log sees nothing but bytes. The hard idea: it may be older than the log's end, but
is never ahead of it. So it is written after the sync of what it knows of, and a crash in between leaves the older one.
"""

from __future__ import annotations

import logging
from contextlib import closing
from typing import Final

from tranlog.disk import Disk
from tranlog.log.files.directory import join, replace_file, storing
from tranlog.log.files.sealed_line import sealed, unsealed

logger = logging.getLogger(__name__)

SOURCE_NAME: Final = "source"


def write_source_notes(path: str, notes: bytes, disk: Disk) -> None:
    """Replace what the log at `path` keeps for its source, durable. Raises DiskFullError, DiskFailedError."""
    name = join(path, SOURCE_NAME)
    with storing(name):
        replace_file(name, sealed(notes), disk)


def read_source_notes(path: str, disk: Disk) -> bytes | None:
    """Return what was written last; None where nothing was, and with a warning where it is damaged."""
    name = join(path, SOURCE_NAME)
    try:
        with closing(disk.open(name)) as file:
            notes = unsealed(file.pread(file.size(), 0))
    except FileNotFoundError:
        return None
    except OSError as exc:
        logger.warning("What the source knew cannot be read, and is not used. file=%s why=%s", name, exc)
        return None
    if notes is None:
        logger.warning("What the source knew is damaged, and is not used. file=%s", name)
    return notes
