"""Progress of a large transaction that is being applied: a line in the log's folder.

Owns that file, its writing and its reading. The hard idea: a channel reports with its position, so it cannot report in
the target while one transaction runs for minutes. So it reports here, overwriting the line at most once a second. The
line is only informative; errors in writing it are ignored.

Source: docs/format.md, "in_flight/NAME.CHANNEL".
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from typing import Final

from tranlog.clock import Clock
from tranlog.disk import Disk, DiskFile
from tranlog.ids import Seqno
from tranlog.log.files.sealed_line import parse_line, sealed_line
from tranlog.pipeline.rules.progress import InFlight
from tranlog.target.target import ChannelRow

logger = logging.getLogger(__name__)

IN_FLIGHT_DIR: Final = "in_flight"
IN_FLIGHT_BYTES: Final = 256
_TELL_EVERY_S = 1.0


def _path(log_dir: str, pipeline: str, channel: int) -> str:
    return f"{log_dir.rstrip('/')}/{IN_FLIGHT_DIR}/{pipeline}.{channel}"


class Telling:
    """One channel's report of the large transaction that it applies. Raises nothing. Threads: one."""

    def __init__(self, log_dir: str, pipeline: str, channel: int, *, disk: Disk, clock: Clock) -> None:
        self._path = _path(log_dir, pipeline, channel)
        self._disk = disk
        self._clock = clock
        self._file: DiskFile | None = None
        self._token = 0
        self._told: InFlight | None = None
        self._next = 0.0

    def begin(self, seqno: Seqno, token: int, size_bytes: int | None) -> None:
        """Report the beginning, in an attempt with this token; do nothing if the size is not known."""
        now_ms = self._clock.now_ms()
        self._token = token
        self._told = None
        if size_bytes is not None:
            self._told = InFlight(seqno=seqno, size_bytes=size_bytes, began_at=now_ms, written_at=now_ms)
            self.at(0, 0, now=True)

    def at(self, changes: int, read_bytes: int | None, *, now: bool = False) -> None:
        """Report the progress, if a report is due, or `now`. `read_bytes` None: everything is read."""
        told, clock = self._told, self._clock
        if told is None or not (now or clock.monotonic() >= self._next):
            return
        self._next = clock.monotonic() + _TELL_EVERY_S
        read_bytes = told.size_bytes if read_bytes is None else read_bytes
        line = (
            f"seqno={told.seqno} token={self._token} changes={changes} read_bytes={read_bytes} "
            f"size_bytes={told.size_bytes} began_at={told.began_at} written_at={clock.now_ms()}"
        )
        try:
            if self._file is None:
                self._disk.make_dir(self._path.rpartition("/")[0])
                self._file = self._disk.open(self._path, write=True, create=True)
            self._file.pwrite(sealed_line(line, IN_FLIGHT_BYTES), 0)
        except OSError as exc:
            logger.debug("not told how far a large transaction is path=%s why=%s", self._path, exc)
            self._told = None

    def close(self) -> None:
        """Stop reporting; closing twice is harmless."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
                self._disk.unlink(self._path)
            self._file = None


def read_in_flight(log_dir: str, pipeline: str, rows: Iterable[ChannelRow], *, disk: Disk) -> dict[int, InFlight]:
    """Return the large transactions of the channels of these rows, by channel; without those that have ended.

    A line of an earlier attempt than the row's, left by a kill, is ignored.
    """
    found = {}
    for row in rows:
        try:
            file = disk.open(_path(log_dir, pipeline, row.channel))
        except OSError:
            continue
        try:
            told = parse_line(file.pread(IN_FLIGHT_BYTES, 0)) or {}
            numbers = {name: int(text) for name, text in told.items()}
            if numbers.pop("token", None) == row.token and numbers.get("seqno", 0) > row.applied_seqno:
                found[row.channel] = InFlight(**numbers)
        except (OSError, ValueError, TypeError) as exc:
            logger.debug("not read how far a large transaction is channel=%d why=%s", row.channel, exc)
        finally:
            file.close()
    return found
