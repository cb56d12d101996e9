"""Committing: what is appended and complete becomes visible and, on demand, durable.

Owns what one commit covers. Who syncs for whom is `group_commit`'s, and how the ends move `log_end`'s. The hard idea:
a commit covers what was whole when it was called, never what somebody else has yet to fill.

Source: docs/performance.md.
"""

from __future__ import annotations

from tranlog.ids import NO_SEQNO, Seqno
from tranlog.log.writing.log_end import LogEnd


class Commits:
    """Commits what was appended to one log. Threads: any, without the log's lock."""

    def __init__(self, end: LogEnd) -> None:
        self._end = end
        self._steps = end.steps

    def commit(self, sync: bool) -> Seqno:
        """See `Log.commit`."""
        end, steps = self._end, self._steps
        with steps.lock, steps:
            pending = end.pending
            if end.ownership.lost is not None or end.refused:
                end.check()
            oldest = end.prefix.oldest_unfinished()
            target = pending.last if oldest == NO_SEQNO else max(pending.appended, Seqno(oldest - 1))
            if not sync:
                if end.publishing.visible < target:
                    end.flush()
                    end.publish()
                return target
            turn, reign = steps.commits.take_turn(target), end.reign
        seqno = Seqno(steps.commits.wait(turn, target))
        end.check_reign(reign)
        return seqno
