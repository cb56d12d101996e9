"""Removing segments from the front: asking who needs them, and carrying out what retention decides.

Owns the order of the steps on the disk; the decision is `retention`'s, when to ask `log`'s. The hard idea: what was
given up stays given up. A segment that could not be removed goes first the next time, so no error leaves a hole.

Source: docs/format.md.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence

from tranlog.disk import Disk
from tranlog.errors import PurgeFailedError
from tranlog.ids import Seqno, segment_name
from tranlog.log.files.directory import join
from tranlog.log.files.holds import HOLDS_DIR, read_holds
from tranlog.log.files.purge_notes import PurgeNote, write_note
from tranlog.log.files.segments import Segments
from tranlog.log.options import LogOptions
from tranlog.log.rules.retention import Held, LargerThan, Limit, OlderThan, PurgePlan, Retained, purge_plan

logger = logging.getLogger(__name__)


def limits_of(options: LogOptions) -> list[Limit]:
    """Return the limits that a log's options set."""
    limits: list[Limit] = []
    for seconds, size, hard in (
        (options.retention_s, options.retention_bytes, False),
        (options.hard_retention_s, options.hard_retention_bytes, True),
    ):
        if seconds is not None:
            limits.append(OlderThan(ms=round(seconds * 1000), hard=hard))
        if size is not None:
            limits.append(LargerThan(bytes=size, hard=hard))
    return limits


class Purging:
    """The segments of one log that may go, and those that are on their way. Threads: the log's lock guards it."""

    def __init__(self, path: str, disk: Disk, segments: Segments) -> None:
        self._path = path
        self._disk = disk
        self._segments = segments
        self._known: dict[int, tuple[int, int]] = {}  # when a closed segment was begun, and its size
        self._going: list[int] = []  # given up, and not removed for certain; from the front

    def choose(self, newest: Retained, *, durable: Seqno, limits: Sequence[Limit], now_ms: int) -> PurgePlan:
        """Decide what to give up by these limits; holds are read again. Raises HoldError, OSError."""
        if not limits:
            return PurgePlan()
        holds = []
        for one in read_holds(self._path, disk=self._disk):
            if one.restart_seqno is None:
                path = join(join(self._path, HOLDS_DIR), one.name)
                logger.warning("A damaged hold keeps every segment: remove or renew it. path=%s", path)
            holds.append(Held(name=one.name, restart_seqno=one.restart_seqno))
        row = [self._retained(number, last) for number, last in self._segments.lasts() if last is not None]
        row.append(newest)
        return purge_plan(row, limits=limits, holds=holds, durable=durable, now_ms=now_ms)

    def note(self, plan: PurgePlan, *, now_ms: int) -> None:
        """Write down a plan that gives something up, before it is carried out.

        A disk that refuses it does not stop the purge, which may be what makes room; the loss is said here then.
        """
        assert plan.up_to is not None
        try:
            write_note(
                self._path,
                PurgeNote(up_to=plan.up_to, limit=str(plan.limit), at=now_ms, passed=plan.passed),
                self._disk,
            )
        except OSError as exc:
            logger.warning(
                "The reason for a purge could not be recorded. path=%s limit=%s up_to=%d passed=%s why=%s",
                self._path,
                plan.limit,
                plan.up_to,
                ", ".join(plan.passed),
                exc,
            )
        if plan.passed:
            logger.warning(
                "Purged what was still needed. path=%s limit=%s up_to=%d passed=%s",
                self._path,
                plan.limit,
                plan.up_to,
                ", ".join(plan.passed),
            )

    def remove(self, gone: Sequence[int]) -> list[str]:
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
            self._known.pop(number, None)
            names.append(segment_name(number))
        if names:
            logger.info("Purged. first=%s last=%s first_seqno=%d", names[0], names[-1], self._segments.first_seqno())
        return names

    def _retained(self, number: int, last_seqno: Seqno) -> Retained:
        """Describe a closed segment: what it says of itself does not change any more."""
        known = self._known.get(number)
        begun_at: int | None
        if known is not None:
            begun_at, size = known
        else:
            try:
                begun_at, size = self._segments.files.begun_and_size(number)
            except FileNotFoundError:  # a hand was quicker; the stamps after it say when it ended
                begun_at, size = None, 0
            if begun_at is not None:
                self._known[number] = begun_at, size
        return Retained(number=number, last_seqno=last_seqno, begun_at=begun_at, bytes=size)
