"""When a segment ends and which segments go, carried out.

Owns the order of these steps; whether one is due, and what may go, is `retention`'s decision. The hard idea: every step
that ends or begins a segment is durable before the next one begins, so a crash finds either none of it or all of it.

Source: docs/format.md.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tranlog.errors import LogError
from tranlog.log.records.format import encode_header
from tranlog.log.rules.retention import Limit, PurgePlan, Retained, rotation_due, segment_span_ms
from tranlog.log.writing.log_end import LogEnd
from tranlog.log.writing.purging import Purging, limits_of

logger = logging.getLogger(__name__)


class Rotation:
    """The row of segments of a log that is written. Each method is part of a step."""

    def __init__(self, end: LogEnd) -> None:
        self._end = end
        self._span_ms = segment_span_ms(end.options.retention_s)
        self._purging = Purging(end.path, end.disk, end.segments)

    def is_due(self) -> bool:
        """Whether the newest segment holds something and is old enough to be closed."""
        end = self._end
        now_ms, begun_at = end.clock.now_ms(), end.journal.begun_at
        if begun_at is not None and 0 <= now_ms - begun_at < self._span_ms:
            return False  # each append after a sync asks
        due = rotation_due(begun_at=begun_at, now_ms=now_ms, retention_s=end.options.retention_s)
        return due and self.newest_holds()

    def newest_holds(self) -> bool:
        """Whether a transaction lives in the newest segment."""
        end = self._end
        after = end.segments.prev_seqno(end.journal.number)
        return after is not None and end.pending.last > after

    def rotate(self) -> None:
        """Close the newest segment, durable, and start the next one."""
        end = self._end
        end.flush()
        end.publish()
        self.begin_segment()
        end.segments.adopt(end.journal.number, end.publishing.visible)
        end.tell()
        end.store_index()
        end.spilling.store_table(end.journal.number)
        self.retain()

    def begin_segment(self, first_records: bytes = b"", begun_at: int | None = None) -> None:
        """End the newest segment, durable; create the next one, durable with its first records."""
        end = self._end
        last = end.pending.start
        try:
            end.journal.name_next()
        except OSError as exc:
            raise end.write_failed(exc) from exc
        try:
            end.journal.trim()
        except OSError as exc:
            raise end.stop_for(exc, "setting the segment to its true length") from exc
        end.sync_now()
        try:
            full = end.journal.begin_next(encode_header(end.publishing.visible) + first_records, begun_at)
        except OSError as exc:
            raise end.stop_for(exc, "starting the next segment") from exc
        if full is not None:
            end.publishing.visible_end = last
            raise end.write_failed(full) from full
        end.publishing.visible_end = end.pending.start

    def retain(self) -> None:
        """Give up what the options say; an error of the disk stops nobody."""
        try:
            self.purge(limits_of(self._end.options))
        except (OSError, LogError) as exc:
            if self._end.ownership.lost is not None:
                raise
            logger.warning("Retention could not remove segments. path=%s why=%s", self._end.path, exc)

    def purge(self, limits: Sequence[Limit]) -> tuple[list[str], PurgePlan]:
        """Give up what these limits say and nothing needs; return the names of what went, and the plan."""
        end = self._end
        plan = self.plan_purge(limits)
        if plan.gone:  # range first, so that no reader starts in what will go
            self._purging.note(plan, now_ms=end.clock.now_ms())
            end.segments.drop_front(plan.gone[-1] + 1)
            end.tell()
            end.store_index()
        names = self._purging.remove(plan.gone)
        end.spilling.drop_below(end.segments.first_seqno())
        return names, plan

    def plan_purge(self, limits: Sequence[Limit]) -> PurgePlan:
        """Decide what these limits give up."""
        end, now_ms = self._end, self._end.clock.now_ms()
        journal, publishing = end.journal, end.publishing
        newest = Retained(
            number=journal.number, last_seqno=publishing.visible, begun_at=journal.begun_at, bytes=end.pending.start
        )
        return self._purging.choose(newest, durable=publishing.committed, limits=limits, now_ms=now_ms)
