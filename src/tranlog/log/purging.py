"""Removing segments from the front: asking who needs them, and carrying out what retention decides.

Owns the order of the steps on the disk; the decision is `retention`'s, when to ask `log`'s. The hard idea: what was
given up stays given up. A segment that could not be removed goes first the next time, so no error leaves a hole.

Source: design/log-format.md, "holds/NAME"; design/index.md, "Truncation".
"""

from __future__ import annotations

import contextlib
import logging

from tranlog.disk import Disk
from tranlog.errors import PurgeFailedError
from tranlog.ids import Seqno
from tranlog.log.format import segment_name
from tranlog.log.options import LogOptions
from tranlog.log.positions import HOLDS_DIR, read_holds
from tranlog.log.retention import SegmentAge, purge_below, purge_by_age
from tranlog.log.segment import Segments, join

logger = logging.getLogger(__name__)


class Purging:
    """The segments of one log that may go, and those that are on their way. Threads: the log's lock guards it."""

    def __init__(self, path: str, disk: Disk, segments: Segments) -> None:
        self._path = path
        self._disk = disk
        self._segments = segments
        self._begun: dict[int, int | None] = {}
        self._going: list[int] = []  # given up, and not removed for certain; from the front

    def choose(self, newest: SegmentAge, *, below: Seqno | None, now_ms: int, options: LogOptions) -> list[int]:
        """Return the segments to give up: with `below` those of nothing but older seqnos, else by age.

        Raises HoldError, OSError.
        """
        holds = []
        for one in read_holds(self._path, disk=self._disk):
            if one.restart_seqno is None:
                path = join(join(self._path, HOLDS_DIR), one.name)
                logger.warning("A damaged hold keeps every segment: remove or renew it. path=%s", path)
            holds.append(one.restart_seqno)
        if below is None and options.retention_s is None:
            return []
        ages = [
            SegmentAge(number=number, last_seqno=last, ended_at=self._begun_at(number + 1))
            for number, last in self._segments.lasts()
            if last is not None
        ]
        ages.append(newest)
        if below is not None:
            return purge_below(ages, seqno=below, holds=holds)
        assert options.retention_s is not None
        return purge_by_age(ages, now_ms=now_ms, retention_ms=options.retention_s * 1000, holds=holds)

    def remove(self, gone: list[int]) -> list[str]:
        """Remove the segments that readers have forgotten, one by one from the front; return their names.

        Raises PurgeFailedError; what is left goes first the next time.
        """
        self._going += gone
        names: list[str] = []
        while self._going:
            number = self._going[0]
            path = join(self._path, segment_name(number))
            try:
                with contextlib.suppress(FileNotFoundError):
                    self._disk.unlink(path)
                self._disk.sync_dir(self._path)
            except OSError as exc:
                raise PurgeFailedError(path=path, why=exc.strerror or str(exc)) from exc
            del self._going[0]
            self._begun.pop(number, None)
            names.append(segment_name(number))
        if names:
            logger.info("Purged. first=%s last=%s first_seqno=%d", names[0], names[-1], self._segments.first_seqno())
        return names

    def _begun_at(self, number: int) -> int | None:
        """Return the stamp of a segment's first sync record."""
        known = self._begun.get(number)
        if known is None:
            known = self._begun[number] = self._segments.begun_at(number)
        return known
