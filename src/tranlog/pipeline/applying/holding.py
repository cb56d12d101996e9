"""A pipeline's hold on its log: it stops retention, and records the pipeline's progress outside its target.

Owns reading and writing that one file of the log's folder. The hard idea: positions are stored only in the target, so a
target that lost them looks like a new one. The hold is a second record: it is written before the first task starts, and
names the target and how far that was; `progress.plan_start` compares it with the target. It is renewed about once a
second, so a target may be ahead of it, but never behind it.

Source: docs/format.md, "holds/NAME".
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from tranlog.clock import Clock
from tranlog.disk import Disk, DiskLock
from tranlog.errors import HoldError
from tranlog.ids import Seqno
from tranlog.log.files.holds import MAY_HAVE_ALL, Hold, await_rollback, fit_holder, hold, lock_hold, read_hold
from tranlog.log.reading.readable import ReadableLog
from tranlog.pipeline.rules.progress import Known
from tranlog.target.options import TargetOptions
from tranlog.target.target import Target

logger = logging.getLogger(__name__)

_KEEPS_NO_ROWS: Final = "null "
"""How the words for a target begin that nothing can come to twice."""
_NOTHING: Final = "nothing applied at "
"""What stands before them where no task is left that could have, and no position has moved."""


def target_words(options: TargetOptions, target: Target) -> str:
    """Return the text by which a hold names a target: its URL, or its kind and the file's full path."""
    if options.in_file:
        return fit_holder(f"{options.kind} {options.absolute().path}")
    return fit_holder(target.where)


def keeps_no_rows(words: str) -> bool:
    """Whether these words name a target that nothing can come to twice."""
    return words.startswith(_KEEPS_NO_ROWS)


def known_of(found: Hold | None, words: str) -> Known | None:
    """Return what a hold records of a pipeline for the target of this name; None: nothing, as of a reader's hold."""
    if found is None or (found.restart_seqno is not None and not found.of_pipeline):
        return None
    if keeps_no_rows(words) or found.holder.startswith((_KEEPS_NO_ROWS, _NOTHING)):
        return None
    there = "" if found.holder == words else found.holder
    return Known(upto=found.restart_seqno, begun=bool(found.holder), target=there)


class Holding:
    """One pipeline's hold, for one run. Threads: one. `note` is called once if retention will not wait."""

    def __init__(
        self, reader: ReadableLog, pipeline: str, *, disk: Disk, clock: Clock, note: Callable[[str], None]
    ) -> None:
        self._reader = reader
        self._log_dir = reader.path
        self._pipeline = pipeline
        self._disk = disk
        self._clock = clock
        self._note = note
        self._written: tuple[Seqno, str, Seqno] | None = None
        self._lock: DiskLock | None = None
        self._failed = False

    def known(self, words: str) -> Known | None:
        """Read what the log records of the pipeline; see `known_of`. A hold that cannot be read counts as missing."""
        if not self._reader.keeps_holds:
            return None
        try:
            return known_of(read_hold(self._log_dir, self._pipeline, disk=self._disk), words)
        except HoldError as exc:
            logger.warning("cannot read how far the pipeline was pipeline=%s why=%s", self._pipeline, exc)
            return None

    def begin(self, restart: Seqno, words: str) -> None:
        """Record, before any task can apply anything, for which target this pipeline needs the log from here on.

        From now on the log is not rolled back, until `renew` records the pipeline's progress. Raises HoldError if a
        running rollback does not end.
        """
        self._write(restart, words, MAY_HAVE_ALL, sync=True)
        if self._reader.keeps_holds and not self._failed:
            await_rollback(self._log_dir, disk=self._disk, clock=self._clock)

    def renew(self, restart: Seqno, words: str, *, begun: bool, applied: Seqno | None) -> None:
        """Record how far the target is; not `begun`: nothing was applied there, and no task is left that could.

        `applied`: the greatest seqno that any channel has applied, if no task is left; None while there may be one.
        """
        told = MAY_HAVE_ALL if applied is None else applied
        self._write(restart, words if begun else fit_holder(_NOTHING + words), told, sync=False)

    def close(self) -> None:
        """Record that this run has ended; closing twice is harmless."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _write(self, restart: Seqno, words: str, applied: Seqno, *, sync: bool) -> None:
        """Write it where it says something new. A log that cannot be written to is no reason to stop."""
        if self._written == (restart, words, applied) and self._lock is not None:
            return
        if not self._reader.keeps_holds:
            self._written = restart, words, applied
            self._fail("a Java replicator purges what it likes")
            return
        try:
            hold(
                self._log_dir,
                self._pipeline,
                restart,
                holder=words,
                applied=applied,
                sync=sync,
                disk=self._disk,
                clock=self._clock,
            )
            if self._lock is None:  # or an earlier driver has it still
                self._lock = lock_hold(self._log_dir, self._pipeline, disk=self._disk)
            self._written = restart, words, applied
            self._failed = False
        except HoldError as exc:
            self._fail(str(exc))

    def _fail(self, why: str) -> None:
        if not self._failed:
            self._failed = True
            self._note(f"retention will not wait for this pipeline: {why}")
